"""The families of real markets: tuned zones, reported zones, and the jobs that are swept."""

from __future__ import annotations

import msgspec
import numpy as np

from duetune.core.job import Reconfiguration, ReconfigurationKey
from duetune.core.market import MarketTrace
from duetune.market.catalog import aws_spot_prices
from duetune.market.datasets import h100_counts, spot_traces_slots, spot_traces_ticks, v100_paired
from duetune.market.resample import with_availability
from duetune.market.synthetic import synthetic_market
from duetune.simulate.cases import JobMix

V100_ON_DEMAND, V100_SPOT = 3.06, 0.918  # dollars per GPU-hour on AWS at the time of the traces
BY_COMPOSITION = Reconfiguration(key=ReconfigurationKey.COMPOSITION)
DEADLINES = (12, 24, 48)
TICK_S = 600.0
SINGLE_SETS = (
    ("availability/1-node/aws-02-15-2023", None),
    ("availability/1-node/aws-10-26-2022", None),
    ("preemption/1-node/aws-04-22-2023", None),
    ("preemption/1-node/aws-04-19-2023", "us-east-1c"),
    ("preemption/1-node/aws-04-19-2023", "us-east-1d"),
)


class Family(msgspec.Struct, frozen=True, eq=False):
    """``tuned`` and ``reported`` are markets of different zones; ``per_class`` scales the jobs."""

    name: str
    tuned: tuple[MarketTrace, ...]
    reported: tuple[MarketTrace, ...]
    mixes: tuple[JobMix, ...]


def halves(markets: tuple[MarketTrace, ...]) -> tuple[tuple[MarketTrace, ...], ...]:
    """Return every other zone by name: the first, third and so on are tuned on."""
    ordered = sorted(markets, key=lambda market: market.pools[0].name)
    return tuple(ordered[::2]), tuple(ordered[1::2])


def pools_of(trace: MarketTrace) -> tuple[MarketTrace, ...]:
    """Return the pools of a trace as markets."""
    return tuple(trace.pool(pool.name) for pool in trace.pools)


def sweep(
    sizes: tuple[int, ...],
    *,
    tightness: tuple[float, ...] = (0.3, 0.5, 0.7),
    rule: Reconfiguration | None = None,
) -> tuple[JobMix, ...]:
    """Return every deadline with every share of the capacity and every size."""
    return tuple(
        JobMix(
            deadline=(deadline, deadline),
            tightness=(share, share),
            max_gpus=(size, size),
            min_gpus=(1, 1),
            value_factor=(1.5, 1.5),
            reconfiguration=rule or Reconfiguration(),
        )
        for deadline in DEADLINES
        for share in tightness
        for size in sizes
    )


def families(seed: int) -> list[Family]:
    """Return all families."""
    h100 = halves(pools_of(h100_counts(slot_hours=0.5)))
    v100 = halves(pools_of(v100_paired()))
    nodes = {
        count: halves(
            pools_of(
                spot_traces_slots(
                    on_demand_usd_gpu_h=V100_ON_DEMAND,
                    spot_usd_gpu_h=V100_SPOT,
                    trace_set=trace_set,
                )
            )
        )
        for count, trace_set in (
            (4, "preemption/4-node/aws-08-03-2023"),
            (16, "availability/16-node/aws-08-27-2023"),
        )
    }
    priced = halves(_aws_priced(seed))
    tight = (0.5, 0.7, 0.9)
    return [
        Family("H100 counts", *h100, sweep((8, 16))),
        Family("H100 counts, by composition", *h100, sweep((4, 8), rule=BY_COMPOSITION)),
        Family("V100 paired, one GPU", *v100, sweep((1,), tightness=tight, rule=BY_COMPOSITION)),
        Family("4 nodes", *nodes[4], sweep((4,))),
        Family("4 nodes, by composition", *nodes[4], sweep((4,), rule=BY_COMPOSITION)),
        Family("16 nodes", *nodes[16], sweep((16,))),
        Family("AWS prices, synthetic availability", *priced, sweep((8,))),
    ]


def _aws_priced(seed: int) -> tuple[MarketTrace, ...]:
    """Return real prices of H100 pools with synthetic availability that switches regimes."""
    prices = aws_spot_prices(available=0, accelerator="H100")
    markets = []
    for place, market in enumerate(pools_of(prices)[:8]):
        counts = synthetic_market("regime_switching", seed=seed + place, slots=market.slots)
        markets.append(with_availability(market, counts))
    return tuple(markets)


def single_markets() -> dict[str, np.ndarray]:
    """Return whether one instance was available, in ticks of ten minutes, by trace."""
    found: dict[str, np.ndarray] = {}
    for trace_set, zone in SINGLE_SETS:
        trace = spot_traces_ticks(
            on_demand_usd_gpu_h=V100_ON_DEMAND,
            spot_usd_gpu_h=V100_SPOT,
            trace_set=trace_set,
            zones=None if zone is None else [zone],
        )
        own = trace.slot_hours * 3600
        ticks = int(trace.slots * own // TICK_S)
        at = np.minimum(np.rint(np.arange(ticks) * TICK_S / own).astype(int), trace.slots - 1)
        for row, pool in enumerate(trace.pools):
            found[f"{trace_set.rsplit('/', 1)[1]} {pool.name}"] = trace.available[row][at] > 0
    return found
