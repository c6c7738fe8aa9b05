"""T9: the physics of the single-instance benchmark (section 10) as a special case of ours.

One instance; work per tick is its length less the pending overhead; starting, or changing over to
the other kind, sets the pending overhead (it replaces what was pending, it does not add); a
preempted spot instance ends at the tick's boundary; every tick held is billed whole.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from duetune.core.job import Job, Reconfiguration, ReconfigurationKey
from duetune.market.forecast.forecast_source import ForecastSource
from duetune.policies.single_instance import Instance, SingleInstance
from duetune.simulate.episode import simulate
from duetune.simulate.single_episode import (
    HostSafetyNet,
    SingleJob,
    SingleUniformProgress,
    run_single,
    single_optimum,
)
from duetune.testing import FixedPlan, market_of

TICK, SPOT_PRICE, ON_DEMAND_PRICE = 600.0, 0.9731 / 6, 3.06 / 6
NONE, SPOT, ON_DEMAND = (0, 0), (1, 0), (0, 1)
LAST = ForecastSource.parse("last")
KINDS = {NONE: Instance.WAIT, SPOT: Instance.SPOT, ON_DEMAND: Instance.ON_DEMAND}


def benchmark(wishes, available, overhead_s):
    """The benchmark's own bookkeeping: seconds of work and dollars, tick by tick."""
    kind, pending, work, dollars = NONE, 0.0, [], 0.0
    for wish, there in zip(wishes, available, strict=True):
        if kind == SPOT and not there:
            kind = NONE  # preempted at the boundary
        now = NONE if wish == SPOT and not there else wish
        if now not in {kind, NONE}:
            pending = overhead_s
        kind = now
        done = 0.0
        if kind != NONE:
            done = max(0.0, TICK - pending)
            pending = max(0.0, pending - TICK)
            dollars += SPOT_PRICE if kind == SPOT else ON_DEMAND_PRICE
        work.append(done)
    return work, dollars


def ours(wishes, available, overhead_s):
    left = 1 - overhead_s / TICK
    job = Job(
        work=1e6,
        deadline=len(wishes),
        value=1.0,
        throughput=(0.0, TICK),
        hard_deadline_factor=1.0,
        reconfiguration=Reconfiguration(left, left, left, ReconfigurationKey.COMPOSITION),
    )
    trace = market_of([SPOT_PRICE] * len(wishes), available, ON_DEMAND_PRICE)
    outcome = simulate(job, trace, FixedPlan(tuple(wishes)), LAST)
    return [entry.work for entry in outcome.entries], outcome.cost


@pytest.mark.parametrize(
    ("wishes", "available", "lost_in"),
    [
        ([SPOT] * 4, [1, 1, 1, 1], {0}),
        ([ON_DEMAND] * 4, [1, 0, 1, 0], {0}),
        ([SPOT, SPOT, ON_DEMAND, ON_DEMAND], [1, 1, 0, 0], {0, 2}),
        ([ON_DEMAND, ON_DEMAND, SPOT, SPOT], [0, 0, 1, 1], {0, 2}),
        ([SPOT, NONE, SPOT, SPOT], [1, 1, 1, 1], {0, 2}),
        ([SPOT, SPOT, SPOT, SPOT], [1, 0, 1, 1], {0, 2}),
        ([SPOT, ON_DEMAND, SPOT, ON_DEMAND], [1, 1, 1, 1], {0, 1, 2, 3}),
    ],
    ids=["stays", "ignores spot", "preempted", "goes over", "pauses", "lost and back", "restless"],
)
@pytest.mark.parametrize("overhead_s", [72.0, 180.0, 360.0])
def test_hand_made_traces(wishes, available, lost_in, overhead_s):
    work, _ = ours(wishes, available, overhead_s)
    held = [
        not (wish == NONE or (wish == SPOT and not there))
        for wish, there in zip(wishes, available, strict=True)
    ]
    expected = [
        (TICK - (overhead_s if tick in lost_in else 0.0)) if held[tick] else 0.0
        for tick in range(4)
    ]
    assert work == pytest.approx(expected)
    assert work == pytest.approx(benchmark(wishes, available, overhead_s)[0])


