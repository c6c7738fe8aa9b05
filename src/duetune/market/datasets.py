"""Measured availability, from the tables of the project's data folder.

The folder is ``shared/data`` beside the repository, or the one that ``DUETUNE_DATA`` names. It is
not part of duetune. Its README says where each table comes from and what it can and cannot show.
Published prices are in ``catalog``.
"""

from __future__ import annotations

import csv
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from duetune.core.market import MarketTrace, Pool
from duetune.errors import InvalidInput, NotFound
from duetune.market.resample import Availability, availability_named, resample
from duetune.market.slot_grid import EPOCH, Gaps, GridObservations, microseconds, one_trace, place
from duetune.market.tabular import numbers_of, read_frame, texts_of, times_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    import polars as pl
    from numpy.typing import NDArray

FORTY_FIVE_DAYS = "availability/1-node/aws-02-15-2023"
_COUNTS = {
    Availability.MIN: "avail_min",
    Availability.START: "avail_start",
    Availability.MEAN: "avail_mean",
}


def data_folder() -> Path:
    """Return the folder of the tables, whether or not it exists."""
    given = os.environ.get("DUETUNE_DATA")
    return Path(given) if given else Path(__file__).parents[4] / "shared" / "data"


def data_file(name: str) -> Path:
    """Return the path of a table, or raise NotFound with the folder that was searched."""
    path = data_folder() / name
    if not path.is_file():
        raise NotFound("data file", name, f"DUETUNE_DATA names the folder, now {data_folder()}")
    return path


def h100_counts(
    *,
    zones: Sequence[str] | None = None,
    slot_hours: float | None = None,
    availability: Availability | str = Availability.MIN,
    gaps: Gaps | str = Gaps.HOLD,
    max_hold_hours: float = 2.0,
) -> MarketTrace:
    """Return H100 spot at GCP, October 2025: how many of 16 GPUs each of nine zones gave.

    Slots are 10 minutes unless ``slot_hours`` is given. Prices are list prices. The one gap, of 110
    minutes, is held by default.
    """
    columns = ("zone", "ts", "available", "spot_usd_gpu_h", "ondemand_usd_gpu_h")
    frame = read_frame(data_file("h100_counts.parquet"), columns).sort("zone", "ts")
    names = texts_of(frame, "zone")
    chosen = select("zones", zones, names)
    frame = frame.filter(frame.get_column("zone").is_in(chosen))
    names = texts_of(frame, "zone")
    observations = GridObservations(
        times=times_of(frame, "ts"),
        pool_index=np.array([chosen.index(zone) for zone in names], dtype=np.int64),
        pools=tuple(Pool(zone, "H100", zone) for zone in chosen),
        spot_usd_gpu_h=numbers_of(frame, "spot_usd_gpu_h"),
        on_demand_usd_gpu_h=numbers_of(frame, "ondemand_usd_gpu_h"),
        available=numbers_of(frame, "available").astype(np.int64),
    )
    grid = place(observations)
    trace = one_trace(grid, gaps=gaps, max_hold_hours=max_hold_hours, name="h100-counts")
    return resample(trace, slot_hours, availability=availability)


def v100_paired(
    *,
    trace_set: str = FORTY_FIVE_DAYS,
    zones: Sequence[str] | None = None,
    availability: Availability | str = Availability.MIN,
) -> MarketTrace:
    """Return V100 spot at AWS in 2023, in 30-minute slots, with the AWS spot price of the time.

    The clock is correct to about a day, and some zones are matched to prices by assumption.
    """
    counts = _COUNTS[availability_named(availability)]
    columns = ("trace_id", "zone", "slot", "ts_assumed", counts, "spot_usd_h", "ondemand_usd_h")
    frame = read_frame(data_file("v100_2023_paired_slots.parquet"), columns)
    frame = frame.sort("trace_id", "slot")
    known = texts_of(frame, "trace_id")
    chosen = _traces_of(trace_set, zones, known)
    frame = frame.filter(frame.get_column("trace_id").is_in(chosen))
    names = texts_of(frame, "trace_id")
    observations = GridObservations(
        times=times_of(frame, "ts_assumed"),
        pool_index=np.array([chosen.index(name) for name in names], dtype=np.int64),
        pools=tuple(Pool(zone_of(name), "V100", zone_of(name)) for name in chosen),
        spot_usd_gpu_h=numbers_of(frame, "spot_usd_h"),
        on_demand_usd_gpu_h=numbers_of(frame, "ondemand_usd_h"),
        available=np.floor(numbers_of(frame, counts)).astype(np.int64),
    )
    grid = place(observations, 0.5)
    return one_trace(grid, gaps=Gaps.ERROR, max_hold_hours=0.0, name=trace_set)


