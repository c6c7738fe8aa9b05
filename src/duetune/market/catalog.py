"""Published prices and listings, from the catalog tables of the project's data folder.

All tables are events or snapshots, about every six hours. A slot has the values in force when it
began. Stretches without a look for longer than ``max_hold_hours`` are gaps.
"""

from __future__ import annotations

import csv
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from duetune.core.market import MarketTrace, Pool
from duetune.errors import InvalidInput
from duetune.market.datasets import data_file, select
from duetune.market.price_steps import Steps, step_grid, time_range
from duetune.market.resample import with_availability
from duetune.market.slot_grid import Gaps, one_trace
from duetune.market.tabular import numbers_of, read_frame, texts_of, times_of

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    import polars as pl
    from numpy.typing import NDArray

# Two early snapshots follow other rules and cannot be compared (README of the data folder).
_VAST_DENSE_FROM = 1_741_219_200_000_000  # 2025-03-06


class _Series(msgspec.Struct, frozen=True):
    series_id: str
    instance_type: str
    accelerator: str
    gpus: int
    zone: str


def aws_spot_prices(
    *,
    available: int | MarketTrace,
    accelerator: str | None = None,
    instance_type: str | None = None,
    zones: Sequence[str] | None = None,
    on_demand_usd_gpu_h: float | None = None,
    start: datetime | None = None,
    stop: datetime | None = None,
    slot_hours: float = 0.5,
    gaps: Gaps | str = Gaps.LONGEST,
    max_hold_hours: float = 24.0,
) -> MarketTrace:
    """Return AWS spot prices per GPU, one pool for each instance type and zone id, 2022 to 2026.

    A price is not capacity: ``available`` is a number of GPUs or the counts of another trace. The
    default is the longest stretch in which every pool has a price and the collector ran. No value
    is carried across the 103 days of 2026 without observations.
    """
    if accelerator is None and instance_type is None:
        raise InvalidInput("accelerator", None, "an accelerator or an instance_type")
    chosen = _aws_series(accelerator, instance_type, zones)
    columns = ("series_id", "ts", "ondemand_usd_h", "spot_usd_h")
    frame = read_frame(data_file("aws_gpu_spot_events.parquet"), columns)
    looks = np.unique(times_of(frame, "ts"))
    names = [series.series_id for series in chosen]
    frame = frame.filter(frame.get_column("series_id").is_in(names)).sort("series_id", "ts")
    parts = {str(key[0]): part for key, part in frame.group_by("series_id")}
    steps = [
        _aws_steps(parts[series.series_id], series, looks, on_demand_usd_gpu_h) for series in chosen
    ]
    pools = tuple(
        Pool(f"{series.instance_type}/{series.zone}", series.accelerator, series.zone)
        for series in chosen
    )
    first = max(int(step.times[0]) for step in steps)
    begin, end = time_range(first, int(looks[-1]), slot_hours, start, stop)
    grid = step_grid(pools, steps, begin, end, slot_hours, max_hold_hours)
    title = f"aws-{instance_type or accelerator}"
    prices = one_trace(grid, gaps=gaps, max_hold_hours=0.0, name=title)
    return with_availability(prices, available)


def verda_listings(
    *,
    accelerator: str,
    regions: Sequence[str] | None = None,
    instance_type: str | None = None,
    start: datetime | None = None,
    stop: datetime | None = None,
    slot_hours: float = 6.0,
) -> MarketTrace:
    """Return the spot GPUs that Verda listed in 2026, one pool for each region, observed every 6 h.

    ``available`` is the size of the largest machine on spot offer. It is a lower bound, because
    stock is not published and spot without on-demand is not shown. While nothing is listed, the
    last known prices apply and no GPU is available.
    """
    listing = ("cloud", "instance_type", "accelerator", "gpus", "region")
    columns = (*listing, "ts", "ondemand_usd_h", "spot_usd_h")
    frame = read_frame(data_file("market_listing_events.parquet"), columns)
    frame = frame.filter(frame.get_column("cloud") == "verda")
    looks = np.unique(times_of(frame, "ts"))
    frame = _only(frame, "accelerator", accelerator)
    if instance_type is not None:
        frame = _only(frame, "instance_type", instance_type)
    chosen = select("regions", regions, texts_of(frame, "region"))
    steps = [
        _listing_steps(frame.filter(frame.get_column("region") == region), looks, region)
        for region in chosen
    ]
    pools = tuple(Pool(region, accelerator, region) for region in chosen)
    begin, end = time_range(int(looks[0]), int(looks[-1]), slot_hours, start, stop)
    grid = step_grid(pools, steps, begin, end, slot_hours, None)
    return one_trace(grid, gaps=Gaps.ERROR, max_hold_hours=0.0, name=f"verda-{accelerator}")


