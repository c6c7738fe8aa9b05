"""Every series of the data folder by family, as plain numbers per slot."""

from __future__ import annotations

import csv
from typing import TYPE_CHECKING

import msgspec
import numpy as np
from numpy.typing import NDArray

from duetune.core.market import Pool
from duetune.errors import InvalidInput
from duetune.market.datasets import (
    FORTY_FIVE_DAYS,
    data_file,
    h100_counts,
    spot_traces_slots,
    v100_paired,
)
from duetune.market.price_steps import Steps, step_grid, whole_slot_after
from duetune.market.slot_grid import pieces
from duetune.market.tabular import numbers_of, read_frame, times_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    import polars as pl

    from duetune.core.market import MarketTrace

SIX_HOURS = 6.0
LONGEST_UNSEEN_HOURS = 24.0
FEWEST_DAYS = 60
DENSE_FROM = {"shadeform": 1_762_000_000_000_000, "vast": 1_741_219_200_000_000}
RARE = 0.02
PRICES = {"on_demand_usd_gpu_h": 3.06, "spot_usd_gpu_h": 0.918}
SETS = {
    "V100 and K80, 2022": "availability/1-node/aws-10-26-2022",
    "V100 held, 7 days": "preemption/1-node/aws-04-22-2023",
    "V100, 4 nodes": "preemption/4-node/aws-08-03-2023",
    "V100, 16 nodes": "availability/16-node/aws-08-27-2023",
}


class Series(msgspec.Struct, frozen=True, eq=False):
    """One series of prices (``price``) or of availability; above zero counts as up."""

    family: str
    name: str
    values: NDArray[np.float64]
    slot_hours: float
    price: bool

    @property
    def days(self) -> float:
        return self.values.size * self.slot_hours / 24


def all_series(*, quick: bool) -> list[Series]:
    """Return all series, or for a first look one in twelve of the large families."""
    thin = 12 if quick else 1
    return [
        *_traces(),
        *_listings("verda", "spot_usd_h", "Verda, spot", 1),
        *_listings("verda", "ondemand_usd_h", "Verda, on-demand", 1),
        *_listings("shadeform", "ondemand_usd_h", "Shadeform, on-demand", thin),
        *_vast(),
        *_aws(thin),
    ]


def paired_traces() -> tuple[MarketTrace, MarketTrace]:
    """Return the two sets with their own figure: V100 with prices, and H100 counts."""
    return v100_paired(), h100_counts(slot_hours=0.5)


def _traces() -> Iterator[Series]:
    probed = spot_traces_slots(trace_set=FORTY_FIVE_DAYS, **PRICES)
    for trace in (probed, h100_counts(slot_hours=0.5)):
        for row, pool in enumerate(trace.pools):
            where = "us-east-1" if pool.zone.startswith("us-east-1") else "us-west-2"
            family = f"V100 45 days, {where}" if pool.accelerator == "V100" else "H100 counts"
            yield Series(family, pool.name, trace.available[row].astype(float), 0.5, price=False)
    for family, name in SETS.items():
        trace = spot_traces_slots(trace_set=name, **PRICES)
        for row, pool in enumerate(trace.pools):
            yield Series(family, pool.name, trace.available[row].astype(float), 0.5, price=False)


def _listings(cloud: str, column: str, family: str, thin: int) -> Iterator[Series]:
    """Return 1 while a listing has that price, for listings that come and go."""
    names = ("instance_type", "region", "zone")
    columns = ("cloud", *names, "ts", column)
    frame = read_frame(data_file("market_listing_events.parquet"), columns)
    frame = frame.filter(frame.get_column("cloud") == cloud).sort("ts")
    frame = frame.with_columns(frame.get_column("zone").fill_null(""))
    last = int(times_of(frame, "ts").max())
    groups = sorted(frame.group_by(*names), key=lambda item: tuple(map(str, item[0])))
    for key, part in groups[::thin]:
        begin = whole_slot_after(
            max(int(times_of(part, "ts")[0]), DENSE_FROM.get(cloud, 0)), SIX_HOURS
        )
        starts = np.arange(begin, last, round(SIX_HOURS * 3.6e9))
        if starts.size * SIX_HOURS < 24 * FEWEST_DAYS:
            continue
        event = np.searchsorted(times_of(part, "ts"), starts, side="right") - 1
        there = np.isfinite(numbers_of(part, column))[event].astype(float)
        if RARE < there.mean() < 1 - RARE:
            yield Series(family, "/".join(map(str, key)), there, SIX_HOURS, price=False)


def _vast() -> Iterator[Series]:
    columns = ("cloud", "accelerator", "ts", "n_listings", "od_min_usd_gpu_h", "spot_min_usd_gpu_h")
    frame = read_frame(data_file("gpu_market_by_type.parquet"), columns)
    frame = frame.filter(frame.get_column("cloud") == "vast").sort("ts")
    for kind, part in sorted(frame.group_by("accelerator"), key=lambda item: str(item[0])):
        dense = times_of(part, "ts") >= DENSE_FROM["vast"]
        looks = times_of(part, "ts")[dense]
        for column, family in (
            ("n_listings", "Vast, listings"),
            ("od_min_usd_gpu_h", "Vast, lowest asking price"),
            ("spot_min_usd_gpu_h", "Vast, lowest bid"),
        ):
            values = numbers_of(part, column)[dense]
            shortest = 40 if column.startswith("spot") else FEWEST_DAYS
            for number, piece in enumerate(_pieces(looks, values, looks, shortest)):
                yield Series(
                    family, f"{kind[0]} {number}", piece, SIX_HOURS, price=column != "n_listings"
                )


def _aws(thin: int) -> Iterator[Series]:
    """Return spot prices, cut where nothing was collected for a day or there was no price."""
    columns = ("series_id", "ts", "spot_usd_h")
    frame = read_frame(data_file("aws_gpu_spot_events.parquet"), columns)
    looks = np.unique(times_of(frame, "ts"))
    with data_file("aws_gpu_series.csv").open(encoding="utf-8", newline="") as file:
        kinds = {row["series_id"]: row["accelerator"] for row in csv.DictReader(file)}
    parts: dict[str, pl.DataFrame] = {
        str(key[0]): part for key, part in frame.sort("series_id", "ts").group_by("series_id")
    }
    for name in sorted(parts)[::thin]:
        part = parts[name]
        found = _pieces(times_of(part, "ts"), numbers_of(part, "spot_usd_h"), looks, FEWEST_DAYS)
        for number, piece in enumerate(found):
            yield Series(f"AWS, {kinds[name]}", f"{name} {number}", piece, SIX_HOURS, price=True)


def _pieces(
    times: NDArray[np.int64],
    values: NDArray[np.float64],
    looks: NDArray[np.int64],
    shortest_days: float,
) -> list[NDArray[np.float64]]:
    """Return the value at the start of each six hours, in unbroken stretches."""
    steps = Steps(times, values, np.ones(times.size), np.zeros(times.size, np.int64), looks)
    first = whole_slot_after(int(times[0]), SIX_HOURS)
    if looks[-1] - first < SIX_HOURS * 3.6e9:
        return []
    grid = step_grid(
        (Pool("default"),), [steps], first, int(looks[-1]), SIX_HOURS, LONGEST_UNSEEN_HOURS
    )
    try:
        found = pieces(grid, name="series")
    except InvalidInput:
        return []
    # A trace has prices per slot; a series has them per hour.
    return [
        each.spot_price[0] / SIX_HOURS
        for each in found
        if each.slots * SIX_HOURS >= 24 * shortest_days
    ]
