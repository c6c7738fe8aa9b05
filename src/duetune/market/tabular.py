"""duetune's own table of a market, as CSV or Parquet: one row per pool and slot.

Required columns: ``time`` (ISO-8601 with zone), ``spot_usd_gpu_h``, ``on_demand_usd_gpu_h``,
``available`` (GPUs; empty if nobody counted them). Optional columns: ``pool``, ``accelerator``,
``zone``, ``slot_hours``, ``basis`` ("at least" if the count is a lower bound).

The functions that use polars, an optional dependency, are here too; data sets use them as well.
"""

from __future__ import annotations

import csv
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from duetune.core.market import MarketTrace, Pool
from duetune.errors import InvalidInput, MissingExtra
from duetune.market.slot_grid import (
    EPOCH,
    MICROSECONDS_PER_HOUR,
    GridObservations,
    microseconds,
    parse_moment,
    written,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path

    import polars as pl
    from numpy.typing import NDArray


def read_frame(path: Path, columns: Sequence[str] | None = None) -> pl.DataFrame:
    """Return a Parquet file as a data frame; refuse it if one of ``columns`` is missing."""
    try:
        import polars as pl  # noqa: PLC0415  optional, and slow to import
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
    """Write columns, one of which is ``time``, as a Parquet file."""
    try:
        import polars as pl  # noqa: PLC0415  optional, and slow to import
    except ImportError:
        raise MissingExtra("writing Parquet files", "parquet") from None
    pl.DataFrame(columns).with_columns(pl.col("time").cast(pl.Datetime("us", "UTC"))).write_parquet(
        path
    )


def times_of(frame: pl.DataFrame, column: str) -> NDArray[np.int64]:
    """Return a column of times with a zone, as microseconds since 1970."""
    values = frame.get_column(column)
    zone = getattr(values.dtype, "time_zone", None)
    if zone is None:
        raise InvalidInput(column, str(values.dtype), "times with a time zone")
    missing = np.flatnonzero(values.is_null().to_numpy())
    if missing.size:
        raise InvalidInput(f"{column} in row {int(missing[0]) + 1}", None, "a time")
    return values.dt.epoch("us").to_numpy().astype(np.int64)


def numbers_of(frame: pl.DataFrame, column: str) -> NDArray[np.float64]:
    """Return a column of numbers; a missing number is NaN."""
    values = frame.get_column(column)
    if values.null_count() == len(values):
        return np.full(len(values), np.nan)
    if not values.dtype.is_numeric():
        raise InvalidInput(column, str(values.dtype), "a column of numbers")
    return values.to_numpy().astype(np.float64)


def texts_of(frame: pl.DataFrame, column: str) -> list[str]:
    """Return a column as text; a missing value is empty."""
    return ["" if value is None else str(value) for value in frame.get_column(column)]


COLUMNS = (
    "time",
    "pool",
    "accelerator",
    "zone",
    "spot_usd_gpu_h",
    "on_demand_usd_gpu_h",
    "available",
    "slot_hours",
)
AT_LEAST = "at least"
"""The ``basis`` of a count that is a lower bound, such as the GPUs that jobs were granted."""
_PLACES = ("pool", "accelerator", "zone", "basis")
_PLAIN = Pool("default")


class Constants(msgspec.Struct, frozen=True):
    """Values that the caller gives instead of a column, or to replace it."""

    spot_usd_gpu_h: float | None = None
    on_demand_usd_gpu_h: float | None = None
    available: int | None = None

    def stands_for(self, column: str) -> bool:
        """Return whether the caller gave a value for this column."""
        return column in self.__struct_fields__ and getattr(self, column) is not None

    def fill(self, column: str, rows: int) -> NDArray[np.float64]:
        """Return the given value as a column of so many rows."""
        return np.full(rows, getattr(self, column), dtype=np.float64)


def read_csv(path: Path, constants: Constants) -> tuple[GridObservations, float | None]:
    """Return the rows of a CSV file, and the slot length if the file states it."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(file, strict=True)
            header = [name.strip() for name in next(reader, [])]
            rows = [row for row in reader if row]
    except (csv.Error, UnicodeDecodeError, OSError) as error:
        raise InvalidInput("trace file", str(path), f"a readable CSV file ({error})") from None
    _require(header, constants, path.name)
    if not rows:
        raise InvalidInput("trace file", str(path), "at least one row; this file has none")
    for number, row in enumerate(rows, start=1):
        if len(row) != len(header):
            where = f"row {number} of {path.name}"
            raise InvalidInput(where, f"{len(row)} fields", f"{len(header)}, as in the header")
    table = dict(zip(header, zip(*rows, strict=True), strict=True))
    labels = [table.get(column, ("",) * len(rows)) for column in _PLACES]
    return _read(
        _moments(table["time"]), labels, header, constants, lambda column: _numbers(table, column)
    )


def read_parquet(path: Path, constants: Constants) -> tuple[GridObservations, float | None]:
    """Return the rows of a Parquet file, and the slot length if the file states it."""
    frame = read_frame(path)
    _require(frame.columns, constants, path.name)
    if not frame.height:
        raise InvalidInput("trace file", str(path), "at least one row; this file has none")

    times = frame.get_column("time")
    labels = [
        texts_of(frame, column) if column in frame.columns else [""] * frame.height
        for column in _PLACES
    ]
    return _read(
        _moments(times) if str(times.dtype) == "String" else times_of(frame, "time"),
        labels,
        frame.columns,
        constants,
        lambda column: numbers_of(frame, column),
    )


def _read(
    times: NDArray[np.int64],
    labels: Sequence[Sequence[str]],
    columns: Sequence[str],
    constants: Constants,
    column_of: Callable[[str], NDArray[np.float64]],
) -> tuple[GridObservations, float | None]:
    """Return observations and slot length; ``column_of`` reads one column of numbers."""

    def numbers(column: str) -> NDArray[np.float64]:
        if constants.stands_for(column):
            return constants.fill(column, times.size)
        return column_of(column)

    values = (numbers(column) for column in ("spot_usd_gpu_h", "on_demand_usd_gpu_h", "available"))
    observations = _observations(times, list(zip(*labels, strict=True)), *values)
    return observations, _stated(numbers("slot_hours") if "slot_hours" in columns else None)


def _moments(texts: Iterable[str]) -> NDArray[np.int64]:
    """Return written times as microseconds; an error names the row."""
    rows = enumerate(texts, start=1)
    times = [parse_moment(text, f"time in row {number}") for number, text in rows]
    return np.array(times, dtype=np.int64)


def write_csv(trace: MarketTrace, path: Path) -> None:
    """Write a trace as CSV; called by ``traces.save_trace``."""
    times = [written(time) for time in _times(trace)]
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        for row, pool in enumerate(trace.pools):
            place = (pool.name, pool.accelerator, pool.zone)
            spot = per_hour(trace.spot_price[row], trace.slot_hours).tolist()
            on_demand = per_hour(trace.on_demand_price[row], trace.slot_hours).tolist()
            available = trace.available[row].tolist()
            for time, *values in zip(times, spot, on_demand, available, strict=True):
                writer.writerow((time, *place, *values, trace.slot_hours))


def write_parquet(trace: MarketTrace, path: Path) -> None:
    """Write a trace as Parquet; called by ``traces.save_trace``."""
    shape = trace.spot_price.shape
    times = np.broadcast_to(np.array(_times(trace), dtype=np.int64), shape)
    columns = {
        "time": times.ravel(),
        "pool": [pool.name for pool in trace.pools for _ in range(trace.slots)],
        "accelerator": [pool.accelerator for pool in trace.pools for _ in range(trace.slots)],
        "zone": [pool.zone for pool in trace.pools for _ in range(trace.slots)],
        "spot_usd_gpu_h": per_hour(trace.spot_price, trace.slot_hours).ravel(),
        "on_demand_usd_gpu_h": per_hour(trace.on_demand_price, trace.slot_hours).ravel(),
        "available": trace.available.ravel(),
        "slot_hours": np.full(times.size, trace.slot_hours),
    }
    write_frame(path, columns)


def per_hour(per_slot: NDArray[np.float64], slot_hours: float) -> NDArray[np.float64]:
    """Return prices per hour that give exactly ``per_slot`` when multiplied by ``slot_hours``.

    Division alone is sometimes off by a bit. If the price came from a price per hour, a neighbour
    within two bits is exact.
    """
    hourly = per_slot / slot_hours
    for direction in (np.inf, 0.0):
        neighbour = hourly
        for _ in range(2):
            neighbour = np.nextafter(neighbour, direction)
            better = (hourly * slot_hours != per_slot) & (neighbour * slot_hours == per_slot)
            hourly = np.where(better, neighbour, hourly)
    return hourly


def _times(trace: MarketTrace) -> list[int]:
    # A trace without a start is written from 1970 on; the reader takes 1970 for "no start".
    origin = microseconds(trace.start or EPOCH)
    slot = trace.slot_hours * MICROSECONDS_PER_HOUR
    return [origin + round(index * slot) for index in range(trace.slots)]


def _require(header: Sequence[str], constants: Constants, name: str) -> None:
    """Refuse a table with a missing or repeated column."""
    if len(set(header)) != len(header):
        raise InvalidInput(f"columns of {name}", list(header), "different names")
    needed = ("time", "spot_usd_gpu_h", "on_demand_usd_gpu_h", "available")
    missing = [
        column for column in needed if column not in header and not constants.stands_for(column)
    ]
    if missing:
        raise InvalidInput(f"columns of {name}", list(header), f"also {', '.join(missing)}")


def _numbers(table: Mapping[str, Sequence[str]], column: str) -> NDArray[np.float64]:
    values = np.empty(len(table[column]))
    for index, text in enumerate(table[column]):
        try:
            unknown = column == "available" and not text.strip()
            values[index] = float("nan" if unknown else text)
        except ValueError:
            raise InvalidInput(f"{column} in row {index + 1}", text, "a number") from None
    return values


def _stated(slot_hours: NDArray[np.float64] | None) -> float | None:
    """Return the one slot length of a file, or refuse a file with several."""
    if slot_hours is None:
        return None
    other = np.flatnonzero(slot_hours != slot_hours[0])
    if other.size:
        where = f"slot_hours in row {int(other[0]) + 1}"
        raise InvalidInput(where, slot_hours[other[0]].item(), "one value in the whole file")
    return float(slot_hours[0])


def _observations(
    times: NDArray[np.int64],
    places: list[tuple[str, ...]],
    spot: NDArray[np.float64],
    on_demand: NDArray[np.float64],
    available: NDArray[np.float64],
) -> GridObservations:
    """Return the rows as observations; refuse counts that are not whole and pools that change."""
    counted = ~np.isnan(available)
    fractions = np.flatnonzero(counted & ~(available == np.rint(available)) | np.isinf(available))
    if fractions.size:
        row = int(fractions[0])
        where = f"available in row {row + 1} ({written(times[row])})"
        raise InvalidInput(where, available[row].item(), "a whole number of GPUs")
    pools: dict[str, Pool] = {}
    index: dict[str, int] = {}
    rows = np.empty(len(places), dtype=np.int64)
    for number, (name, accelerator, zone, _) in enumerate(places):
        pool = Pool(name or _PLAIN.name, accelerator or _PLAIN.accelerator, zone)
        known = pools.setdefault(pool.name, pool)
        if known != pool:
            where = f"pool {pool.name!r} in row {number + 1}"
            raise InvalidInput(where, (accelerator, zone), "the same accelerator and zone always")
        rows[number] = index.setdefault(pool.name, len(index))
    return GridObservations(
        times,
        rows,
        tuple(pools.values()),
        spot,
        on_demand,
        np.where(counted, available, 0).astype(np.int64),
        counted,
        np.array([basis.strip() == AT_LEAST for *_, basis in places], dtype=np.bool_),
    )
