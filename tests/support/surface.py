"""The public surface as text, one thing per line, so that a change of it is seen in a diff."""

from __future__ import annotations

import difflib
import inspect
import json
import os
import re

import click
import msgspec

from duetune.cli.app import app
from duetune.core.events import Recorded
from support.places import ASSETS

SNAPSHOTS = ASSETS / "snapshots"


def compare(name, lines):
    """Fails with the difference from the stored snapshot, or with ``make snapshots`` renews it."""
    path = SNAPSHOTS / f"{name}.txt"
    now = [f"{line}\n" for line in lines]
    if os.environ.get("DUETUNE_UPDATE_SNAPSHOTS"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(now), encoding="utf-8")
        return
    stored = path.read_text(encoding="utf-8").splitlines(keepends=True) if path.exists() else []
    difference = "".join(difflib.unified_diff(stored, now, f"stored {name}", "now"))
    assert not difference, (
        f"the public surface has changed:\n{difference}\n"
        "If that is intended, run `make snapshots`, commit the files it writes and tell users in "
        "CHANGELOG.md."
    )


def module_lines(module):
    """Every name of ``__all__`` with its signature; of a class also its public methods."""
    for name in sorted(module.__all__):
        thing = getattr(module, name)
        yield f"{name}{_signature(thing)}"
        if inspect.isclass(thing):
            for member in sorted(dir(thing)):
                if not member.startswith("_"):
                    yield from _member_line(name, member, inspect.getattr_static(thing, member))


def _member_line(owner, name, member):
    function = member.__func__ if isinstance(member, classmethod | staticmethod) else member
    if inspect.isfunction(function):
        yield f"{owner}.{name}{_signature(function)}"
    else:
        yield f"{owner}.{name}"


def _signature(thing):
    if inspect.isclass(thing) and hasattr(thing, "model_fields"):
        # Pydantic's own signature has the addresses of validators, which differ in each process.
        fields = thing.model_fields.items()
        return (
            f"({', '.join(name if each.is_required() else f'{name}=...' for name, each in fields)})"
        )
    if inspect.isroutine(thing) or inspect.isclass(thing):
        # Where a type is defined is not public.
        return re.sub(r"\b(?:\w+\.)+(?=[A-Z])", "", str(inspect.signature(thing)))
    return f": {type(thing).__name__}"


def without_docstring(module):
    """Public names that say nothing about themselves; an inherited docstring does not count."""
    return [name for name in sorted(module.__all__) if not getattr(module, name).__doc__]


def command_lines(command=app, path="duetune"):
    """Every command with its arguments and options, in the order of ``--help``."""
    context = click.Context(command, info_name=path)
    yield path
    for parameter in command.params:
        yield f"{path} {_parameter(parameter)}"
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            yield from command_lines(command.get_command(context, name), f"{path} {name}")


def _parameter(parameter):
    words = [", ".join(parameter.opts) if isinstance(parameter, click.Option) else parameter.name]
    if parameter.secondary_opts:
        words[0] += " / " + ", ".join(parameter.secondary_opts)
    if isinstance(parameter, click.Argument):
        words[0] = words[0].upper()
    if not getattr(parameter, "is_flag", False):
        kind = parameter.type
        words.append("|".join(kind.choices) if isinstance(kind, click.Choice) else kind.name)
    if parameter.required:
        words.append("required")
    if getattr(parameter, "multiple", False) or parameter.nargs != 1:
        words.append("repeated")
    return " ".join(words)


def journal_lines():
    """The words of the journal, and every field of its events with type and default."""
    schema = msgspec.json.schema(Recorded)
    parts = {name: part for name, part in schema["$defs"].items() if "properties" in part}
    tags = {
        f"#/$defs/{name}": part["properties"]["type"]["enum"][0]
        for name, part in parts.items()
        if "enum" in part["properties"].get("type", {})
    }
    for name, part in sorted(schema["$defs"].items()):
        if "enum" in part:
            yield f"{name}: {', '.join(part['enum'])}"
    for name, part in sorted(parts.items()):
        label = tags.get(f"#/$defs/{name}", name)
        for field, kind in part["properties"].items():
            rule = "required" if field in part["required"] else f"default {kind.get('default')!r}"
            yield f"{label}.{field}: {_kind(kind, tags)}, {rule}"


def _kind(kind, tags):
    """A JSON schema in one line, without prose and defaults. Events are named by their tag."""
    kept = {
        key: value
        for key, value in kind.items()
        if key not in {"description", "title", "default", "discriminator"}
    }
    text = json.dumps(kept, sort_keys=True)
    for reference, tag in tags.items():
        text = text.replace(f'"{reference}"', f'"{tag}"')
    return text.replace("#/$defs/", "")
