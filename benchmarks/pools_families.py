"""The markets of several pools on which one instance is compared: real zones and synthetic pools.

Zones are sorted by name. Every other one, in the first half of the time, was tuned on. The others,
in the second half of the time, are reported.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import numpy as np

from duetune.core.market import MarketTrace
from duetune.core.multi_region_physics import InstancePool, MoveCost, MultiRegionJob
from duetune.market.datasets import data_folder, h100_counts, spot_traces_ticks, v100_paired
from duetune.market.synthetic_pools import SyntheticPool, synthetic_pools

if TYPE_CHECKING:
    from collections.abc import Sequence

HOUR, TICK_S = 3600.0, 600.0
WORK_H, ROOM, RESTARTS_S = (12.0, 24.0, 36.0), (1.1, 1.3, 1.6), (72.0, 180.0, 360.0)
DAYS = 14
ZONES = tuple(
    SyntheticPool(f"zone-{place}", price_level=level)
    for place, level in enumerate((0.8, 0.95, 1.1, 1.25))
)
TYPES = (
    SyntheticPool("east-h100", "H100", "east", on_demand_usd_gpu_h=10.0, price_level=0.75),
    SyntheticPool("west-h100", "H100", "west", on_demand_usd_gpu_h=10.0, price_level=0.9),
    SyntheticPool("east-a100", "A100", "east", on_demand_usd_gpu_h=4.5, price_level=0.9),
    SyntheticPool("west-a100", "A100", "west", on_demand_usd_gpu_h=4.5, price_level=1.0),
)
PACES = {"H100": 1.0, "A100": 0.5}
FAR = MoveCost.of_size(gigabytes=20, gigabits_per_s=1, usd_per_gigabyte=0.02)


class PoolFamily(msgspec.Struct, frozen=True, eq=False):
    """Markets of several pools, and what a move between two of their pools costs."""

    name: str
    markets: tuple[MarketTrace, ...]
    moves: bool = False

    def jobs(self, count: int, seed: int) -> list[tuple[MultiRegionJob, MarketTrace, int]]:
        """Return jobs with their market and their first slot, drawn at random."""
        random = np.random.default_rng(seed)
        found = []
        for place in range(count):
            market = self.markets[place % len(self.markets)]
            work, room, restart = (
                float(random.choice(each)) for each in (WORK_H, ROOM, RESTARTS_S)
            )
            job = MultiRegionJob(
                work_s=work * HOUR,
                deadline_s=float(np.ceil(work * room * HOUR / TICK_S)) * TICK_S,
                pools=tuple(
                    InstancePool(pool.name, restart, PACES.get(pool.accelerator, 1.0))
                    if self.moves
                    else InstancePool(pool.name, restart)
                    for pool in market.pools
                ),
                moves=_moves(market) if self.moves else (),
            )
            found.append((job, market, int(random.integers(0, market.slots - job.ticks))))
        return found


def pool_families(seed: int, *, tuned: bool = False) -> list[PoolFamily]:
    """Return the reported families, or the ones that were tuned on; real ones where data is."""
    real = []
    if data_folder().is_dir():
        real = [
            PoolFamily("one instance, H100 zones", (_half(h100_counts(), tuned=tuned),)),
            PoolFamily("one instance, V100 zones", (_half(v100_ticks(), tuned=tuned),)),
        ]
    first = seed + (1000 if tuned else 0)
    return [
        *real,
        PoolFamily("one instance, synthetic zones", _synthetic(ZONES, first, 0.0)),
        PoolFamily("one instance, correlated zones", _synthetic(ZONES, first + 100, 0.6)),
        PoolFamily("one instance, GPU types", _synthetic(TYPES, first + 200, 0.3), moves=True),
    ]


def v100_ticks() -> MarketTrace:
    """Return the V100 zones in ticks of 10 minutes, with the price of each half hour."""
    prices = v100_paired()
    counts = spot_traces_ticks(on_demand_usd_gpu_h=3.06, spot_usd_gpu_h=0.918)
    per_slot = round(prices.slot_hours * HOUR / TICK_S)
    ticks = np.arange(prices.slots * per_slot) * TICK_S / (counts.slot_hours * HOUR)
    at = np.minimum(np.rint(ticks).astype(int), counts.slots - 1)
    rows = [
        next(row for row, pool in enumerate(counts.pools) if pool.zone == each.zone)
        for each in prices.pools
    ]
    return msgspec.structs.replace(
        prices,
        spot_price=np.repeat(prices.spot_price, per_slot, axis=1) / per_slot,
        on_demand_price=np.repeat(prices.on_demand_price, per_slot, axis=1) / per_slot,
        available=(counts.available[rows][:, at] > 0).astype(np.int64),
        slot_hours=TICK_S / HOUR,
    )


def _half(trace: MarketTrace, *, tuned: bool) -> MarketTrace:
    """Return every other zone in one half of the time."""
    rows = list(range(0 if tuned else 1, len(trace.pools), 2))
    middle = trace.slots // 2
    time = slice(0, middle) if tuned else slice(middle, trace.slots)
    return msgspec.structs.replace(
        trace,
        spot_price=trace.spot_price[rows][:, time],
        on_demand_price=trace.on_demand_price[rows][:, time],
        available=trace.available[rows][:, time],
        pools=tuple(trace.pools[row] for row in rows),
        start=None,
    )


def _synthetic(
    pools: Sequence[SyntheticPool], seed: int, correlation: float
) -> tuple[MarketTrace, ...]:
    return tuple(
        synthetic_pools(
            kind,
            pools,
            seed=seed + place,
            slots=DAYS * 144,
            slot_hours=TICK_S / HOUR,
            correlation=correlation,
        )
        for place, kind in enumerate(("regime_switching", "diurnal", "outage", "capacity_storm"))
    )


def _moves(market: MarketTrace) -> tuple[tuple[MoveCost, ...], ...]:
    """Return a transfer of 20 GB between zones, and none within one."""
    return tuple(
        tuple(MoveCost() if here.zone == there.zone else FAR for there in market.pools)
        for here in market.pools
    )