def spot_traces_slots(
    *,
    on_demand_usd_gpu_h: float,
    spot_usd_gpu_h: float | None = None,
    trace_set: str = FORTY_FIVE_DAYS,
    zones: Sequence[str] | None = None,
    accelerator: str | None = None,
    slot_hours: float = 0.5,
    availability: Availability | str = Availability.MIN,
) -> MarketTrace:
    """Return a spot-traces set in slots of 0.5 or 1 h.

    Most sets have no prices, so the caller gives them.
    """
    if slot_hours not in {0.5, 1.0}:
        raise InvalidInput("slot_hours", slot_hours, "0.5 or 1; spot_traces_ticks has the rest")
    counts = _COUNTS[availability_named(availability)]
    columns = ("trace_id", "slot_seconds", "slot", counts, "spot_usd_h")
    frame = read_frame(data_file("spot_traces_slots.parquet"), columns)
    frame = frame.filter(frame.get_column("slot_seconds") == round(slot_hours * 3600))
    chosen = _series(trace_set, zones, accelerator)
    rows = _rows(frame, chosen, "slot", counts)
    return _joined(chosen, rows, slot_hours, spot_usd_gpu_h, on_demand_usd_gpu_h)


def spot_traces_ticks(
    *,
    on_demand_usd_gpu_h: float,
    spot_usd_gpu_h: float | None = None,
    trace_set: str = FORTY_FIVE_DAYS,
    zones: Sequence[str] | None = None,
    accelerator: str | None = None,
    slot_hours: float | None = None,
    availability: Availability | str = Availability.MIN,
) -> MarketTrace:
    """Return a spot-traces set at its own ticks of 30 to 600 s, or resampled to any slot."""
    columns = ("trace_id", "tick", "available_nodes", "spot_usd_h")
    frame = read_frame(data_file("spot_traces_ticks.parquet"), columns)
    chosen = _series(trace_set, zones, accelerator)
    rows = _rows(frame, chosen, "tick", "available_nodes")
    tick_hours = chosen[0].gap_seconds / 3600
    trace = _joined(chosen, rows, tick_hours, spot_usd_gpu_h, on_demand_usd_gpu_h)
    return resample(trace, slot_hours, availability=availability)


def spot_trace_sets() -> tuple[str, ...]:
    """Return the names that ``trace_set`` can have."""
    return tuple(dict.fromkeys(series.trace_set for series in _all_series()))


class _Series(msgspec.Struct, frozen=True):
    trace_id: str
    trace_set: str
    zone: str
    accelerator: str
    gpus_per_node: int
    gap_seconds: int
    start: datetime


def _all_series() -> list[_Series]:
    with data_file("spot_traces_series.csv").open(encoding="utf-8", newline="") as file:
        return [
            _Series(
                trace_id=row["trace_id"],
                trace_set=row["trace_set"],
                zone=row["zone"],
                accelerator=row["accelerator"] or "CPU",
                # A machine without GPUs counts as one unit.
                gpus_per_node=max(1, int(row["gpus_per_node"])),
                gap_seconds=int(row["gap_seconds"]),
                start=datetime.fromisoformat(row["start_utc"] or row["start_date"]).replace(
                    tzinfo=UTC
                ),
            )
            for row in csv.DictReader(file)
        ]


