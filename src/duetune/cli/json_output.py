"""What goes in and out as JSON."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import click
import msgspec

from duetune import __version__
from duetune.conversion import refusal
from duetune.errors import InvalidInput

if TYPE_CHECKING:
    from duetune.core.market import MarketTrace

    Value = TypeVar("Value", bound=msgspec.Struct)


class JsonDocument(msgspec.Struct, frozen=True, kw_only=True):
    """What every document says first. Keys are stable; new ones may be added."""

    command: str
    version: str = __version__
    seed: int


class MarketNote(msgspec.Struct, frozen=True):
    """Which market it was."""

    name: str
    pool: str
    slots: int
    slot_hours: float
    start: str | None

    @classmethod
    def of(cls, trace: MarketTrace) -> MarketNote:
        return cls(
            name=trace.name,
            pool=trace.pools[0].name,
            slots=trace.slots,
            slot_hours=trace.slot_hours,
            start=None if trace.start is None else trace.start.isoformat(),
        )


def print_document(document: JsonDocument) -> None:
    click.echo(msgspec.json.format(msgspec.json.encode(document), indent=2).decode())


def read_document(path: str, kind: type[Value], what: str) -> Value:
    """A value from a JSON file, every field checked; errors name the field."""
    try:
        text = Path(path).read_bytes()
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise InvalidInput(f"{what} file", path, f"a readable file ({reason})") from None
    raw: object = None
    try:
        raw = msgspec.json.decode(text)
        if isinstance(raw, dict):
            _refuse_unknown(raw, kind, what)
        return msgspec.json.decode(text, type=kind)
    except msgspec.ValidationError as error:
        raise refusal(error, raw, kind).at(f"{what} ") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidInput(f"{what} file", path, f"JSON ({error})") from None


def _refuse_unknown(raw: dict[str, object], kind: type[msgspec.Struct], what: str) -> None:
    """A misspelt field would otherwise be silently ignored."""
    known = {field.encode_name: field.type for field in msgspec.structs.fields(kind)}
    for name, value in raw.items():
        if name not in known:
            raise InvalidInput(f"{what} field", name, f"one of {', '.join(known)}")
        inner = known[name]
        if (
            isinstance(inner, type)
            and issubclass(inner, msgspec.Struct)
            and isinstance(value, dict)
        ):
            _refuse_unknown(value, inner, f"{what} {name}")
