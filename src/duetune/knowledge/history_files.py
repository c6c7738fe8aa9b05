"""History as a CSV file: one row for each observation.

The columns are the fields of ``Configuration`` (model, method, gpu_model, num_gpus, batch_size,
...) and of ``Observation`` (outcome, tokens_per_s, peak_memory_gb, measured_at, ...), in any order.
A column may be missing and a cell may be empty if the field has a default. Flags are separated by
semicolons. Known models and GPUs get the names they have here, however the file spells them.

Tables of other tools are read in ``duetune.interop``.
"""

from __future__ import annotations

import csv
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from duetune.errors import InvalidInput
from duetune.files import output_file, whole_file
from duetune.knowledge.configurations.configuration import FIELDS, Configuration
from duetune.knowledge.facts.gpus import gpu_name
from duetune.knowledge.facts.model_registry import model_name
from duetune.knowledge.observation import Observation
from duetune.knowledge.text_tables import check_counts, read_table

if TYPE_CHECKING:
    from collections.abc import Iterable

    from duetune.knowledge.history import History
    from duetune.knowledge.text_tables import ImportedRuns, Table, TableRow

_OWN = tuple(field for field in Observation.__struct_fields__ if field != "configuration")
COLUMNS: tuple[str, ...] = (*FIELDS, *_OWN)
_TEXTS = ("software", "provenance", "cluster", "protocol", "error")
NEEDED = ("model", "gpu_model", "outcome")
"""Columns that identify such a file."""


def read_history(path: Path | str) -> History:
    """Return all rows of a history file; one row that cannot be read refuses the whole file."""
    return history_of(read_table(Path(path)), strict=True).history


def history_of(table: Table, *, strict: bool = False) -> ImportedRuns:
    """Return the runs of a table that was read; if not ``strict``, bad rows are reported and left
    out.
    """
    unknown = [column for column in table.header if column not in COLUMNS]
    missing = [column for column in NEEDED if column not in table.header]
    if unknown or missing:
        allowed = f"also {missing[0]}" if missing else f"only {', '.join(COLUMNS)}"
        raise InvalidInput(f"columns of {table.file}", unknown or list(table.header), allowed)
    return table.observed(_observation, strict=strict, own=True)


def write_history(path: Path | str, history: Iterable[Observation]) -> None:
    """Write all observations to a CSV file, which appears complete or not at all."""
    target = output_file("history", path)
    with (
        whole_file(target, "history") as draft,
        draft.open("w", encoding="utf-8", newline="") as file,
    ):
        plain = csv.writer(file, lineterminator="\n")
        # csv readers end a row at a lone carriage return, but csv writers do not quote it.
        quoted = csv.writer(file, lineterminator="\n", quoting=csv.QUOTE_ALL)
        plain.writerow(COLUMNS)
        for each in history:
            row = cells(each)
            (quoted if any("\r" in cell for cell in row) else plain).writerow(row)


def cells(observation: Observation) -> list[str]:
    """Return the texts of one row, in the order of ``COLUMNS``."""
    values = msgspec.to_builtins(observation)
    values |= values.pop("configuration")
    values["flags"] = ";".join(values["flags"])
    return [_cell(values[column]) for column in COLUMNS]


def _cell(value: object) -> str:
    if value is None:
        return ""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _observation(row: TableRow) -> Observation:
    """Return the observation of one row."""
    given = {column: row.text(column) for column in COLUMNS if row.has(column)}
    given |= {column: row.raw(column) for column in _TEXTS if row.raw(column)}
    for column in NEEDED:
        row.needed(column)
    configuration = _configuration({each: given.pop(each) for each in FIELDS if each in given})
    own: dict[str, object] = dict(given)
    own["flags"] = [flag for flag in given.get("flags", "").split(";") if flag]
    own["configuration"] = configuration
    own.setdefault("provenance", row.provenance)
    try:
        return msgspec.convert(own, Observation, strict=False)
    except msgspec.ValidationError as error:
        raise _invalid(error, own, Observation) from None


def _configuration(given: dict[str, str]) -> Configuration:
    gpu = gpu_name(given["gpu_model"]) or given["gpu_model"]
    values: dict[str, object] = {**given, "model": model_name(given["model"]), "gpu_model": gpu}
    try:
        configuration = msgspec.convert(values, Configuration, strict=False)
    except msgspec.ValidationError as error:
        raise _invalid(error, values, Configuration) from None
    check_counts(configuration)
    return configuration


def _invalid(
    error: msgspec.ValidationError, values: dict[str, object], record: type[msgspec.Struct]
) -> InvalidInput:
    """Return a msgspec error as ``InvalidInput``; msgspec names the place as ``$.field``."""
    message, _, place = str(error).partition(" - at `$.")
    field = place.split("[")[0].rstrip("`") or "row"
    kinds = {each.name: each.type for each in msgspec.structs.fields(record)}
    kind = kinds.get(field)
    if isinstance(kind, type) and issubclass(kind, StrEnum):
        return InvalidInput(field, values.get(field), f"one of {', '.join(kind)}")
    return InvalidInput(field, values.get(field), message.removeprefix("Expected ").split(",")[0])
