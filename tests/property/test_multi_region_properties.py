"""One instance over several pools: books, optimum, and what no policy may do."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from duetune.simulate.multi_region_episode import optimum_over_pools, run_multi_region
from duetune.simulate.single_episode import SingleJob, run_single, single_optimum
from support.multi_region import (
    TICK,
    WAIT,
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