@given(
    st.lists(
        st.tuples(st.sampled_from([NONE, SPOT, ON_DEMAND]), st.integers(0, 1)),
        min_size=1,
        max_size=20,
    ),
    st.sampled_from([0.0, 72.0, 180.0, 360.0, 599.0]),
)
def test_any_trace_and_plan(ticks, overhead_s):
    wishes, available = [tick[0] for tick in ticks], [tick[1] for tick in ticks]
    work, dollars = benchmark(wishes, available, overhead_s)
    our_work, our_dollars = ours(wishes, available, overhead_s)
    assert our_work == pytest.approx(work)
    assert our_dollars == pytest.approx(dollars)


def test_the_price_of_48_hours_on_demand_is_that_of_the_benchmark():
    _, dollars = ours([ON_DEMAND] * 288, [0] * 288, 0.0)
    assert dollars == pytest.approx(146.88)
    assert np.isclose(ours([SPOT] * 288, [1] * 288, 0.0)[1], 46.71, atol=0.01)


# --- The simulator of one instance: also overheads longer than a tick


def run(wishes, available, overhead_s, work_s=1e9):
    job = SingleJob(work_s, len(wishes) * TICK, overhead_s)
    plan = iter(wishes)
    return run_single(job, np.array(available, dtype=bool), lambda *_: KINDS[next(plan)])


@given(
    st.lists(
        st.tuples(st.sampled_from([NONE, SPOT, ON_DEMAND]), st.integers(0, 1)),
        min_size=1,
        max_size=20,
    ),
    st.sampled_from([0.0, 72.0, 360.0, 600.0, 601.0, 900.0, 1800.0, 2500.0]),
)
def test_the_simulator_of_one_instance_keeps_the_benchmarks_books(ticks, overhead_s):
    wishes, available = [tick[0] for tick in ticks], [tick[1] for tick in ticks]
    work, dollars = benchmark(wishes, available, overhead_s)
    outcome = run(wishes, available, overhead_s)
    assert outcome.cost == pytest.approx(dollars)
    assert outcome.finished_tick is None
    done = np.cumsum(work)
    for amount in {float(total) for total in done if total > 0}:
        finished = run(wishes, available, overhead_s, work_s=amount)
        ticks_taken = int(np.argmax(done >= amount)) + 1
        assert finished.finished_tick == ticks_taken
        assert finished.cost == pytest.approx(
            benchmark(wishes[:ticks_taken], available[:ticks_taken], overhead_s)[1]
        )


def test_an_overhead_longer_than_a_tick_goes_on_in_the_next_and_is_replaced_by_a_restart():
    """1,500 s: two ticks without work, 300 s in the third; starting anew begins it anew."""
    for wishes, work in (
        ([ON_DEMAND] * 4, [0, 0, 300, 600]),
        ([ON_DEMAND, ON_DEMAND, SPOT, SPOT, SPOT], [0, 0, 0, 0, 300]),
        ([ON_DEMAND, NONE, ON_DEMAND, ON_DEMAND, ON_DEMAND], [0, 0, 0, 0, 300]),
    ):
        assert benchmark(wishes, [1] * len(wishes), 1500.0)[0] == work
        last = sum(work)
        assert run(wishes, [1] * len(wishes), 1500.0, last).finished_tick == len(wishes)
        assert run(wishes, [1] * len(wishes), 1500.0, last + 1).finished_tick is None


def test_who_asks_for_spot_that_is_not_there_waits():
    outcome = run([SPOT, SPOT, SPOT], [0, 1, 0], 0.0)
    assert outcome.history == (Instance.WAIT, Instance.SPOT, Instance.WAIT)
    assert (outcome.restarts, outcome.cost) == (1, pytest.approx(SPOT_PRICE))