def _series(trace_set: str, zones: Sequence[str] | None, accelerator: str | None) -> list[_Series]:
    """Return the chosen series of a set; all must start at the same time."""
    everything = _all_series()
    select("trace_set", [trace_set], [series.trace_set for series in everything])
    inside = [series for series in everything if series.trace_set == trace_set]
    if accelerator is not None:
        select("accelerator", [accelerator], [series.accelerator for series in inside])
        inside = [series for series in inside if series.accelerator == accelerator]
    wanted = select("zones", zones, [series.zone for series in inside])
    chosen = [series for series in inside if series.zone in wanted]
    if len({(series.start, series.gap_seconds) for series in chosen}) != 1:
        starts = sorted({series.start.isoformat() for series in chosen})
        raise InvalidInput("zones", wanted, f"zones with one start time, not {starts}")
    return chosen


def _rows(
    frame: pl.DataFrame, chosen: list[_Series], order: str, counts: str
) -> list[tuple[NDArray[np.float64], NDArray[np.float64]]]:
    """Return counts and prices of each series, in order of time."""
    rows = []
    for series in chosen:
        part = frame.filter(frame.get_column("trace_id") == series.trace_id).sort(order)
        rows.append((numbers_of(part, counts), numbers_of(part, "spot_usd_h")))
    return rows


def _joined(
    chosen: list[_Series],
    rows: list[tuple[NDArray[np.float64], NDArray[np.float64]]],
    slot_hours: float,
    spot_usd_gpu_h: float | None,
    on_demand_usd_gpu_h: float,
) -> MarketTrace:
    """Return the series as one trace with a pool for each."""
    slots = min(counts.size for counts, _ in rows)
    spot, available = np.empty((len(rows), slots)), np.empty((len(rows), slots), dtype=np.int64)
    for index, (series, (counts, price)) in enumerate(zip(chosen, rows, strict=True)):
        available[index] = np.floor(counts[:slots]) * series.gpus_per_node
        if spot_usd_gpu_h is not None:
            spot[index] = spot_usd_gpu_h
        elif np.isnan(price[:slots]).any():
            raise InvalidInput("spot_usd_gpu_h", None, f"a price: {series.trace_id} has none")
        else:
            spot[index] = price[:slots] / series.gpus_per_node
    return MarketTrace(
        spot_price=spot * slot_hours,
        available=available,
        on_demand_price=np.full(spot.shape, on_demand_usd_gpu_h * slot_hours),
        slot_hours=slot_hours,
        pools=tuple(
            Pool(series.trace_id.rsplit("/", 1)[1], series.accelerator, series.zone)
            for series in chosen
        ),
        start=None if microseconds(chosen[0].start) == microseconds(EPOCH) else chosen[0].start,
        name=chosen[0].trace_set,
    )


def _traces_of(trace_set: str, zones: Sequence[str] | None, known: list[str]) -> list[str]:
    everything = sorted(set(known))
    select("trace_set", [trace_set], [name.rsplit("/", 1)[0] for name in everything])
    inside = [name for name in everything if name.rsplit("/", 1)[0] == trace_set]
    wanted = select("zones", zones, [zone_of(name) for name in inside])
    return [name for name in inside if zone_of(name) in wanted]


def zone_of(trace_id: str) -> str:
    """Return the zone that a trace's name begins with."""
    return trace_id.rsplit("/", 1)[1].split("_", 1)[0]


def select(field: str, wanted: Sequence[str] | None, known: Sequence[str]) -> list[str]:
    """Return the wanted names, or all known ones if none are given; refuse unknown names."""
    everything = sorted(set(known))
    if wanted is None:
        return everything
    unknown = [name for name in wanted if name not in everything]
    if unknown or not wanted:
        raise InvalidInput(field, unknown or list(wanted), f"some of {', '.join(everything)}")
    return list(dict.fromkeys(wanted))
