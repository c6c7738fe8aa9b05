"""Turns a validation error of msgspec into a field, its value, and what is allowed."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from duetune.errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_KINDS: dict[str, type] = {"int": int, "float": float, "str": str}
_WORDS = {
    "int": "a whole number",
    "float": "a number",
    "str": "text",
    "bool": "true or false",
    "array": "a list",
    "object": "a mapping of fields",
}


class Refusal(NamedTuple):
    """One refused value of a document.

    ``path``: field names and list positions that lead to the value.
    ``unknown``: there is no such field; ``value`` is then the name of the field.
    """

    path: tuple[str, ...]
    value: object
    allowed: str
    unknown: bool = False

    @property
    def field(self) -> str:
        """Return the path as text, such as ``partitions[0].nodes``."""
        path = self.path[:-1] if self.unknown else self.path
        text = "".join(f"[{part}]" if part.isdecimal() else f".{part}" for part in path)
        return f"{text.lstrip('.')}{' field' * self.unknown}".strip()

    def at(self, place: str) -> InvalidInput:
        """Return the error to raise; ``place`` stands before the field, such as a file and line."""
        return InvalidInput(f"{place}{self.field}".strip(), self.value, self.allowed)


def refusal(
    error: msgspec.ValidationError,
    raw: object,
    kind: type[msgspec.Struct],
    allowed: Mapping[str, str] | None = None,
) -> Refusal:
    """Return what msgspec refused in the document ``raw`` when it converted it to ``kind``.

    ``allowed`` describes the allowed values of fields whose type does not say enough. msgspec says
    "Expected `int`, got `str`", "Object missing required field `nodes`", "Object contains unknown
    field `knots`" or "Invalid enum value 'lent'".
    """
    problem, _, place = str(error).partition(" - at `")
    path = tuple(re.findall(r"[^$.\[\]`]+", place))
    described = allowed or {}
    name = problem.rpartition(" field `")[2].rstrip("`")
    if problem.startswith("Object contains unknown field"):
        known = ", ".join(_fields(kind, path))
        return Refusal((*path, name), name, f"one of {known}", unknown=True)
    if problem.startswith("Object missing required field"):
        declared = getattr(_fields(kind, path)[name], "__name__", "")
        words = described.get(name, _WORDS.get(declared, "a value"))
        return Refusal((*path, name), None, words)
    wanted = re.match(r"Expected `([^`]+)`( of [^,]+)?", problem)
    types = [each for each in wanted[1].split(" | ") if each != "null"] if wanted else []
    if place.endswith("[...]`"):
        path = (*path, *_wrong_key(_found(raw, path), types))
    words = " or ".join(_WORDS.get(each, each) for each in types) or "another value"
    words += (wanted[2] or "") if wanted else ""
    return Refusal(path, _found(raw, path), described.get(path[-1] if path else "", words))


def _found(raw: object, path: tuple[str, ...]) -> object:
    for part in path:
        if isinstance(raw, dict):
            raw = raw.get(part)
        elif isinstance(raw, list):
            raw = raw[int(part)]
    return raw


def _wrong_key(raw: object, types: list[str]) -> Iterator[str]:
    """Yield the first key of a mapping with a value of a wrong type; msgspec does not name it."""
    kind = _KINDS.get(types[0]) if types else None
    if isinstance(raw, dict) and kind is not None:
        for key, value in raw.items():
            try:
                msgspec.convert(value, kind)
            except msgspec.ValidationError:
                yield str(key)
                return


def _fields(kind: type[msgspec.Struct], path: tuple[str, ...]) -> dict[str, object]:
    """Return the fields, and their types, of the struct that ``path`` leads to."""
    found = {field.encode_name: field.type for field in msgspec.structs.fields(kind)}
    if not path:
        return found
    return _fields(next(_structs(found.get(path[0])), kind), path[1:])


def _structs(declared: object) -> Iterator[type[msgspec.Struct]]:
    """Yield the structs in a type: the type itself, or the members of a list or union."""
    if isinstance(declared, type) and issubclass(declared, msgspec.Struct):
        yield declared
    for each in getattr(declared, "__args__", ()):
        yield from _structs(each)