@pytest.mark.parametrize(
    ("work_s", "overhead_s", "available", "ticks"),
    [
        (600.0, 0.0, [0, 1, 0, 0], {"spot": 1}),
        (900.0, 0.0, [0, 1, 0, 0], {"spot": 1, "on demand": 1}),
        (500.0, 150.0, [1, 1, 1, 1], {"spot": 2}),
        (300.0, 1500.0, [1, 1, 1, 0], {"spot": 3}),
        (300.0, 1500.0, [1, 1, 0, 1], {"on demand": 3}),
        (301.0, 1500.0, [1, 1, 1, 0], {"on demand": 4}),
    ],
    ids=["one tick of spot", "both", "a tick for the rest", "long restart", "gone", "a second"],
)
def test_the_optimum_by_hand(work_s, overhead_s, available, ticks):
    job = SingleJob(work_s, 4 * TICK, overhead_s)
    cost = ticks.get("spot", 0) * SPOT_PRICE + ticks.get("on demand", 0) * ON_DEMAND_PRICE
    assert single_optimum(job, np.array(available, dtype=bool)) == pytest.approx(cost)


def test_what_no_plan_can_do_in_time_has_no_price():
    for work_s, overhead_s, ticks in ((2400.1, 0.0, 4), (2300.0, 150.0, 4), (1.0, 2400.0, 4)):
        job = SingleJob(work_s, ticks * TICK + 599.0, overhead_s)
        assert single_optimum(job, np.ones(9, dtype=bool)) == np.inf


@pytest.mark.parametrize(
    ("tick_s", "overhead_s", "work_s"), [(0.5, 0.0, 1.0), (2.5, 0.0, 5.0), (3.0, 0.5, 2.5)]
)
def test_the_optimum_counts_fractions_of_a_second(tick_s, overhead_s, work_s):
    job = SingleJob(work_s, 4 * tick_s, overhead_s, tick_s)
    available = np.ones(4, dtype=bool)
    outcome = run_single(job, available, lambda *_: Instance.SPOT)
    assert single_optimum(job, available) == pytest.approx(outcome.cost)


# --- A host with a safety net of its own


def test_a_host_that_keeps_lost_spot_makes_late_who_plans_to_the_last_tick():
    """The net acts in the tick in which spot is lost, and waits for it instead of on-demand."""
    job = SingleJob(work_s=20 * TICK, deadline_s=24 * TICK, restart_overhead_s=180.0)
    fields = {name: getattr(job, name) for name in ("work_s", "deadline_s", "restart_overhead_s")}
    random = np.random.default_rng(1)
    late = {True: 0, False: 0}
    for _ in range(30):
        there = np.repeat(random.random(8) < 0.5, 3)
        assert run_single(job, there, SingleInstance(**fields)).finished_tick is not None
        for aware in late:
            step = HostSafetyNet(job, SingleInstance(**fields, host_safety_net=aware))
            late[aware] += run_single(job, there, step).finished_tick is None
    assert late[False] > 0
    assert late[True] == 0


# --- Uniform progress


def test_uniform_progress_stays_on_demand_until_it_may_go_to_spot():
    job = SingleJob(work_s=10 * TICK, deadline_s=20 * TICK, restart_overhead_s=60.0)
    step = SingleUniformProgress(job)
    far_ahead = (2 * TICK, 2 * TICK, Instance.ON_DEMAND, 0.0)
    assert step(*far_ahead, False) is Instance.ON_DEMAND
    assert step(*far_ahead, True) is Instance.SPOT
    behind = (8 * TICK, 7 * TICK, Instance.ON_DEMAND, 0.0)
    assert step(*behind, True) is Instance.ON_DEMAND
    assert SingleUniformProgress(job, hysteresis=False)(*behind, True) is Instance.SPOT
