"""Job files and files of other tools: what the commands about them read and write."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

from duetune import __version__
from duetune.errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Callable

    from duetune.jobs.spec.conversion_notes import Note

    Body = Callable[..., None]

STANDARD = "-"


class NoteLine(msgspec.Struct, frozen=True):
    """A note, as it stands in a document."""

    field: str
    says: str

    @classmethod
    def of(cls, notes: tuple[Note, ...]) -> tuple[NoteLine, ...]:
        return tuple(cls(note.field, note.says) for note in notes)


class FileDocument(msgspec.Struct, frozen=True, kw_only=True):
    """What every document of these commands says. Keys are stable; new ones may be added."""

    command: str
    version: str = __version__
    file: str
    output: str | None
    notes: tuple[NoteLine, ...]


def output_options(body: Body) -> Body:
    for option in (
        click.option("--json", "as_json", is_flag=True, help="Print one JSON document instead."),
        click.option("--force", is_flag=True, help="Replace the file of -o if there is one."),
        click.option("-o", "--output", metavar="FILE", help="Write here, not to the terminal."),
    ):
        body = option(body)
    return body


def given_file(file: str) -> Path | str:
    """The path, or for ``-`` the text on standard input."""
    if file != STANDARD:
        return Path(file)
    try:
        return sys.stdin.read()
    except UnicodeDecodeError as error:
        raise InvalidInput("standard input", f"byte {error.start}", "text in UTF-8") from None


def check_target(output: str | None, *, force: bool) -> Path | None:
    """Before the work: whether the file may be written."""
    if output is None:
        return None
    path = Path(output)
    if path.is_dir() or not path.parent.is_dir():
        raise InvalidInput("--output", output, "a file in a folder that exists")
    if path.exists() and not force:
        raise InvalidInput("--output", output, "a file that does not exist yet, or --force")
    return path


def print_json(document: msgspec.Struct) -> None:
    click.echo(msgspec.json.format(msgspec.json.encode(document), indent=2).decode())
