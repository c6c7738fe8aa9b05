"""One instance over several pools, tick by tick.

The effect of a tick is in ``core.multi_region_physics``, the order within a tick in
``policies.multi_region_step``. The deadline is hard.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import msgspec

from duetune.core.multi_region_physics import NOWHERE, SAME_TIME, billed_share, pool_tick
from duetune.errors import InvalidInput
from duetune.policies.multi_region_step import Attempt, Otherwise, PoolPrice
from duetune.policies.single_instance import CODES, Instance
from duetune.policies.solve.multi_region_optimum import multi_region_optimum

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray

    from duetune.core.market import MarketTrace
    from duetune.core.multi_region_physics import MultiRegionJob
    from duetune.policies.multi_region_step import PoolPolicy
    from duetune.policies.solve.multi_region_optimum import MultiRegionOptimum


class MultiRegionOutcome(msgspec.Struct, frozen=True):
    """The result of a run.

    ``finished_tick`` counts from 1 and is None if the job is late. ``history`` has what ran in each
    tick. ``moves`` counts the starts in another pool than the one of the checkpoint, ``egress`` is
    the part of the cost that they were charged, and ``refused`` counts the refused attempts.
    """

    cost: float
    finished_tick: int | None
    restarts: int
    moves: int
    refused: int
    egress: float
    history: tuple[Attempt | None, ...]


def run_multi_region(
    job: MultiRegionJob, market: MarketTrace, policy: PoolPolicy, *, start: int = 0
) -> MultiRegionOutcome:
    """Call ``policy`` in every tick from slot ``start`` up to the deadline; return the outcome."""
    _check(job, market)
    up, terms = market.available > 0, job.terms
    hour = 3600 / job.tick_s
    names = [pool.name for pool in job.pools]
    held: Attempt | None = None
    answer: Attempt | None = None
    place, pending, left = NOWHERE, 0.0, job.work_s
    cost, egress, restarts, moves, refused = 0.0, 0.0, 0, 0, 0
    history: list[Attempt | None] = []
    for tick in range(min(job.ticks, market.slots - start)):
        slot = start + tick
        if held is not None and held.kind is Instance.SPOT and not up[place, slot]:
            held = None
        prices = {
            name: PoolPrice(spot * hour, on_demand * hour)
            for name, spot, on_demand in zip(
                names,
                market.spot_price[:, slot].tolist(),
                market.on_demand_price[:, slot].tolist(),
                strict=True,
            )
        }
        step = policy(tick * job.tick_s, left, held, pending if held else 0.0, prices, answer)
        answer, failed = _tried(job, step.attempts, held, up[:, slot])
        refused += failed
        now = answer or (held if step.otherwise is Otherwise.STAY else None)
        kind = CODES[now.kind if now else Instance.WAIT]
        pool = job.index(now.pool) if now else place
        before = CODES[held.kind if held else Instance.WAIT]
        did = pool_tick(terms, job.tick_s, before, place, pending, kind, pool)
        history.append(now)
        if now is not None:
            moves += did.started and place not in {NOWHERE, pool}
            share = billed_share(
                job.tick_s, did.lost, left, did.work, terms.pace[pool], job.prorate_last_tick
            )
            spot = now.kind is Instance.SPOT
            table = market.spot_price if spot else market.on_demand_price
            cost += float(table[pool, slot]) * share + did.egress
            egress += did.egress
            restarts += did.started
            left -= did.work
            place = pool
        held, pending = now, did.pending
        if left <= SAME_TIME:
            break
    finished = len(history) if left <= SAME_TIME else None
    return MultiRegionOutcome(cost, finished, restarts, moves, refused, egress, tuple(history))


def optimum_over_pools(
    job: MultiRegionJob, market: MarketTrace, *, start: int = 0
) -> MultiRegionOptimum:
    """Return the least cost of any plan that knows the market from slot ``start`` on."""
    _check(job, market)
    window = slice(start, start + job.ticks)
    return multi_region_optimum(
        job,
        market.available[:, window] > 0,
        market.spot_price[:, window],
        market.on_demand_price[:, window],
    )


def _tried(
    job: MultiRegionJob,
    attempts: Sequence[Attempt],
    held: Attempt | None,
    up: NDArray[np.bool_],
) -> tuple[Attempt | None, int]:
    """Return the first attempt that is granted, and how many were refused before it."""
    for refused, (pool, kind) in enumerate(attempts):
        attempt = Attempt(pool, Instance(kind))
        there = kind == Instance.ON_DEMAND or up[job.index(pool)]
        if there or attempt == held:
            return attempt, refused
    return None, len(attempts)


def _check(job: MultiRegionJob, market: MarketTrace) -> None:
    """Refuse a market whose slots or pools are not those of the job."""
    if not math.isclose(market.slot_hours * 3600, job.tick_s, rel_tol=1e-9):
        raise InvalidInput("tick_s", job.tick_s, f"{market.slot_hours * 3600:g}, as the market's")
    if len(market.pools) != len(job.pools):
        names = [pool.name for pool in job.pools]
        raise InvalidInput("pools", names, f"the market's {len(market.pools)} pools, in its order")
