"""One instance over several pools: books, optimum, and what no policy may do."""

from __future__ import annotations

import math

import msgspec
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from duetune.policies.multi_region import MultiRegionInstance
from duetune.policies.multi_region_baselines import (
    LifetimeUtility,
    PoolOrder,
    UniformProgressOverPools,
)
from duetune.policies.multi_region_guard import MultiRegionGuard
from duetune.policies.multi_region_single import SinglePoolPolicy
from duetune.policies.multi_region_step import PoolPrice
from duetune.policies.single_instance import SingleInstance
from duetune.simulate.multi_region_episode import optimum_over_pools, run_multi_region
from duetune.simulate.single_episode import SingleJob, run_single, single_optimum
from support.multi_region import (
    ON_DEMAND,
    SPOT,
    TICK,
    WAIT,
    Recorded,
    all_plans,
    as_planned,
    cost_of_plan,
    job_over,
    market_over,
    small_cases,
)


@given(small_cases(ticks=8, most_pools=3), st.data())
def test_the_simulator_keeps_the_books_of_every_plan(case, data):
    job, market = case
    wishes = [None, *((pool.name, kind) for pool in job.pools for kind in ("spot", "on-demand"))]
    plan = data.draw(st.lists(st.sampled_from(wishes), min_size=8, max_size=8))
    outcome = run_multi_region(job, market, as_planned(plan))
    expected = cost_of_plan(job, market, plan)
    assert (outcome.finished_tick is None) == math.isinf(expected)
    if outcome.finished_tick is not None:
        assert outcome.cost == pytest.approx(expected)


@given(small_cases(ticks=4))
@settings(max_examples=25)
def test_the_optimum_over_pools_is_the_cheapest_of_all_plans(case):
    job, market = case
    best = optimum_over_pools(job, market)
    assert best.exact
    cheapest = min(cost_of_plan(job, market, plan) for plan in all_plans(job, 4))
    assert best.cost == pytest.approx(cheapest)


@given(
    st.sampled_from([0.0, 72.0, 600.0, 1500.0]),
    st.lists(st.booleans(), min_size=20, max_size=20),
    st.integers(1, 12000),
    st.lists(st.sampled_from(["wait", "spot", "on-demand"]), min_size=20, max_size=20),
)
def test_one_pool_is_the_single_instance(restart, up, work, plan):
    single = SingleJob(float(work), 20 * TICK, restart)
    job = job_over([restart], work_s=float(work), deadline_s=20 * TICK)
    market = market_over([up], [single.spot_price], [single.on_demand_price])
    steps = iter(plan)
    one = run_single(single, market.available[0] > 0, lambda *_: next(steps))
    many = run_multi_region(
        job, market, as_planned([None if kind == WAIT else ("p0", kind) for kind in plan])
    )
    assert many.cost == pytest.approx(one.cost)
    assert (many.finished_tick, many.restarts) == (one.finished_tick, one.restarts)
    assert [each.kind if each else WAIT for each in many.history] == list(one.history)
    best = optimum_over_pools(job, market)
    assert best.cost == pytest.approx(single_optimum(single, market.available[0] > 0))


# --- Policies


def policies(job):
    """Ours and every baseline behind the guard."""
    return {
        "ours": MultiRegionInstance(job),
        "two pools": MultiRegionInstance(job, most_pools=2),
        "one attempt": MultiRegionInstance(job, max_attempts=1),
        "for a host with a net": MultiRegionInstance(job, host_safety_net=True),
        **{
            order: MultiRegionGuard(job, UniformProgressOverPools(job, order=order))
            for order in PoolOrder
        },
        "first pool": MultiRegionGuard(job, UniformProgressOverPools(job, pools=[0])),
        "lifetimes": MultiRegionGuard(job, LifetimeUtility(job)),
        "failover": MultiRegionGuard(job, SinglePoolPolicy(job, range(len(job.pools)))),
    }


def is_feasible(job) -> bool:
    """On-demand alone is in time from the start, wherever that is."""
    return any(
        pool.restart_overhead_s + job.work_s / pool.pace <= job.ticks * TICK for pool in job.pools
    )


def sure_policies(job):
    """The policies that owe the deadline; a plan for one tick less must be feasible then."""
    shorter = msgspec.structs.replace(job, deadline_s=job.deadline_s - TICK)
    netted = [] if is_feasible(shorter) else ["for a host with a net"]
    return {name: policy for name, policy in policies(job).items() if name not in netted}


