"""The generated parts of docs/reference/cli.md: usage, help and options of each command."""

from __future__ import annotations

import inspect
import re

import click

from duetune.cli.app import app
from duetune.cli.case_options import CaseOptions
from duetune.cli.cluster_options import ClusterOptions
from duetune.cli.job_options import JobOptions
from duetune.cli.options import MarketOptions

# Options that several commands share have one table; commands refer to it.
SHARED = {
    "Common options": ({"seed", "plot", "as_json", "debug"}, "simulate"),
    "Market options": (set(MarketOptions.__struct_fields__), "simulate"),
    "Job options": (set(JobOptions.__struct_fields__), "simulate"),
    "Options of drawn jobs": (set(CaseOptions.__struct_fields__), "tournament"),
    "Cluster options": (set(ClusterOptions.__struct_fields__), "cluster simulate"),
}
BLOCK = re.compile(r"<!-- generated: (?P<name>[^>]+) -->\n(?P<text>.*?)<!-- end -->", re.DOTALL)


def blocks():
    """Every generated block of the page by name: shared options, then all commands."""
    for title, (fields, name) in SHARED.items():
        context = _context(name)
        yield title, _table(context, [p for p in context.command.params if p.name in fields])
    yield from _commands(click.Context(app, info_name="duetune", show_default=True))


def _context(name):
    context = click.Context(app, info_name="duetune", show_default=True)
    for word in name.split():
        command = context.command.get_command(context, word)
        context = click.Context(command, info_name=word, parent=context)
    return context


def _commands(parent):
    for word in parent.command.list_commands(parent):
        command = parent.command.get_command(parent, word)
        context = click.Context(command, info_name=word, parent=parent)
        yield context.command_path, _described(context)
        if isinstance(command, click.Group):
            yield from _commands(context)


def _described(context):
    command = context.command
    usage = " ".join([context.command_path, *command.collect_usage_pieces(context)])
    text = f"`{usage}`\n\n{_paragraphs(command.help)}\n\n"
    options = [each for each in command.params if isinstance(each, click.Option)]
    names = {each.name for each in options}
    also = []
    for title, (fields, _) in SHARED.items():
        if fields <= names:
            options = [each for each in options if each.name not in fields]
            also.append(f"[{title.lower()}](#{title.lower().replace(' ', '-')})")
    if any(each.name == "as_json" for each in options):
        options = [each for each in options if each.name != "as_json"]
        also.append("`--json`")
    if options:
        text += _table(context, options) + "\n"
    return text + (f"It also takes {', '.join(also)}.\n\n" if also else "")


def _paragraphs(text):
    """Click's ``\\b`` marks lines that are not to be filled: code, on the page."""
    parts = []
    for part in inspect.cleandoc(text).split("\n\n"):
        if part.startswith("\b\n"):
            parts.append("\n".join(f"    {line}" for line in part[2:].splitlines()))
        else:
            parts.append(" ".join(part.split()))
    return "\n\n".join(parts)


def _table(context, options):
    rows = ["| option | meaning |", "|---|---|"]
    for option in options:
        names, meaning = (text.replace("|", "\\|") for text in option.get_help_record(context))
        names = ", ".join(f"`{name}`" for name in names.split(", "))
        rows.append(f"| {names} | {meaning} |")
    return "".join(f"{row}\n" for row in rows)
