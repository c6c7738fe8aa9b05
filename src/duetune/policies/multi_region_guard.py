"""The guard of one instance over several pools: no step after which the deadline could be lost.

A step is safe if on-demand alone can do the rest of the work in time after it, even if all spot is
gone in the next tick. The guard takes unsafe attempts away. Where doing without would be unsafe, it
ends the step with on-demand in the safe pool in which the rest of the work costs least, counting
restart and transfer. A deadline that is feasible at the start is therefore never lost.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from duetune.core.multi_region_physics import (
    NOWHERE,
    SAME_TIME,
    least_on_demand_time,
    on_demand_time,
    pool_tick,
)
from duetune.core.single_instance_physics import ON_DEMAND, SPOT, WAIT
from duetune.policies.multi_region_step import Attempt, Otherwise, PoolStep, attempt_of
from duetune.policies.single_instance import CODES, Instance

if TYPE_CHECKING:
    from collections.abc import Mapping

    from duetune.core.multi_region_physics import MultiRegionJob
    from duetune.policies.multi_region_step import PoolPolicy, PoolPrice


class Position(NamedTuple):
    """Where a job stands at the start of a tick.

    ``held`` is a kind, ``place`` its pool or that of the checkpoint, ``pending`` its overhead, and
    ``time_left`` the time in whole ticks.
    """

    time_left: float
    work_left: float
    held: int
    place: int
    pending: float


def is_safe(job: MultiRegionJob, now: Position, kind: int, pool: int) -> bool:
    """Return whether the deadline is still safe after a tick of ``kind`` in ``pool``."""
    did = pool_tick(job.terms, job.tick_s, now.held, now.place, now.pending, kind, pool)
    left, place = now.work_left - did.work, now.place if kind == WAIT else pool
    if left <= SAME_TIME:
        return True
    needed = least_on_demand_time(job.terms, kind, place, did.pending, left)
    return bool(needed <= now.time_left - job.tick_s + SAME_TIME)


def rescue_pool(job: MultiRegionJob, now: Position, prices: Mapping[str, PoolPrice]) -> int:
    """Return the pool in which on-demand finishes in time at the least cost, or else earliest."""
    best, least = NOWHERE, math.inf
    times = [
        on_demand_time(job.terms, now.held, now.place, now.pending, now.work_left, pool)
        for pool in range(len(job.pools))
    ]
    for pool, seconds in enumerate(times):
        moved = now.held != ON_DEMAND or now.place != pool
        cost = prices[job.pools[pool].name].on_demand * seconds / 3600
        cost += job.terms.move_price[now.place, pool] if moved else 0.0
        if seconds <= now.time_left + SAME_TIME and cost < least:
            best, least = pool, cost
    return best if best != NOWHERE else int(np.argmin(times))


class PlaceTracker:
    """Where the checkpoint of a job lies, from what its host tells. One per job."""

    def __init__(self, job: MultiRegionJob) -> None:
        self._job, self._place = job, NOWHERE

    def position(
        self,
        time_left: float,
        work_left: float,
        active: Attempt | None,
        pending: float,
        answer: Attempt | None,
    ) -> Position:
        """Return where the job stands; called once at the start of every tick."""
        known = active or answer
        if known is not None:
            self._place = self._job.index(known.pool)
        held = WAIT if active is None else CODES[active.kind]
        overhead = float(pending) if active is not None else 0.0
        return Position(time_left, float(work_left), held, self._place, overhead)


class MultiRegionGuard:
    """A policy over several pools, with the steps that could lose the deadline replaced."""

    def __init__(self, job: MultiRegionJob, policy: PoolPolicy) -> None:
        self._job, self._policy, self._places = job, policy, PlaceTracker(job)

    def __call__(
        self,
        elapsed_s: float,
        work_left_s: float,
        active: Attempt | None,
        pending_s: float,
        prices: Mapping[str, PoolPrice],
        last_answer: Attempt | None,
    ) -> PoolStep:
        """Return the policy's step, made safe; called once per tick."""
        job = self._job
        active = attempt_of(active)
        step = self._policy(elapsed_s, work_left_s, active, pending_s, prices, last_answer)
        time_left = (job.ticks - round(elapsed_s / job.tick_s)) * job.tick_s
        now = self._places.position(
            time_left, work_left_s, active, pending_s, attempt_of(last_answer)
        )
        return guarded(job, now, step, prices, active) if work_left_s > 0 else step


def guarded(
    job: MultiRegionJob,
    now: Position,
    step: PoolStep,
    prices: Mapping[str, PoolPrice],
    active: Attempt | None,
) -> PoolStep:
    """Return a step with its unsafe parts replaced; called with every step of a guarded policy."""
    attempts = tuple(
        each for each in step.attempts if is_safe(job, now, CODES[each.kind], job.index(each.pool))
    )
    if any(each.kind is Instance.ON_DEMAND for each in attempts):
        return PoolStep(attempts, step.otherwise)
    stays = step.otherwise is Otherwise.STAY and active is not None
    if is_safe(job, now, now.held if stays else WAIT, now.place):
        return PoolStep(attempts, step.otherwise)
    if now.held == ON_DEMAND and is_safe(job, now, ON_DEMAND, now.place):
        return PoolStep(attempts, Otherwise.STAY)
    pool = rescue_pool(job, now, prices)
    if now.held == SPOT and not is_safe(job, now, ON_DEMAND, pool):
        # Nothing is sure any more: go on with what needs no restart.
        return PoolStep(attempts, Otherwise.STAY)
    rescue = Attempt(job.pools[pool].name, Instance.ON_DEMAND)
    if rescue == active:
        return PoolStep(attempts, Otherwise.STAY)
    return PoolStep((*attempts, rescue), Otherwise.WAIT)
