"""Tables of texts, read row by row, and the checks on what their rows say.

A row that cannot be understood is reported with its number, column and value. ``history_files``
reads duetune's own tables, ``duetune.interop`` those of other tools.
"""

from __future__ import annotations

import csv
import math
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import msgspec

from duetune.errors import InvalidInput
from duetune.knowledge.configurations.configuration import (
    FIELDS,
    Configuration,
)
from duetune.knowledge.configurations.lora_targets import (
    LORA_TARGETS,
    is_lora_targets,
)
from duetune.knowledge.configurations.space import field_value
from duetune.knowledge.facts.gpus import GPUS, MIB, gpu_name, gpu_named
from duetune.knowledge.facts.model_facts import model_facts
from duetune.knowledge.facts.model_registry import model_name
from duetune.knowledge.history import History
from duetune.knowledge.model.quality import CPU, EMULATED
from duetune.knowledge.observation import RunOutcome

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from duetune.knowledge.configurations.configuration import Value
    from duetune.knowledge.observation import Observation


Record = TypeVar("Record")
_NOTHING = frozenset(("", "nan", "none", "null", "n/a"))
_YES = frozenset(("1", "1.0", "true", "yes"))
_NO = frozenset(("0", "0.0", "false", "no"))


class Rejected(msgspec.Struct, frozen=True):
    """A row that was left out, counted from 1 after the header, and the reason."""

    row: int
    reason: str


class ImportedRuns(NamedTuple):
    """The runs of a table, and the rows that were left out."""

    history: History
    left_out: tuple[Rejected, ...]


class TableRow:
    """One row of texts. Empty cells, ``nan``, ``none``, ``null`` and ``n/a`` count as missing."""

    def __init__(self, file: str, number: int, values: Mapping[str, str]) -> None:
        self.number = number
        self.provenance = f"{file}:{number}"
        self._values = values

    def has(self, column: str) -> bool:
        """Return whether the row has a value in this column."""
        return self.text(column) != ""

    def text(self, column: str, otherwise: str = "") -> str:
        """Return the text of a column without spaces around it, or ``otherwise`` if it is
        missing.
        """
        text = self._values.get(column, "").strip()
        return otherwise if text.casefold() in _NOTHING else text

    def raw(self, column: str) -> str:
        """Return the text of a column exactly as it is in the file."""
        return self._values.get(column, "")

    def needed(self, column: str) -> str:
        """Return the text of a column, or raise ``InvalidInput`` if it is missing."""
        text = self.text(column)
        if not text:
            raise InvalidInput(column, self._values.get(column), "a value")
        return text

    def number_of(self, column: str) -> float | None:
        """Return the number in a column, or None if it is missing."""
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
        """Return a whole number of at least 0; without ``otherwise`` the column must have a
        value.
        """
        number = self.number_of(column)
        if number is None and otherwise is not None:
            return otherwise
        if number is None or number < 0 or number != int(number):
            raise InvalidInput(column, self._values.get(column), "a whole number")
        return int(number)

    def flag(self, column: str) -> bool:
        """Return whether a column says yes; a missing value means no."""
        text = self.text(column).casefold()
        if text and text not in _YES | _NO:
            raise InvalidInput(column, text, "true or false")
        return text in _YES


class Table(msgspec.Struct, frozen=True):
    """A CSV table that was read: file name, header and lines."""

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
        """Return the runs that ``observation`` makes of the rows.

        A row that it refuses, or that cannot be true, is left out; with ``strict`` it refuses the
        table. ``own`` tables are those that duetune writes.
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
        """Return the records that ``record`` makes of the rows; one bad row refuses the table."""
        found = []
        for number, line in enumerate(self.lines, start=1):
            try:
                found.append(record(self._row(number, line)))
            except InvalidInput as error:
                raise self._located(number, error) from None
        return found

    def _located(self, number: int, error: InvalidInput) -> InvalidInput:
        """Return the error with the row and the file in it."""
        where = f"{error.field} in row {number} of {self.file}"
        return InvalidInput(where, error.value, error.allowed)

    def _row(self, number: int, line: tuple[str, ...]) -> TableRow:
        if len(line) != len(self.header):
            raise InvalidInput(
                "row", f"{len(line)} fields", f"{len(self.header)}, as in the header"
            )
        return TableRow(self.file, number, dict(zip(self.header, line, strict=True)))


def read_table(path: Path, what: str = "history") -> Table:
    """Return a CSV file with a header; ``what`` names the file in errors."""
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


BEYOND = 1.05
"""Allowed share of a card's memory: drivers and data sheets differ by a little."""

_COUNTS = ("num_gpus", "num_nodes", "batch_size", "tokens_per_sample", "grad_accum")
_NO_GPU = frozenset((CPU.casefold(), EMULATED))
_KINDS = {field.name: field.type for field in msgspec.structs.fields(Configuration)}


def check_memory(observation: Observation) -> None:
    """Raise ``InvalidInput`` if a run claims more memory than its card has."""
    gpu = gpu_named(observation.configuration.gpu_model)
    if gpu is None:
        return
    capacity_gb = gpu.memory_mib * MIB / 1e9
    for field in ("peak_memory_gb", "needed_memory_gb"):
        size = getattr(observation, field)
        if size is not None and size > BEYOND * capacity_gb:
            raise InvalidInput(field, size, f"at most the {capacity_gb:.1f} GB of the card")


def check_row(observation: Observation, *, own: bool) -> None:
    """Raise ``InvalidInput`` if a row names an unknown GPU, a count below 1 or contradicts itself.

    In tables of other tools the model must be known too. In duetune's ``own`` tables it need not
    be, because the folder of a model may be gone.
    """
    one = observation.configuration
    if gpu_name(one.gpu_model) is None and one.gpu_model.casefold() not in _NO_GPU:
        raise InvalidInput("gpu_model", one.gpu_model, f"a known GPU: {', '.join(GPUS)}")
    if not own and model_facts(one.model) is None:
        raise InvalidInput("model", one.model, "a known model, or a name with the size in it")
    check_counts(one)
    if observation.outcome is RunOutcome.OOM and observation.tokens_per_s is not None:
        raise InvalidInput(
            "tokens_per_s", observation.tokens_per_s, "no value, since the run ran out of memory"
        )


def check_counts(configuration: Configuration) -> None:
    """Raise ``InvalidInput`` if a count (GPUs, nodes, batch, tokens, accumulation) is below 1."""
    for field in _COUNTS:
        if getattr(configuration, field) < 1:
            raise InvalidInput(field, getattr(configuration, field), "a whole number, 1 or more")


def given_fields(given: Mapping[str, str]) -> dict[str, Value]:
    """Return fields of a configuration from texts that a user gave, such as ``--given
    num_gpus=4``.
    """
    found: dict[str, Value] = {}
    for field, text in given.items():
        if field not in FIELDS:
            raise InvalidInput("given", field, f"one of {', '.join(FIELDS)}")
        try:
            value = msgspec.convert(text, _KINDS[field], strict=False)
        except msgspec.ValidationError:
            value = text  # field_value refuses it below and names the allowed values.
        found[field] = field_value(field, model_name(text) if field == "model" else value)
        if field == "gpu_model" and gpu_name(text) is None:
            raise InvalidInput("given", f"gpu_model={text}", f"one of {', '.join(GPUS)}")
        if field == "lora_targets" and not is_lora_targets(text):
            allowed = f"{', '.join(LORA_TARGETS)}, or layers such as q_proj+v_proj"
            raise InvalidInput("given", f"{field}={text}", allowed)
    return found
