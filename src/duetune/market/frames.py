"""The one door to polars, which is an optional part."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from duetune.errors import InvalidInput, MissingExtra

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    import polars as pl
    from numpy.typing import NDArray


def read_frame(path: Path, columns: Sequence[str] | None = None) -> pl.DataFrame:
    """A Parquet file; with ``columns``, only those, all of which must be there."""
    try:
        import polars as pl  # noqa: PLC0415  an optional part, and slow to import
    except ImportError:
        raise MissingExtra("reading Parquet files", "parquet") from None
    try:
        present = pl.read_parquet_schema(path)
        missing = [column for column in columns or () if column not in present]
        if missing:
            raise InvalidInput(f"columns of {path.name}", list(present), ", ".join(missing))
        return pl.read_parquet(path, columns=list(columns) if columns else None)
    except (pl.exceptions.PolarsError, OSError) as error:
        reason = " ".join(str(error).split())[:120]
        raise InvalidInput("trace file", str(path), f"a readable Parquet file ({reason})") from None


def write_frame(path: Path, columns: Mapping[str, object]) -> None:
    try:
        import polars as pl  # noqa: PLC0415  an optional part, and slow to import
    except ImportError:
        raise MissingExtra("writing Parquet files", "parquet") from None
    pl.DataFrame(columns).with_columns(pl.col("time").cast(pl.Datetime("us", "UTC"))).write_parquet(
        path
    )


def times_of(frame: pl.DataFrame, column: str) -> NDArray[np.int64]:
    """A column of times with a zone, as microseconds since 1970."""
    values = frame.get_column(column)
    zone = getattr(values.dtype, "time_zone", None)
    if zone is None:
        raise InvalidInput(column, str(values.dtype), "times with a time zone")
    missing = np.flatnonzero(values.is_null().to_numpy())
    if missing.size:
        raise InvalidInput(f"{column} in row {int(missing[0]) + 1}", None, "a time")
    return values.dt.epoch("us").to_numpy().astype(np.int64)


def numbers_of(frame: pl.DataFrame, column: str) -> NDArray[np.float64]:
    """A column of numbers; what is missing is NaN."""
    values = frame.get_column(column)
    if values.null_count() == len(values):
        return np.full(len(values), np.nan)
    if not values.dtype.is_numeric():
        raise InvalidInput(column, str(values.dtype), "a column of numbers")
    return values.to_numpy().astype(np.float64)


def texts_of(frame: pl.DataFrame, column: str) -> list[str]:
    return ["" if value is None else str(value) for value in frame.get_column(column)]
