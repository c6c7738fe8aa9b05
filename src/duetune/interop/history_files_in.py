"""Files of measurements for the command line: all that is imported, and Parquet beside it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from duetune.errors import InvalidInput, MissingExtra
from duetune.files import output_file, whole_file
from duetune.interop.import_runs.recognise import import_history, imported_table, no_given
from duetune.knowledge.history_files import COLUMNS, write_history
from duetune.knowledge.text_tables import Table

if TYPE_CHECKING:
    from collections.abc import Mapping

    from duetune.knowledge.history import History
    from duetune.knowledge.text_tables import ImportedRuns

PARQUET = ".parquet"


def import_measurements(place: Path | str, given: Mapping[str, str] | None = None) -> ImportedRuns:
    """As ``import_history``; the tables it knows may be Parquet files, too."""
    path = Path(place)
    if path.suffix.casefold() != PARQUET or not path.is_file():
        return import_history(path, given)
    no_given(path, given)
    try:
        import polars as pl  # noqa: PLC0415 - an optional part, and slow to import
    except ImportError:
        raise MissingExtra("reading Parquet files", "parquet") from None
    try:
        frame = pl.read_parquet(path)
    except (pl.exceptions.PolarsError, OSError) as error:
        reason = " ".join(str(error).split())[:120]
        raise InvalidInput("history", str(path), f"a readable Parquet file ({reason})") from None
    lines = tuple(tuple(_text(cell) for cell in row) for row in frame.iter_rows())
    return imported_table(Table(path.name, tuple(frame.columns), lines))


def export_measurements(path: Path | str, history: History) -> None:
    """As ``write_history``, or as Parquet if the name ends so."""
    target = output_file("history", path)
    if Path(path).suffix.casefold() != PARQUET:
        write_history(path, history)
        return
    try:
        import polars as pl  # noqa: PLC0415 - an optional part, and slow to import
    except ImportError:
        raise MissingExtra("writing Parquet files", "parquet") from None
    rows = []
    for each in history:
        values = msgspec.to_builtins(each)
        values |= values.pop("configuration")
        rows.append({**values, "flags": ";".join(values["flags"])})
    columns = {column: [row[column] for row in rows] for column in COLUMNS}
    with whole_file(target, "history") as draft:
        pl.DataFrame(columns, strict=False).write_parquet(draft)


def _text(cell: object) -> str:
    if cell is None:
        return ""
    return str(cell).lower() if isinstance(cell, bool) else str(cell)
