"""One instance against every market: never late, and never cheaper than the optimum."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from duetune.policies.single_instance import Instance, SingleInstance
from duetune.simulate.single_episode import (
    HostSafetyNet,
    SingleJob,
    SingleUniformProgress,
    run_single,
    single_optimum,
)

WAIT, SPOT, ON_DEMAND = Instance
TICK = 600.0
overheads = st.sampled_from([0.0, 72.0, 180.0, 360.0, 599.0, 600.0, 601.0, 900.0, 1500.0, 2400.0])


@st.composite
def feasible_jobs(draw: st.DrawFn, most: int = 24) -> SingleJob:
    """Work and one restart fit in the whole ticks before the deadline, often only just."""
    restart = draw(overheads)
    needed = math.floor(restart / TICK) + 1
    ticks = draw(st.integers(needed, needed + most))
    room = ticks * TICK - restart
    slack = draw(st.one_of(st.sampled_from([0.0, 1.0, 100.0]), st.floats(0.0, room)))
    beyond = draw(st.sampled_from([0.0, 0.25, 100.0, 599.5]))
    return SingleJob(
        work_s=max(0.5, room - slack),
        deadline_s=ticks * TICK + beyond,
        restart_overhead_s=restart,
    )


def step_for(job: SingleJob, *, host_safety_net: bool = False) -> SingleInstance:
    return SingleInstance(
        work_s=job.work_s,
        deadline_s=job.deadline_s,
        restart_overhead_s=job.restart_overhead_s,
        tick_s=job.tick_s,
        spot_price=job.spot_price,
        on_demand_price=job.on_demand_price,
        host_safety_net=host_safety_net,
    )


def left_after(job: SingleJob, step, market) -> float:
    """The physics once more, on a market that may answer to what ran: seconds of work left."""
    kind, pending, left = WAIT, 0.0, job.work_s
    history: list[Instance] = []
    for tick in range(math.floor(job.deadline_s / job.tick_s)):
        there = market(tick, history)
        if kind is SPOT and not there:
            kind, pending = WAIT, 0.0
        choice = step(tick * job.tick_s, left, kind, pending, there)
        assert there or choice is not SPOT
        if choice is WAIT:
            pending = 0.0
        elif choice is not kind:
            pending = job.restart_overhead_s
        kind = choice
        history.append(kind)
        if kind is not WAIT:
            left -= max(0.0, job.tick_s - pending)
            pending = max(0.0, pending - job.tick_s)
        if left <= 1e-6:
            return 0.0
    return left


def vanishing(_, history) -> bool:
    """Spot is gone right after every start of it."""
    return not history or history[-1] is not SPOT


def tempting(tick, history) -> bool:
    """Spot is there whenever on-demand runs, and goes as soon as it is taken."""
    return bool(history) and history[-1] is ON_DEMAND and tick % 2 == 0


def short_lived(ticks):
    """A spot instance lives for so many ticks."""
    return lambda _, history: (
        not (len(history) >= ticks and all(kind is SPOT for kind in history[-ticks:]))
    )


adversaries = [vanishing, tempting, short_lived(2), short_lived(3), lambda *_: False]


@given(feasible_jobs(), st.lists(st.booleans(), min_size=30, max_size=30))
def test_it_is_never_late_whatever_the_market_does(job, there):
    assert left_after(job, step_for(job), lambda tick, _: there[tick]) == 0


@given(feasible_jobs(), st.sampled_from(adversaries))
def test_no_adversary_makes_it_late(job, market):
    assert left_after(job, step_for(job), market) == 0


@given(feasible_jobs(), st.lists(st.booleans(), min_size=30, max_size=30))
def test_it_is_never_late_where_the_host_has_a_safety_net_of_its_own(job, there):
    step = HostSafetyNet(job, step_for(job, host_safety_net=True))
    assert run_single(job, np.array(there), step).finished_tick is not None


def published(job, hysteresis, elapsed, left, current, pending, there):
    """Uniform progress, rule by rule in the order of the paper and of its simulator."""
    tick, restart = job.tick_s, job.restart_overhead_s
    expected = elapsed * job.work_s / job.deadline_s
    later = (elapsed + 2 * restart) * job.work_s / job.deadline_s
    done = job.work_s - left
    choice = SPOT if there else WAIT
    if done < expected:
        choice = SPOT if there else ON_DEMAND
    if current is ON_DEMAND and (not there or (hysteresis and later >= done)):
        choice = ON_DEMAND
    time_left = math.floor((job.deadline_s - elapsed) / tick) * tick
    if math.ceil((left + 2 * restart) / tick) * tick >= time_left and current is not SPOT:
        choice = ON_DEMAND
    if math.ceil((left + restart) / tick) * tick >= time_left:
        choice = SPOT if current is SPOT and pending < 1e-3 else ON_DEMAND
        if restart == 0 and there:
            choice = SPOT
    return choice


@given(
    feasible_jobs(),
    st.integers(1, 3000),
    st.lists(st.booleans(), min_size=30, max_size=30),
    st.booleans(),
)
def test_uniform_progress_decides_as_published(job, less, there, hysteresis):
    job = SingleJob(max(1.0, round(job.work_s) - less), job.deadline_s, job.restart_overhead_s)
    ours = SingleUniformProgress(job, hysteresis=hysteresis)

    def step(*seen):
        assert ours(*seen) is published(job, hysteresis, *seen)
        return ours(*seen)

    run_single(job, np.array(there), step)


@given(feasible_jobs(), st.sampled_from(adversaries), st.booleans())
def test_uniform_progress_is_never_late(job, market, hysteresis):
    assert left_after(job, SingleUniformProgress(job, hysteresis=hysteresis), market) == 0


@given(feasible_jobs(), st.lists(st.booleans(), min_size=30, max_size=30), st.data())
@settings(max_examples=25)
def test_calls_that_were_missed_or_repeated_make_nobody_late_who_can_still_be_in_time(
    job, there, data
):
    """The scheduler is away for some ticks: what ran runs on, if it can."""
    step = step_for(job)
    asked = data.draw(st.lists(st.integers(0, 2), min_size=30, max_size=30))
    for tick, times in enumerate(asked[: job.ticks]):
        for _ in range(times):
            choice = step(tick * TICK, job.work_s, WAIT, 0.0, there[tick])
            if job.work_s + job.restart_overhead_s > (job.ticks - tick - 1) * TICK:
                assert choice is not WAIT


@given(
    st.sampled_from([0.0, 150.0, 600.0, 750.0, 1350.0]),
    st.integers(1, 16),
    st.lists(st.booleans(), min_size=6, max_size=6),
    st.sampled_from([0.9731, 3.06, 4.0]),
)
@settings(max_examples=25)
def test_the_optimum_is_the_cheapest_of_all_plans(restart, quarters, there, spot_price):
    job = SingleJob(quarters * 150.0 - 10.0, 6 * TICK, restart, spot_price=spot_price)
    available = np.array(there)
    costs = [math.inf]
    for plan in itertools.product([WAIT, SPOT, ON_DEMAND], repeat=6):
        cost, kind, pending, left = 0.0, WAIT, 0.0, job.work_s
        for wish, here in zip(plan, there, strict=True):
            if kind is SPOT and not here:
                kind = WAIT
            now = WAIT if wish is SPOT and not here else wish
            if now is not WAIT and now is not kind:
                pending = restart
            kind = now
            if kind is WAIT:
                continue
            cost += (spot_price if kind is SPOT else 3.06) / 6
            left -= max(0.0, TICK - pending)
            pending = max(0.0, pending - TICK)
            if left <= 0:
                costs.append(cost)
                break
    assert single_optimum(job, available) == pytest.approx(min(costs))


@given(feasible_jobs(), st.lists(st.booleans(), min_size=30, max_size=30))
@settings(max_examples=30)
def test_no_policy_beats_the_optimum(job, there):
    whole = SingleJob(math.ceil(job.work_s), job.deadline_s, job.restart_overhead_s)
    if whole.work_s + whole.restart_overhead_s > whole.ticks * TICK:
        return
    available = np.array(there)
    best = single_optimum(whole, available)
    for step in (step_for(whole), SingleUniformProgress(whole)):
        outcome = run_single(whole, available, step)
        assert outcome.finished_tick is not None
        assert outcome.cost >= best - 1e-9