def vast_minimum_bids(
    *,
    accelerator: str,
    available: int | MarketTrace,
    slot_hours: float = 6.0,
    gaps: Gaps | str = Gaps.LONGEST,
    max_hold_hours: float = 24.0,
) -> MarketTrace:
    """Return Vast.ai prices of March and April 2025: medians over the offers of each snapshot.

    The spot price is the minimum bid per GPU, the on-demand price the asking price. The source is a
    digest of the order book without stock, so the caller says what is ``available``.
    """
    columns = ("ts", "accelerator", "gpus", "ondemand_usd_h", "min_bid_usd_h")
    frame = read_frame(data_file("vast_offers.parquet"), columns).sort("ts")
    frame = _only(frame, "accelerator", accelerator)
    frame = frame.filter(frame.get_column("min_bid_usd_h").is_not_null())
    times, gpus = times_of(frame, "ts"), numbers_of(frame, "gpus")
    bids = numbers_of(frame, "min_bid_usd_h") / gpus
    asked = numbers_of(frame, "ondemand_usd_h") / gpus
    looks = np.unique(times[times >= _VAST_DENSE_FROM])
    if not looks.size:
        raise InvalidInput("accelerator", accelerator, "one with minimum bids in March 2025 or on")
    bid, ask = (
        np.array([np.median(prices[times == look]) for look in looks]) for prices in (bids, asked)
    )
    steps = Steps.of_prices(looks, bid, ask, looks)
    pools = (Pool("vast", accelerator),)
    begin, end = time_range(int(looks[0]), int(looks[-1]), slot_hours, None, None)
    grid = step_grid(pools, [steps], begin, end, slot_hours, max_hold_hours)
    prices = one_trace(grid, gaps=gaps, max_hold_hours=0.0, name=f"vast-{accelerator}")
    return with_availability(prices, available)


def _only(frame: pl.DataFrame, column: str, value: str) -> pl.DataFrame:
    """Return the rows whose column has this value; refuse a value that no row has."""
    select(column, [value], texts_of(frame, column))
    return frame.filter(frame.get_column(column) == value)


def _aws_series(
    accelerator: str | None, instance_type: str | None, zones: Sequence[str] | None
) -> list[_Series]:
    """Return the chosen AWS series."""
    with data_file("aws_gpu_series.csv").open(encoding="utf-8", newline="") as file:
        chosen = [
            _Series(
                row["series_id"],
                row["instance_type"],
                row["accelerator"],
                int(row["gpus"]),
                row["az"],
            )
            for row in csv.DictReader(file)
        ]
    if accelerator is not None:
        select("accelerator", [accelerator], [series.accelerator for series in chosen])
        chosen = [series for series in chosen if series.accelerator == accelerator]
    if instance_type is not None:
        select("instance_type", [instance_type], [series.instance_type for series in chosen])
        chosen = [series for series in chosen if series.instance_type == instance_type]
    wanted = select("zones", zones, [series.zone for series in chosen])
    return [series for series in chosen if series.zone in wanted]


def _aws_steps(
    part: pl.DataFrame,
    series: _Series,
    looks: NDArray[np.int64],
    on_demand_usd_gpu_h: float | None,
) -> Steps:
    """Return the price changes of one AWS series as events."""
    times = times_of(part, "ts")
    if on_demand_usd_gpu_h is None:
        on_demand = numbers_of(part, "ondemand_usd_h") / series.gpus
        if np.isnan(on_demand).all():
            allowed = f"a price: {series.instance_type} has none"
            raise InvalidInput("on_demand_usd_gpu_h", None, allowed)
    else:
        on_demand = np.full(times.size, on_demand_usd_gpu_h, dtype=np.float64)
    return Steps.of_prices(times, numbers_of(part, "spot_usd_h") / series.gpus, on_demand, looks)


def _listing_steps(part: pl.DataFrame, looks: NDArray[np.int64], region: str) -> Steps:
    """Return a region's events: the most GPUs and the lowest price per GPU of all types."""
    available = np.zeros(looks.size, dtype=np.int64)
    spot, on_demand = np.full(looks.size, np.inf), np.full(looks.size, np.inf)
    for _, listing in part.sort("ts").group_by("instance_type", maintain_order=True):
        times, gpus = times_of(listing, "ts"), numbers_of(listing, "gpus")
        event = np.searchsorted(times, looks, side="right") - 1
        seen, event = event >= 0, np.maximum(event, 0)
        bid = np.where(seen, (numbers_of(listing, "spot_usd_h") / gpus)[event], np.nan)
        ask = np.where(seen, (numbers_of(listing, "ondemand_usd_h") / gpus)[event], np.nan)
        offered = np.isfinite(bid)
        available = np.maximum(available, np.where(offered, gpus[event], 0).astype(np.int64))
        spot = np.fmin(spot, np.where(offered, bid, np.inf))
        on_demand = np.fmin(on_demand, np.where(np.isfinite(ask), ask, np.inf))
    if not np.isfinite(spot).any():
        raise InvalidInput("regions", region, "a region in which spot was offered at least once")
    return Steps(looks, _last_known(spot), _last_known(on_demand), available, looks)


def _last_known(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return each value, or the last finite one before it, or the first finite one."""
    finite = np.isfinite(values)
    last = np.maximum.accumulate(np.where(finite, np.arange(values.size), -1))
    return values[np.where(last < 0, int(np.flatnonzero(finite)[0]), last)]
