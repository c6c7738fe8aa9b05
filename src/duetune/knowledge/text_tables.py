"""Tables of texts, row by row: what cannot be understood is told by row, column and value."""

from __future__ import annotations

import csv
import math
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import msgspec

from duetune.errors import InvalidInput
from duetune.knowledge.history import History
from duetune.knowledge.measurement_checks import check_memory, check_row

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from duetune.knowledge.observation import Observation

Record = TypeVar("Record")
_NOTHING = frozenset(("", "nan", "none", "null", "n/a"))
_YES = frozenset(("1", "1.0", "true", "yes"))
_NO = frozenset(("0", "0.0", "false", "no"))


class Rejected(msgspec.Struct, frozen=True):
    """A row that was left out, counted from 1 after the header, and why."""

    row: int
    reason: str


class ImportedRuns(NamedTuple):
    history: History
    left_out: tuple[Rejected, ...]


class TableRow:
    """One row of texts. Empty and ``nan`` are nothing."""

    def __init__(self, file: str, number: int, values: Mapping[str, str]) -> None:
        self.number = number
        self.provenance = f"{file}:{number}"
        self._values = values

    def has(self, column: str) -> bool:
        return self.text(column) != ""

    def text(self, column: str, otherwise: str = "") -> str:
        text = self._values.get(column, "").strip()
        return otherwise if text.casefold() in _NOTHING else text

    def raw(self, column: str) -> str:
        """To the letter."""
        return self._values.get(column, "")

    def needed(self, column: str) -> str:
        text = self.text(column)
        if not text:
            raise InvalidInput(column, self._values.get(column), "a value")
        return text

    def number_of(self, column: str) -> float | None:
        text = self.text(column)
        if not text:
            return None
        try:
            number = float(text)
        except ValueError:
            raise InvalidInput(column, text, "a number") from None
        if not math.isfinite(number):
            raise InvalidInput(column, text, "a number")
        return number

    def whole(self, column: str, otherwise: int | None = None) -> int:
        """A whole number from 0 on; without ``otherwise`` it must be there."""
        number = self.number_of(column)
        if number is None and otherwise is not None:
            return otherwise
        if number is None or number < 0 or number != int(number):
            raise InvalidInput(column, self._values.get(column), "a whole number")
        return int(number)

    def flag(self, column: str) -> bool:
        text = self.text(column).casefold()
        if text and text not in _YES | _NO:
            raise InvalidInput(column, text, "true or false")
        return text in _YES


class Table(msgspec.Struct, frozen=True):
    file: str
    header: tuple[str, ...]
    lines: tuple[tuple[str, ...], ...]

    def observed(
        self,
        observation: Callable[[TableRow], Observation],
        *,
        strict: bool = False,
        own: bool = False,
    ) -> ImportedRuns:
        """What ``observation`` makes of each row. A row that it refuses or that cannot be true is
        left out; if ``strict``, nothing is taken. ``own`` tables are those that duetune writes.
        """
        found: list[Observation] = []
        left_out: list[Rejected] = []
        for number, line in enumerate(self.lines, start=1):
            try:
                one = observation(self._row(number, line))
                check_memory(one)
                if not strict:
                    check_row(one, own=own)
                found.append(one)
            except InvalidInput as error:
                if strict:
                    raise self._located(number, error) from None
                left_out.append(Rejected(number, str(error)))
        return ImportedRuns(History(found), tuple(left_out))

    def read(self, record: Callable[[TableRow], Record]) -> list[Record]:
        """What ``record`` makes of each row; one that it refuses refuses the file."""
        found = []
        for number, line in enumerate(self.lines, start=1):
            try:
                found.append(record(self._row(number, line)))
            except InvalidInput as error:
                raise self._located(number, error) from None
        return found

    def _located(self, number: int, error: InvalidInput) -> InvalidInput:
        where = f"{error.field} in row {number} of {self.file}"
        return InvalidInput(where, error.value, error.allowed)

    def _row(self, number: int, line: tuple[str, ...]) -> TableRow:
        if len(line) != len(self.header):
            raise InvalidInput(
                "row", f"{len(line)} fields", f"{len(self.header)}, as in the header"
            )
        return TableRow(self.file, number, dict(zip(self.header, line, strict=True)))


def read_table(path: Path, what: str = "history") -> Table:
    """A CSV file with a header; ``what`` it is stands in errors."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(file, strict=True)
            header = tuple(name.strip() for name in next(reader, []))
            lines = tuple(tuple(line) for line in reader if line)
    except (csv.Error, UnicodeDecodeError, OSError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise InvalidInput(what, str(path), f"a readable CSV file ({reason})") from None
    if not header:
        raise InvalidInput(what, str(path), "a CSV file with a header; this one is empty")
    if len(set(header)) != len(header):
        raise InvalidInput(f"columns of {path.name}", list(header), "different names")
    return Table(path.name, header, lines)
