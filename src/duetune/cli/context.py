"""What all commands share: the settings of a call, JSON answers, a spinner, durations in words."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click
import msgspec

from duetune import __version__
from duetune.cli.compile_notice import CompileNotice

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Body = Callable[..., int | None]


class CommandOptions:
    """Settings of one call of the program, kept as click's context object.

    ``notice`` tells on the terminal that code is being compiled.
    """

    def __init__(self, *, debug: bool) -> None:
        self.debug = debug
        self.notice = CompileNotice(sys.stderr)


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """The first fields of every JSON document. Later versions may add keys, but keep these."""

    command: str
    version: str = __version__


def print_answer(answer: Answer) -> None:
    """Print a document as indented JSON on standard output."""
    click.echo(msgspec.json.format(msgspec.json.encode(answer), indent=2).decode())


def json_option(body: Body) -> Body:
    """Add --json to a command."""
    return click.option("--json", "as_json", is_flag=True, help="Print one JSON document instead.")(
        body
    )


def fleet_option(default: str) -> Callable[[Body], Body]:
    """Add --fleet to a command; ``default`` says which fleet is meant without it."""
    return click.option("--fleet", metavar="NAME", help=f"The fleet.  [default: {default}]")


@contextmanager
def waiting(words: str) -> Iterator[None]:
    """Show a spinner with these words while the block runs; a pipe shows nothing."""
    from rich.console import Console

    context = click.get_current_context(silent=True)
    notice = getattr(context.obj if context else None, "notice", None)
    if notice is not None:
        notice.held = True  # the spinner has the line
    try:
        with Console(stderr=True).status(words):
            yield
    finally:
        if notice is not None:
            notice.held = False


def duration_words(seconds: float) -> str:
    """Return a duration in its two largest units: ``2d 3h``, ``3h 20m``, ``12m 5s``, ``9s``."""
    left = max(0, round(seconds))
    units = (("d", 86400), ("h", 3600), ("m", 60), ("s", 1))
    for place, (name, size) in enumerate(units):
        if left >= size or size == 1:
            words = f"{left // size}{name}"
            if place + 1 < len(units):
                smaller, rest = units[place + 1][0], left % size // units[place + 1][1]
                words += f" {rest}{smaller}" if rest else ""
            return words
    return "0s"
