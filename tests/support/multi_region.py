"""Jobs and markets over several pools for tests, and the physics once more, plan by plan."""

from __future__ import annotations

import itertools
import math

import numpy as np
from hypothesis import strategies as st

from duetune.core.market import MarketTrace, Pool
from duetune.core.multi_region_physics import InstancePool, MoveCost, MultiRegionJob
from duetune.policies.multi_region_step import Attempt, Otherwise, PoolStep
from duetune.policies.single_instance import Instance

TICK = 600.0
WAIT, SPOT, ON_DEMAND = Instance


def market_over(up, spot, on_demand, tick_s=TICK) -> MarketTrace:
    """``up`` is [pool][tick]; prices are dollars per hour, one per pool or [pool][tick]."""
    there = np.array(up, dtype=np.int64)
    hours = tick_s / 3600

    def prices(values):
        values = np.array(values, dtype=np.float64)
        values = values[:, np.newaxis] if values.ndim == 1 else values
        return np.array(np.broadcast_to(values, there.shape)) * hours

    return MarketTrace(
        spot_price=prices(spot),
        available=there,
        on_demand_price=prices(on_demand),
        slot_hours=hours,
        pools=tuple(Pool(f"p{place}") for place in range(len(there))),
    )


def job_over(restarts, paces=None, moves=(), **fields) -> MultiRegionJob:
    """A job over pools p0, p1, ... with these restarts and paces."""
    paces = paces or [1.0] * len(restarts)
    pools = tuple(
        InstancePool(f"p{place}", restart, pace)
        for place, (restart, pace) in enumerate(zip(restarts, paces, strict=True))
    )
    return MultiRegionJob(pools=pools, moves=moves, **fields)


def as_planned(plan):
    """A policy that asks for ``plan[tick]``: None, or a pair of pool and kind."""
    steps = iter(plan)

    def policy(*_) -> PoolStep:
        wish = next(steps)
        return PoolStep(() if wish is None else (Attempt(*wish),), Otherwise.WAIT)

    return policy


class Recorded:
    """A policy whose steps are kept, with what it held when it took them."""

    def __init__(self, policy):
        self._policy, self.steps, self._held = policy, [], []

    def __call__(self, elapsed, left, active, pending, prices, answer):
        self.steps.append(self._policy(elapsed, left, active, pending, prices, answer))
        self._held.append(active)
        return self.steps[-1]

    def looks(self, up):
        """Every tick and pool at which there was a look: an attempt, or something held before."""
        running = None
        for tick, (step, held) in enumerate(zip(self.steps, self._held, strict=True)):
            if running is not None:
                yield tick, running.pool
            running = held if step.otherwise is Otherwise.STAY else None
            for attempt in step.attempts:
                yield tick, attempt.pool
                row = int(attempt.pool.removeprefix("p"))
                if attempt.kind is ON_DEMAND or up[row, tick]:
                    running = attempt
                    break


def cost_of_plan(job: MultiRegionJob, market: MarketTrace, plan) -> float:
    """The dollars of a plan by other bookkeeping than the simulator's; infinite if it is late."""
    seconds = {pool.name: pool.restart_overhead_s for pool in job.pools}
    paces = {pool.name: pool.pace for pool in job.pools}
    order = [pool.name for pool in job.pools]
    held, place, pending, left, cost = None, None, 0.0, job.work_s, 0.0
    for tick, wish in enumerate(plan):
        there = {name: bool(market.available[order.index(name), tick]) for name in order}
        if held is not None and held[1] == SPOT and not there[held[0]]:
            held = None
        if wish is None or (wish[1] == SPOT and not there[wish[0]]):
            held = None
            continue
        pool, kind = wish
        row = order.index(pool)
        if wish != held:
            pending = seconds[pool]
            if job.moves and place is not None:
                move = job.moves[order.index(place)][row]
                pending += move.seconds
                cost += move.dollars
        price = (market.spot_price if kind == SPOT else market.on_demand_price)[row, tick]
        used = max(0.0, job.tick_s - pending)
        done = used * paces[pool]
        held, place, lost, pending = wish, pool, job.tick_s - used, max(0.0, pending - job.tick_s)
        if done >= left - 1e-9:
            part = (lost + left / paces[pool]) / job.tick_s if job.prorate_last_tick else 1.0
            return cost + price * part
        cost += price
        left -= done
    return math.inf


def all_plans(job: MultiRegionJob, ticks: int):
    """Every plan over so many ticks."""
    wishes = [None, *((pool.name, kind) for pool in job.pools for kind in (SPOT, ON_DEMAND))]
    return itertools.product(wishes, repeat=ticks)


@st.composite
def small_cases(draw: st.DrawFn, ticks: int, most_pools: int = 2, least_pools: int = 1):
    """A job over a few pools and a market of so many ticks; multiples of 150 seconds."""
    count = draw(st.integers(least_pools, most_pools))

    def each(values):
        return [draw(values) for _ in range(count)]

    restarts = each(st.sampled_from([0.0, 150.0, 450.0, 750.0]))
    paces = each(st.sampled_from([1.0, 1.0, 0.5, 2.0]))
    moves = ()
    if draw(st.booleans()):
        costs = st.builds(
            MoveCost, st.sampled_from([0.0, 150.0, 600.0]), st.sampled_from([0.0, 0.3])
        )
        moves = tuple(
            tuple(MoveCost() if i == j else draw(costs) for j in range(count)) for i in range(count)
        )
    job = job_over(
        restarts,
        paces,
        moves,
        work_s=draw(st.integers(1, 4 * ticks)) * 150.0 - draw(st.sampled_from([0.0, 10.0])),
        deadline_s=ticks * TICK,
        prorate_last_tick=draw(st.booleans()),
    )
    up = [draw(st.lists(st.booleans(), min_size=ticks, max_size=ticks)) for _ in range(count)]
    spot = [[draw(st.sampled_from([0.5, 1.0, 2.0]))] * ticks for _ in range(count)]
    if draw(st.booleans()):
        spot[0][ticks // 2 :] = [3.5] * (ticks - ticks // 2)
    return job, market_over(up, spot, each(st.sampled_from([3.0, 4.0])))
