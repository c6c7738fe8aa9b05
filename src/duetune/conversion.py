"""What msgspec refuses in a document: which field, its value, and what is allowed."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import msgspec

from duetune.errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Iterator

_KINDS: dict[str, type] = {"int": int, "float": float, "str": str}
_NAMES = {"array": "a list", "object": "an object", "str": "text", "float": "a number"}
_NAMES |= {"int": "a whole number", "bool": "true or false"}


def refused(
    error: msgspec.ValidationError, raw: object, kind: type[msgspec.Struct], title: str = ""
) -> InvalidInput:
    """``raw`` is the document as it was read, ``title`` comes before the field."""
    problem, _, place = str(error).partition(" - at ")
    field = place.strip("`").removeprefix("$").lstrip(".")
    wanted = re.fullmatch(r"Expected `(.+)`, got `.+`", problem)
    if field.endswith("[...]") and wanted:
        # Which one, msgspec does not say.
        field = field.removesuffix("[...]")
        field = f"{field}.{_wrong_key(_found(raw, field), wanted[1])}"
    unknown = re.fullmatch(r"Object contains unknown field `(.+)`", problem)
    if unknown:
        known = ", ".join(_fields(kind, field))
        field = f"{field}.{unknown[1]}".lstrip(".")
        return InvalidInput(f"{title}{field}", _found(raw, field), f"one of the fields {known}")
    missing = re.fullmatch(r"Object missing required field `(.+)`", problem)
    allowed = f"the field {missing[1]}, which is missing" if missing else problem
    if wanted:
        names = [_NAMES.get(each, each) for each in wanted[1].split(" | ") if each != "null"]
        allowed = " or ".join(names)
    return InvalidInput(f"{title}{field}".strip(), _found(raw, field), allowed)


def _found(raw: object, field: str) -> object:
    """The value at a path such as ``throughput[2]``; the whole where the path does not lead."""
    for part in _parts(field):
        if isinstance(raw, dict) and part in raw:
            raw = raw[part]
        elif isinstance(raw, list) and part.isdecimal() and int(part) < len(raw):
            raw = raw[int(part)]
    return raw


def _wrong_key(raw: object, wanted: str) -> str:
    kind = _KINDS.get(wanted)
    if isinstance(raw, dict) and kind is not None:
        for key, value in raw.items():
            try:
                msgspec.convert(value, kind)
            except msgspec.ValidationError:
                return str(key)
    return "..."


def _fields(kind: type[msgspec.Struct], field: str) -> Iterator[str]:
    """Those that there are where the path leads."""
    for part in _parts(field):
        types = {each.encode_name: each.type for each in msgspec.structs.fields(kind)}
        inner = types.get(part)
        if isinstance(inner, type) and issubclass(inner, msgspec.Struct):
            kind = inner
    return (each.encode_name for each in msgspec.structs.fields(kind))


def _parts(field: str) -> list[str]:
    return re.findall(r"[^.\[\]]+", field)