@given(small_cases(ticks=12, most_pools=3))
@settings(max_examples=30)
def test_nobody_is_late_where_it_can_be_helped_and_nobody_beats_the_optimum(case):
    job, market = case
    assume(is_feasible(job))
    best = optimum_over_pools(job, market)
    for name, policy in sure_policies(job).items():
        outcome = run_multi_region(job, market, policy)
        assert outcome.finished_tick is not None, name
        assert outcome.cost >= best.cost - 1e-9, name


@given(small_cases(ticks=12, most_pools=3, least_pools=2), st.integers(0, 2))
@settings(max_examples=30)
def test_no_adversary_makes_it_late(case, spell):
    """Spot is there until it was held for some ticks, and then gone everywhere for a tick."""
    job, market = case
    assume(is_feasible(job))
    for name, policy in sure_policies(job).items():
        left, held, place, pending, answer = job.work_s, None, None, 0.0, None
        age = 0
        for tick in range(job.ticks):
            up = not (held is not None and held.kind is SPOT and age > spell)
            if held is not None and held.kind is SPOT and not up:
                held, pending = None, 0.0
            prices = {
                pool.name: PoolPrice(
                    market.spot_price[row, tick] * 6, market.on_demand_price[row, tick] * 6
                )
                for row, pool in enumerate(job.pools)
            }
            step = policy(tick * TICK, left, held, pending, prices, answer)
            answer = next((a for a in step.attempts if up or a.kind is ON_DEMAND), None)
            now = answer or (held if step.otherwise == "stay" else None)
            if now is None:
                held, age = None, 0
                continue
            row = job.index(now.pool)
            if now != held:
                moved = job.moves[place][row].seconds if job.moves and place is not None else 0.0
                pending, age = job.pools[row].restart_overhead_s + moved, 0
            left -= max(0.0, TICK - pending) * job.pools[row].pace
            held, place, pending, age = now, row, max(0.0, pending - TICK), age + 1
            if left <= 1e-6:
                break
        assert left <= 1e-6, name


@given(small_cases(ticks=10, most_pools=3, least_pools=2), st.data())
@settings(max_examples=15)
def test_nobody_knows_the_future_nor_pools_that_nobody_looked_at(case, data):
    """Change the market after a tick, and wherever no look was: all earlier steps stay the same."""
    job, market = case
    until = data.draw(st.integers(1, 9))
    shape = market.available.shape
    other = data.draw(arrays(np.int64, shape, elements=st.integers(0, 1)))
    dearer = data.draw(arrays(np.float64, shape, elements=st.sampled_from([1.0, 1.5])))
    for name in policies(job):
        seen = np.zeros(shape, dtype=bool)
        first, second = (Recorded(policies(job)[name]) for _ in range(2))
        run_multi_region(job, market, first)
        for tick, pool in first.looks(market.available > 0):
            seen[job.index(pool), tick] = True
        early = np.arange(shape[1]) < until
        changed = msgspec.structs.replace(
            market,
            available=np.where(seen & early, market.available, other),
            spot_price=np.where(early, market.spot_price, market.spot_price * dearer),
        )
        run_multi_region(job, changed, second)
        assert first.steps[:until] == second.steps[:until], name


@given(small_cases(ticks=10, most_pools=3))
@settings(max_examples=30)
def test_nothing_runs_that_was_not_granted(case):
    job, market = case
    for policy in policies(job).values():
        outcome = run_multi_region(job, market, policy)
        for tick, ran in enumerate(outcome.history):
            if ran is not None and ran.kind is SPOT:
                assert market.available[job.index(ran.pool), tick] > 0


@given(
    st.sampled_from([0.0, 72.0, 360.0, 900.0]),
    st.lists(st.booleans(), min_size=36, max_size=36),
    st.integers(1, 30),
)
@settings(max_examples=30)
def test_with_one_pool_it_decides_as_the_single_instance(restart, up, ticks_of_work):
    single = SingleJob(ticks_of_work * TICK, 36 * TICK, restart)
    job = job_over([restart], work_s=single.work_s, deadline_s=single.deadline_s)
    market = market_over([up], [single.spot_price], [single.on_demand_price])
    step = SingleInstance(**msgspec.structs.asdict(single))
    one = run_single(single, market.available[0] > 0, step)
    ours = MultiRegionInstance(job)

    def told(elapsed, *view):
        """The single instance is told whether there is spot."""
        ours.look("p0", up[round(elapsed / TICK)])
        return ours(elapsed, *view)

    many = run_multi_region(job, market, told)
    assert [each.kind if each else WAIT for each in many.history] == list(one.history)
