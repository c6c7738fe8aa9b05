"""A file of another tool, read so that no field is overlooked, and its environment variables.

Readers take the fields they know; every field that is left becomes a note.
"""

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

    from duetune.interop.import_jobs.renamed_columns import RenamedColumns
    from duetune.jobs.spec.yaml_document import Document


# These tools read YAML 1.1, where these words are booleans; our reader keeps them as text.
_YES = frozenset(("yes", "on", "y", "true"))
_NO = frozenset(("no", "off", "n", "false"))
_SECRET_NAME = re.compile(
    r"(?:^|[_\W])(?:token|secret|password|passwd|credentials?|(?:api|access|private)[_-]?key)"
    r"(?:$|[_\W])",
    re.IGNORECASE,
)


def is_secret_name(name: str) -> bool:
    """Return whether the value of a variable with this name should not be written down."""
    return _SECRET_NAME.search(name) is not None


class ForeignFile:
    """The fields of a file. Each is taken once; fields that nobody takes become notes."""

    def __init__(self, document: Document, folder: Path) -> None:
        self.folder = folder
        self.notes: list[Note] = []
        self.renamed: dict[str, RenamedColumns] = {}
        self._document = document
        self._fields = {name: value for name, value in document.fields.items() if value is not None}

    def __contains__(self, name: str) -> bool:
        return name in self._fields

    def note(self, field: str, says: str) -> None:
        """Add a note about ``field`` for the user."""
        self.notes.append(Note(field, says))

    def wrong(self, name: str, value: object, allowed: str) -> InvalidInput:
        """Return the error for a field, with file and line."""
        path = tuple(name.split("."))
        return InvalidInput(self._document.where(path) + name, value, allowed)

    def take(self, name: str) -> object:
        """Return the value of a field and remove it; None if it is not there."""
        return self._fields.pop(name, None)

    def text(self, name: str) -> str | None:
        """Take a field that must be text."""
        value = self.take(name)
        if isinstance(value, (bool, dict, list)) or value == "":
            raise self.wrong(name, value, "text")
        return None if value is None else str(value)

    def number(self, name: str) -> float | None:
        """Take a field that must be a number; text that is one counts."""
        value = self.take(name)
        if value is None:
            return None
        number = _number(value)
        if number is None:
            raise self.wrong(name, value, "a number")
        return number

    def whole(self, name: str) -> int | None:
        """Take a field that must be a whole number."""
        number = self.number(name)
        if number is not None and not number.is_integer():
            raise self.wrong(name, number, "a whole number")
        return None if number is None else int(number)

    def flag(self, name: str) -> bool | None:
        """Take a field that must be true or false."""
        value = truth(self.take(name))
        if value is not None and not isinstance(value, bool):
            raise self.wrong(name, value, "true or false")
        return value

    def mode(self, name: str) -> bool | str | None:
        """Take a switch that may also be a word, such as ``auto``."""
        value = truth(self.take(name))
        if value is not None and not isinstance(value, (bool, str)):
            raise self.wrong(name, value, "true, false or a word")
        return value

    def mapping(self, name: str) -> dict[str, object]:
        """Take a field that must be a mapping; empty if it is not there."""
        value = self.take(name)
        if value is not None and not isinstance(value, dict):
            raise self.wrong(name, value, "a mapping")
        return value or {}

    def leftover(self, reasons: Mapping[str, str]) -> None:
        """Note every field that nobody took, with the reason from ``reasons`` if there is one."""
        off = [
            name
            for name, value in self._fields.items()
            if value is False or (isinstance(value, (str, list, dict)) and not value)
        ]
        for name, value in self._fields.items():
            if name not in off:
                says = f"{masked(name, value)} is not imported"
                self.note(name, says + (f"; {reasons[name]}" if name in reasons else ""))
        if off:
            self.note(", ".join(off), "switched off there, and left out here")
        self._fields.clear()


def truth(value: object) -> object:
    """Return the boolean that a word is in YAML 1.1; other values stay as they are."""
    if isinstance(value, str) and value.strip().lower() in _YES:
        return True
    if isinstance(value, str) and value.strip().lower() in _NO:
        return False
    return value


def masked(name: str, value: object) -> str:
    """Return a value for a note; stars if its name looks secret."""
    if is_secret_name(name):
        return "***"
    return "the mapping" if isinstance(value, dict) else shown(value)


def _number(value: object) -> float | None:
    """Return a finite number; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


# Each node sets this for its process; a fixed value would give all processes the same GPU.
_OURS = frozenset(("CUDA_VISIBLE_DEVICES",))


def variables(
    source: ForeignFile, given: dict[str, object], secrets: list[str], field: str = "envs"
) -> dict[str, object]:
    """Return ``envs`` and ``secrets`` for a spec. If a name looks secret, its value is dropped and
    the name goes to the secrets.
    """
    envs: dict[str, object] = {}
    names = list(secrets)
    for name, value in given.items():
        if name in _OURS:
            source.note(f"{field}.{name}", "is not imported: every node sets its own")
        elif is_variable(name) and is_secret_name(name):
            names.append(name)
            source.note(f"{field}.{name}", "is listed under secrets, without its value")
        elif is_variable(name):
            envs[name] = value
        else:
            source.note(f"{field}.{name}", "is not imported: the name is reserved or not valid")
    for name in names:
        if not is_variable(name):
            source.note(f"secrets.{name}", "is not imported: the name is reserved or not valid")
    kept = [name for name in dict.fromkeys(names) if is_variable(name)]
    fields: dict[str, object] = {"envs": envs} if envs else {}
    return fields | ({"secrets": kept} if kept else {})
