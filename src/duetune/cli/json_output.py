"""JSON documents of commands that compute, and the JSON files that they read."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import msgspec

from duetune.cli.context import Answer
from duetune.conversion import refusal
from duetune.errors import InvalidInput

if TYPE_CHECKING:
    from duetune.core.market import MarketTrace

    Value = TypeVar("Value", bound=msgspec.Struct)


class JsonDocument(Answer, frozen=True, kw_only=True):
    """The first fields of every document of a command that computes."""

    seed: int


class MarketNote(msgspec.Struct, frozen=True):
    """A market in a JSON document: its name, first pool, length and start time."""

    name: str
    pool: str
    slots: int
    slot_hours: float
    start: str | None

    @classmethod
    def of(cls, trace: MarketTrace) -> MarketNote:
        """Describe this trace."""
        return cls(
            name=trace.name,
            pool=trace.pools[0].name,
            slots=trace.slots,
            slot_hours=trace.slot_hours,
            start=None if trace.start is None else trace.start.isoformat(),
        )


def read_document(path: str, kind: type[Value], what: str) -> Value:
    """Read a value of type ``kind`` from a JSON file; an error names the wrong field."""
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
    """Refuse unknown fields, which msgspec would ignore: they are mostly spelling mistakes."""
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
