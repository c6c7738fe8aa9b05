"""duetune's own table of a market, as CSV or Parquet: one row per pool and slot.

``time`` (ISO-8601 with zone), ``spot_usd_gpu_h``, ``on_demand_usd_gpu_h``, ``available`` (GPUs);
optional: ``pool``, ``accelerator``, ``zone``, ``slot_hours``.
"""

from __future__ import annotations

import csv
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from duetune.core.market import MarketTrace, Pool
from duetune.errors import InvalidInput
from duetune.market import frames
from duetune.market.slot_grid import GridObservations
from duetune.market.timestamps import (
    EPOCH,
    MICROSECONDS_PER_HOUR,
    microseconds,
    parse_moment,
    written,
)

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from numpy.typing import NDArray

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
_PLACES = ("pool", "accelerator", "zone")
_PLAIN = Pool("default")


class Constants(msgspec.Struct, frozen=True):
    """What the caller gives instead of a column, or in place of it."""

    spot_usd_gpu_h: float | None = None
    on_demand_usd_gpu_h: float | None = None
    available: int | None = None

    def stands_for(self, column: str) -> bool:
        return column in self.__struct_fields__ and getattr(self, column) is not None

    def fill(self, column: str, rows: int) -> NDArray[np.float64]:
        return np.full(rows, getattr(self, column), dtype=np.float64)


def read_csv(path: Path, constants: Constants) -> tuple[GridObservations, float | None]:
    """The rows, and the slot length where the file states it."""
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

    def numbers(column: str) -> NDArray[np.float64]:
        if constants.stands_for(column):
            return constants.fill(column, len(rows))
        return _numbers(table[column], column)

    times = [
        parse_moment(text, f"time in row {number}")
        for number, text in enumerate(table["time"], start=1)
    ]
    labels = [table.get(column, ("",) * len(rows)) for column in _PLACES]
    return _observations(
        np.array(times, dtype=np.int64),
        list(zip(*labels, strict=True)),
        numbers("spot_usd_gpu_h"),
        numbers("on_demand_usd_gpu_h"),
        numbers("available"),
    ), _stated(numbers("slot_hours") if "slot_hours" in table else None)


def read_parquet(path: Path, constants: Constants) -> tuple[GridObservations, float | None]:
    """The rows, and the slot length where the file states it."""
    frame = frames.read_frame(path)
    _require(frame.columns, constants, path.name)
    if not frame.height:
        raise InvalidInput("trace file", str(path), "at least one row; this file has none")

    def numbers(column: str) -> NDArray[np.float64]:
        if constants.stands_for(column):
            return constants.fill(column, frame.height)
        return frames.numbers_of(frame, column)

    if str(frame.schema["time"]) == "String":
        times = np.array(
            [
                parse_moment(text, f"time in row {number}")
                for number, text in enumerate(frame.get_column("time"), start=1)
            ],
            dtype=np.int64,
        )
    else:
        times = frames.times_of(frame, "time")
    labels = [
        frames.texts_of(frame, column) if column in frame.columns else [""] * frame.height
        for column in _PLACES
    ]
    return _observations(
        times,
        list(zip(*labels, strict=True)),
        numbers("spot_usd_gpu_h"),
        numbers("on_demand_usd_gpu_h"),
        numbers("available"),
    ), _stated(numbers("slot_hours") if "slot_hours" in frame.columns else None)


def write_csv(trace: MarketTrace, path: Path) -> None:
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
    frames.write_frame(path, columns)


def per_hour(per_slot: NDArray[np.float64], slot_hours: float) -> NDArray[np.float64]:
    """Prices per hour that give back exactly ``per_slot`` when multiplied by ``slot_hours``.

    Division alone is off by a bit now and then; a neighbour within two bits makes up for it
    wherever the price came from a price per hour.
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
    # A trace without a start is written from 1970 on, and read back as one without.
    origin = microseconds(trace.start or EPOCH)
    slot = trace.slot_hours * MICROSECONDS_PER_HOUR
    return [origin + round(index * slot) for index in range(trace.slots)]


def _require(header: Sequence[str], constants: Constants, name: str) -> None:
    if len(set(header)) != len(header):
        raise InvalidInput(f"columns of {name}", list(header), "different names")
    needed = ("time", "spot_usd_gpu_h", "on_demand_usd_gpu_h", "available")
    missing = [
        column for column in needed if column not in header and not constants.stands_for(column)
    ]
    if missing:
        raise InvalidInput(f"columns of {name}", list(header), f"also {', '.join(missing)}")


def _numbers(texts: Sequence[str], column: str) -> NDArray[np.float64]:
    values = np.empty(len(texts))
    for index, text in enumerate(texts):
        try:
            values[index] = float(text)
        except ValueError:
            raise InvalidInput(f"{column} in row {index + 1}", text, "a number") from None
    return values


def _stated(slot_hours: NDArray[np.float64] | None) -> float | None:
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
    fractions = np.flatnonzero(~np.isfinite(available) | (available != np.rint(available)))
    if fractions.size:
        row = int(fractions[0])
        where = f"available in row {row + 1} ({written(times[row])})"
        raise InvalidInput(where, available[row].item(), "a whole number of GPUs")
    pools: dict[str, Pool] = {}
    index: dict[str, int] = {}
    rows = np.empty(len(places), dtype=np.int64)
    for number, (name, accelerator, zone) in enumerate(places):
        pool = Pool(name or _PLAIN.name, accelerator or _PLAIN.accelerator, zone)
        known = pools.setdefault(pool.name, pool)
        if known != pool:
            where = f"pool {pool.name!r} in row {number + 1}"
            raise InvalidInput(where, (accelerator, zone), "the same accelerator and zone always")
        rows[number] = index.setdefault(pool.name, len(index))
    return GridObservations(
        times, rows, tuple(pools.values()), spot, on_demand, available.astype(np.int64)
    )
