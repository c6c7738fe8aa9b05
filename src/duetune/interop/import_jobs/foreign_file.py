"""A file of another tool."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING

from duetune.errors import InvalidInput, shown
from duetune.jobs.spec.conversion_notes import Note
from duetune.jobs.spec.variables import is_variable

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from duetune.jobs.spec.yaml_document import Document


# YAML 1.1, which these tools read, has these as booleans; our reader leaves them as text.
_YES = frozenset(("yes", "on", "y", "true"))
_NO = frozenset(("no", "off", "n", "false"))
_SECRET_NAME = re.compile(
    r"(?:^|[_\W])(?:token|secret|password|passwd|credentials?|(?:api|access|private)[_-]?key)"
    r"(?:$|[_\W])",
    re.IGNORECASE,
)


def is_secret_name(name: str) -> bool:
    """Whether the value behind this name should not be written down."""
    return _SECRET_NAME.search(name) is not None


class ForeignFile:
    """The fields of a file. Each is taken once; what nobody takes becomes a note."""

    def __init__(self, document: Document, folder: Path) -> None:
        self.folder = folder
        self.notes: list[Note] = []
        self._document = document
        self._fields = {name: value for name, value in document.fields.items() if value is not None}

    def __contains__(self, name: str) -> bool:
        return name in self._fields

    def note(self, field: str, says: str) -> None:
        self.notes.append(Note(field, says))

    def wrong(self, name: str, value: object, allowed: str) -> InvalidInput:
        path = tuple(name.split("."))
        return InvalidInput(self._document.where(path) + name, value, allowed)

    def take(self, name: str) -> object:
        return self._fields.pop(name, None)

    def text(self, name: str) -> str | None:
        value = self.take(name)
        if isinstance(value, (bool, dict, list)) or value == "":
            raise self.wrong(name, value, "text")
        return None if value is None else str(value)

    def number(self, name: str) -> float | None:
        value = self.take(name)
        if value is None:
            return None
        number = _number(value)
        if number is None:
            raise self.wrong(name, value, "a number")
        return number

    def whole(self, name: str) -> int | None:
        number = self.number(name)
        if number is not None and not number.is_integer():
            raise self.wrong(name, number, "a whole number")
        return None if number is None else int(number)

    def flag(self, name: str) -> bool | None:
        value = truth(self.take(name))
        if value is not None and not isinstance(value, bool):
            raise self.wrong(name, value, "true or false")
        return value

    def mode(self, name: str) -> bool | str | None:
        """A switch that some tools also let be a word, such as ``auto``."""
        value = truth(self.take(name))
        if value is not None and not isinstance(value, (bool, str)):
            raise self.wrong(name, value, "true, false or a word")
        return value

    def mapping(self, name: str) -> dict[str, object]:
        value = self.take(name)
        if value is not None and not isinstance(value, dict):
            raise self.wrong(name, value, "a mapping")
        return value or {}

    def leftover(self, reasons: Mapping[str, str]) -> None:
        """Notes on all that nobody took; ``reasons`` tells why for those that are known."""
        off = [
            name
            for name, value in self._fields.items()
            if value is False or (isinstance(value, (str, list, dict)) and not value)
        ]
        for name, value in self._fields.items():
            if name not in off:
                says = f"{masked(name, value)} is not carried over"
                self.note(name, says + (f"; {reasons[name]}" if name in reasons else ""))
        if off:
            self.note(", ".join(off), "switched off there, and left out here")
        self._fields.clear()


def truth(value: object) -> object:
    """Booleans of YAML 1.1, which our reader leaves as text; anything else as it is."""
    if isinstance(value, str) and value.strip().lower() in _YES:
        return True
    if isinstance(value, str) and value.strip().lower() in _NO:
        return False
    return value


def masked(name: str, value: object) -> str:
    if is_secret_name(name):
        return "***"
    return "the mapping" if isinstance(value, dict) else shown(value)


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


# A node says which GPU its process has; a fixed number would give all of them the same.
_OURS = frozenset(("CUDA_VISIBLE_DEVICES",))


def variables(
    source: ForeignFile, given: dict[str, object], secrets: list[str], field: str = "envs"
) -> dict[str, object]:
    """``envs`` and ``secrets`` of a spec. A value that looks secret is left out, its name kept."""
    envs: dict[str, object] = {}
    names = list(secrets)
    for name, value in given.items():
        if name in _OURS:
            source.note(f"{field}.{name}", "is not carried over: every node sets its own")
        elif is_variable(name) and is_secret_name(name):
            names.append(name)
            source.note(f"{field}.{name}", "is among the secrets here, without its value")
        elif is_variable(name):
            envs[name] = value
        else:
            source.note(f"{field}.{name}", "the name is reserved or cannot be used")
    for name in names:
        if not is_variable(name):
            source.note(f"secrets.{name}", "the name is reserved or cannot be used")
    kept = [name for name in dict.fromkeys(names) if is_variable(name)]
    fields: dict[str, object] = {"envs": envs} if envs else {}
    return fields | ({"secrets": kept} if kept else {})
