"""Physics: what is computed is what the specification says, whatever the job."""

from __future__ import annotations

import itertools
import math

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from duetune.core.job import Job, Reconfiguration
from duetune.core.physics import (
    affordable,
    charge,
    cheapest_charge,
    cheapest_spot,
    efficiency,
    is_done,
    job_physics,
    reach_after,
    resize_efficiency,
    value_of_finishing,
)
from duetune.market.forecast.forecast_source import ForecastSource
from duetune.policies.solve.dynamic import offline_optimum
from duetune.simulate.episode import simulate
from duetune.testing import Idle, Restless, constant_market
from support.strategies import COMPOSITION, TOTAL, decimals, job_on_market, jobs, keys

counts = st.integers(0, 5)
prices = decimals(0, 2, 0.05)


def most_work(job: Job, slots: int, held: int) -> float:
    """By trying every sequence of on-demand counts."""
    if slots == 0:
        return 0.0
    rule = job.reconfiguration
    best = most_work(job, slots - 1, 0)
    for gpus in range(job.min_gpus, job.max_gpus + 1):
        mu = rule.grow if gpus > held else rule.shrink if gpus < held else 1.0
        best = max(best, mu * job.throughput[gpus] + most_work(job, slots - 1, gpus))
    return best


@given(jobs(max_slots=6, max_gpus=3), st.data())
def test_reach_is_the_most_that_on_demand_can_do(job, data):
    physics = job_physics(job)
    slots = data.draw(st.integers(0, min(4, job.deadline)))
    held = data.draw(st.sampled_from([0, *range(job.min_gpus, job.max_gpus + 1)]))
    assert physics.reach[slots, held] == pytest.approx(most_work(job, slots, held), abs=1e-9)


@given(jobs(max_slots=6, max_gpus=3, key=COMPOSITION), st.data())
def test_reach_after_holding_spot_counts_on_losing_all_of_it(job, data):
    physics, rule = job_physics(job), job.reconfiguration
    spot = data.draw(st.integers(0, job.max_gpus))
    on_demand = data.draw(st.integers(0, job.max_gpus - spot))
    slots = data.draw(st.integers(0, min(4, job.deadline)))
    expected = most_work(job, slots - 1, 0) if slots else 0.0
    for gpus in range(job.min_gpus, job.max_gpus + 1) if slots else ():
        mu = min(
            rule.preempted if spot else 1.0,
            rule.grow if gpus > on_demand else 1.0,
            # Spot that survives is released, which is a shrink too.
            rule.shrink if spot or gpus < on_demand else 1.0,
        )
        expected = max(expected, mu * job.throughput[gpus] + most_work(job, slots - 1, gpus))
    assert reach_after(physics, slots, spot, on_demand) == pytest.approx(expected, abs=1e-9)


@given(st.integers(0, 8), st.integers(0, 8), prices, prices)
def test_the_split_lemma_is_the_cheapest_of_all_splits(gpus, available, spot_price, dear):
    spot = cheapest_spot(gpus, available, spot_price, dear)
    assert 0 <= spot <= min(gpus, available)
    paid = charge(spot, gpus - spot, spot_price, dear)
    every = [
        charge(part, gpus - part, spot_price, dear) for part in range(min(gpus, available) + 1)
    ]
    assert paid == pytest.approx(min(every), abs=1e-12)
    assert cheapest_charge(gpus, available, spot_price, dear) == pytest.approx(paid, abs=1e-12)


@given(jobs(), counts, counts, counts, counts, counts)
def test_efficiency_is_one_only_without_a_change(
    job, held_spot, held_on_demand, spot, on_demand, available
):
    rule = msgspec.structs.replace(job.reconfiguration, grow=0.7, shrink=0.8, preempted=0.6)
    physics = job_physics(msgspec.structs.replace(job, reconfiguration=rule))
    spot = min(spot, available)
    mu = efficiency(physics, held_spot, held_on_demand, spot, on_demand, available)
    if rule.key is TOTAL:
        unchanged = held_spot + held_on_demand == spot + on_demand
    else:
        unchanged = (held_spot, held_on_demand) == (spot, on_demand)
    assert (mu == 1.0) == unchanged
    assert mu in {1.0, 0.7, 0.8, 0.6}


@given(jobs(key=COMPOSITION), counts, counts, counts, counts, st.integers(5, 9))
def test_the_composition_key_never_costs_less_than_the_total_key_without_a_preemption(
    job, held_spot, held_on_demand, spot, on_demand, available
):
    by_total = msgspec.structs.replace(
        job, reconfiguration=msgspec.structs.replace(job.reconfiguration, key=TOTAL)
    )
    there = efficiency(job_physics(job), held_spot, held_on_demand, spot, on_demand, available)
    here = efficiency(job_physics(by_total), held_spot, held_on_demand, spot, on_demand, available)
    assert there <= here
    assert here == resize_efficiency(
        job_physics(by_total), held_spot + held_on_demand, spot + on_demand
    )


@given(jobs())
def test_value_never_rises_with_time_and_is_full_until_the_deadline(job):
    values = [value_of_finishing(job, slot) for slot in range(1, job.hard_deadline + 3)]
    assert all(later <= earlier for earlier, later in itertools.pairwise(values))
    assert values[: job.deadline] == [job.value] * job.deadline
    assert values[job.hard_deadline :] == [0.0, 0.0]
    assert min(values) >= 0
    assert job_physics(job).values[1 : job.hard_deadline + 1].tolist() == pytest.approx(
        values[: job.hard_deadline]
    )


@given(
    jobs(budget=True),
    st.integers(0, 5),
    st.integers(0, 5),
    decimals(0, 2, 0.1),
    decimals(0.1, 2, 0.1),
    decimals(0, 1, 0.05),
)
def test_affordable_holds_as_many_as_the_budget_allows(
    job, spot, on_demand, spot_price, dear, share
):
    if spot + on_demand > job.max_gpus or 0 < spot + on_demand < job.min_gpus:
        spot, on_demand = 0, job.max_gpus
    spent = share * job.budget
    kept = affordable(job_physics(job), spot, on_demand, spot_price, dear, spent)
    assert spent + charge(*kept, spot_price, dear) <= job.budget + 1e-8
    assert kept[0] <= spot
    assert kept[1] <= on_demand
    assert sum(kept) == 0 or job.min_gpus <= sum(kept) <= job.max_gpus
    possible = [
        fewer_spot + fewer_on_demand
        for fewer_spot in range(spot + 1)
        for fewer_on_demand in range(on_demand + 1)
        if spent + charge(fewer_spot, fewer_on_demand, spot_price, dear) <= job.budget
        and fewer_spot + fewer_on_demand >= job.min_gpus
    ]
    assert sum(kept) >= max(possible, default=0)


@given(decimals(0.01, 3, 0.01), st.integers(-12, 3), keys)
def test_a_job_is_not_done_before_it_has_begun(size, scale, key):
    """Work may be counted in any unit; the tolerance for rounding must not swallow a job."""
    unit = 10.0**scale
    job = Job(
        work=size * unit,
        deadline=3,
        value=5,
        throughput=(0.0, unit),
        reconfiguration=Reconfiguration(key=key),
    )
    assert not is_done(job_physics(job), 0.0)
    assert not is_done(job_physics(job), 0.99 * job.work)
    assert is_done(job_physics(job), job.work)
    assert is_done(job_physics(job), math.fsum([job.work / 3] * 3))


@given(job_on_market(max_slots=6, max_gpus=3), st.sampled_from([1e-9, 1e-6, 1e6]))
def test_the_unit_of_work_does_not_matter(case, unit):
    job, trace = case
    scaled = msgspec.structs.replace(
        job,
        work=job.work * unit,
        throughput=tuple(work * unit for work in job.throughput),
    )
    market = trace.window(0, job.hard_deadline)
    here, there = offline_optimum(job, market), offline_optimum(scaled, market)
    assert there.utility == pytest.approx(here.utility, abs=1e-6 + there.gap)


@given(job_on_market(max_slots=10, max_gpus=5, budget=True, moving_on_demand=True), counts)
def test_what_is_simulated_is_what_the_specification_says(case, seed):
    job, trace = case
    rule = job.reconfiguration
    outcome = simulate(job, trace, Restless(seed), ForecastSource.parse("last"))
    held, progress, spent = (0, 0), 0.0, 0.0
    for entry in outcome.entries:
        now = (entry.allocation.spot, entry.allocation.on_demand)
        before, after = sum(held), sum(now)
        mu = rule.grow if after > before else rule.shrink if after < before else 1.0
        if rule.key is COMPOSITION:
            kept = min(held[0], entry.available)
            mu = min(
                rule.preempted if kept < held[0] else 1.0,
                rule.grow if now[0] > kept or now[1] > held[1] else 1.0,
                rule.shrink if now[0] < kept or now[1] < held[1] else 1.0,
            )
        assert entry.efficiency == mu
        assert entry.preempted == max(0, held[0] - entry.available)
        assert entry.work == pytest.approx(mu * job.throughput[after])
        spent += now[0] * entry.spot_price + now[1] * entry.on_demand_price
        progress += entry.work
        assert entry.progress == pytest.approx(progress)
        held = now
    assert outcome.cost == pytest.approx(spent)
    finished = progress >= job.work - 1e-8
    assert (outcome.finished is not None) == finished
    if finished:
        assert outcome.finished == len(outcome.entries)
        assert outcome.value == pytest.approx(value_of_finishing(job, outcome.finished))
    else:
        assert len(outcome.entries) == job.hard_deadline
        assert outcome.value == 0
    assert np.isfinite(outcome.utility)


def test_idle_costs_and_earns_nothing():
    job = Job(work=5, deadline=4, value=9, throughput=(0.0, 1.0, 2.0))
    case = simulate(job, constant_market(6), Idle(), ForecastSource.parse("last"))
    assert (case.cost, case.value, case.utility, case.finished) == (0, 0, 0, None)
