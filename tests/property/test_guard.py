"""T5: under the guard no deadline is missed that on-demand could have met from the start."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from duetune.core.decision import Allocation, Decision
from duetune.core.job import Job, Reconfiguration, ValueShape, linear_throughput
from duetune.core.market import MarketTrace
from duetune.core.physics import job_physics, play
from duetune.errors import InvalidInput
from duetune.market.forecast.forecast_source import ForecastSource
from duetune.policies.ahanp import Ahanp
from duetune.policies.ahap import Ahap
from duetune.policies.baselines import MaximalSpot, OnDemandOnly, UniformProgress
from duetune.policies.guard import deadline_guard
from duetune.simulate.episode import simulate
from duetune.testing import FixedPlan, Idle, Restless, constant_market, market_of
from support.strategies import COMPOSITION, TOTAL, job_on_market, jobs

LAST, PERFECT = ForecastSource.parse("last"), ForecastSource.parse("perfect")
BUILT_IN = [
    OnDemandOnly(),
    MaximalSpot(),
    UniformProgress(),
    UniformProgress(hysteresis=False),
    UniformProgress(gang=True),
    Ahanp(threshold=0.3),
    Ahanp(threshold=0.9),
    Ahap(window=1, commitment=1, threshold=0.3, outlook=0.0),
    Ahap(window=5, commitment=5, threshold=0.9, outlook=1.0),
    Ahap(window=4, commitment=3, threshold=0.5, outlook=0.5, virtual=True),
    Ahap(window=3, commitment=2, threshold=0.5, outlook=0.0, refuse_dear_spot=True),
]
policies = st.one_of(
    st.sampled_from([*BUILT_IN, Idle()]),
    st.integers(0, 50).map(Restless),
)
cases = {
    key: job_on_market(max_slots=12, max_gpus=5, key=key, moving_on_demand=True, tightness=(0.3, 1))
    for key in (TOTAL, COMPOSITION)
}


def feasible(job: Job) -> bool:
    physics = job_physics(job)
    return bool(physics.reach[job.deadline, 0] >= job.work)


def adversarial(job: Job, how: str) -> MarketTrace:
    """Spot that tempts, and then is taken away."""
    slots = np.arange(job.hard_deadline)
    most = job.max_gpus
    available = {
        "vanishes": np.where(slots < job.deadline // 2, most, 0),
        "every other slot": np.where(slots % 2 == 0, most, 0),
        "one by one": np.maximum(0, most - slots),
        "comes back late": np.where(slots < job.deadline - 1, 0, most),
        "last slot gone": np.where(slots == job.deadline - 1, 0, most),
        "one missing": np.where(slots % 3 == 2, most - 1, most),
    }[how]
    return MarketTrace.single(np.full(slots.size, 0.1), available, 1.0)


tricks = st.sampled_from(
    [
        "vanishes",
        "every other slot",
        "one by one",
        "comes back late",
        "last slot gone",
        "one missing",
    ]
)


@given(cases[TOTAL], policies)
def test_no_feasible_deadline_is_missed_with_the_total_key(case, policy):
    job, trace = case
    assume(feasible(job))
    assert simulate(job, trace, deadline_guard(policy), LAST).on_time


@given(cases[COMPOSITION], policies)
def test_no_feasible_deadline_is_missed_with_the_composition_key(case, policy):
    job, trace = case
    assume(feasible(job))
    assert simulate(job, trace, deadline_guard(policy), LAST).on_time


@given(jobs(max_slots=12, max_gpus=5, key=TOTAL, tightness=(0.5, 1)), policies, tricks)
def test_no_trick_of_the_market_makes_a_job_late_with_the_total_key(job, policy, trick):
    assume(feasible(job))
    assert simulate(job, adversarial(job, trick), deadline_guard(policy), LAST).on_time


@given(jobs(max_slots=12, max_gpus=5, key=COMPOSITION, tightness=(0.5, 1)), policies, tricks)
def test_no_trick_of_the_market_makes_a_job_late_with_the_composition_key(job, policy, trick):
    assume(feasible(job))
    assert simulate(job, adversarial(job, trick), deadline_guard(policy), LAST).on_time


def test_spot_that_comes_back_does_not_lure_the_guard_into_a_swap_it_cannot_afford():
    """15.6 = 4 (0.9 + 1 + 1 + 1) is all that 4 slots of 4 on-demand GPUs can do. From slot 2 on
    4 cheap spot GPUs are there; going over to them costs 0.4 and with it the deadline.
    """
    job = Job(
        work=15.6,
        deadline=4,
        value=100,
        throughput=linear_throughput(4),
        reconfiguration=Reconfiguration(key=COMPOSITION),
    )
    assert feasible(job)
    trace = market_of([0.3] * 6, [0, 4, 4, 4, 4, 4])
    for policy in (MaximalSpot(), UniformProgress(), Ahap(), Idle()):
        outcome = simulate(job, trace, deadline_guard(policy), PERFECT)
        assert outcome.on_time, policy.name


def test_spot_that_goes_one_by_one_makes_no_job_late_where_shrinking_costs_most():
    job = Job(
        work=4.25,
        deadline=10,
        value=8.0,
        throughput=(0.0, 0.5, 0.5, 0.5, 0.5),
        hard_deadline_factor=1.0,
        reconfiguration=Reconfiguration(1.0, 0.5, 0.8, COMPOSITION),
    )
    assert feasible(job)
    trace = adversarial(job, "one by one")
    for seed in range(40):
        assert simulate(job, trace, deadline_guard(Restless(seed)), LAST).on_time, seed


class Stubborn(msgspec.Struct, frozen=True):
    """Always the same allocation, as far as available, the rest on demand."""

    spot: int
    on_demand: int

    @property
    def name(self) -> str:
        return "stubborn"

    def decide(self, view):
        spot = min(self.spot, view.market.available)
        return Decision(Allocation(spot, self.on_demand + self.spot - spot), "always the same 1")


def test_the_guard_also_changes_the_split_of_a_total():
    """15.6 is all that 4 slots of 4 on-demand GPUs can do. In slot 2 the policy swaps them for spot
    that is even dearer, which costs 0.4 and the deadline; 4 on demand, the cheapest split, do not.
    """
    job = Job(
        work=15.6,
        deadline=4,
        value=100,
        throughput=linear_throughput(4),
        reconfiguration=Reconfiguration(key=COMPOSITION),
    )
    trace = market_of([1.2] * 6, [4] * 6)
    swapping = FixedPlan(((0, 4), (4, 0), (0, 4), (0, 4)))
    outcome = simulate(job, trace, deadline_guard(swapping), PERFECT)
    assert feasible(job)
    assert outcome.on_time


@given(st.sampled_from([TOTAL, COMPOSITION]).flatmap(lambda key: cases[key]), policies)
def test_the_guard_changes_nothing_while_the_deadline_is_safe(case, policy):
    """Step by step beside the bare policy: as long as on-demand could still do all the work after
    the bare decision, the guarded decision is the bare one.
    """
    job, trace = case
    roomy = msgspec.structs.replace(job, work=round(0.02 * job.work + 0.01, 3))
    physics = job_physics(roomy)
    # So little work that on-demand does it in the last slot alone, whatever was held before.
    mu = min(physics.grow, physics.shrink, physics.preempted)
    assume(job.deadline > 1)
    assume(mu * physics.throughput[-1] >= roomy.work)
    early = msgspec.structs.replace(roomy, deadline=job.deadline)
    bare = simulate(early, trace, policy, LAST).entries[: job.deadline - 1]
    guarded = simulate(early, trace, deadline_guard(policy), LAST).entries[: job.deadline - 1]
    # The built-in policies have an economic guard of their own, which the other replaces.
    assert [entry.allocation for entry in guarded] == [entry.allocation for entry in bare]


@given(jobs(max_slots=10, max_gpus=4), tricks)
def test_a_plan_that_keeps_the_deadline_on_every_step_is_not_touched(job, trick):
    """Holding the maximum on demand from the start is as safe as can be, where it suffices."""
    rule = msgspec.structs.replace(job.reconfiguration, grow=0.9, shrink=0.9, preempted=0.9)
    job = msgspec.structs.replace(job, reconfiguration=rule)
    plan = FixedPlan(((0, job.max_gpus),) * job.hard_deadline)
    assume((job.deadline - 1 + 0.9) * job.throughput[-1] >= job.work)
    trace = adversarial(job, trick)
    bare, guarded = (simulate(job, trace, each, LAST) for each in (plan, deadline_guard(plan)))
    assert guarded.entries == bare.entries


@given(cases[TOTAL], policies)
def test_the_guard_does_nothing_for_a_deadline_that_is_lost_anyway(case, policy):
    job, trace = case
    hopeless = msgspec.structs.replace(job, work=round(job.deadline * job.throughput[-1] + 1, 2))
    if isinstance(policy, Idle | Restless):
        bare = simulate(hopeless, trace, policy, LAST)
        guarded = simulate(hopeless, trace, deadline_guard(policy), LAST)
        assert guarded.entries == bare.entries
    else:
        assert not simulate(hopeless, trace, deadline_guard(policy), LAST).on_time


@given(
    jobs(max_slots=12, max_gpus=5, key=TOTAL, tightness=(0.3, 1)),
    st.sampled_from(BUILT_IN[2:]),
    tricks,
)
def test_policies_are_on_time_of_their_own_accord_where_being_late_costs_much(job, policy, trick):
    """Their own guard is economic: a late slot must cost more than a rush for all of the time."""
    precious = msgspec.structs.replace(
        job,
        value=100.0 * job.max_gpus * job.deadline**2,
        value_shape=ValueShape.LINEAR,
    )
    assume(feasible(precious))
    assert simulate(precious, adversarial(precious, trick), policy, LAST).on_time


def test_a_guarded_policy_is_not_guarded_twice():
    for policy in (MaximalSpot(), Idle()):
        once = deadline_guard(policy)
        assert deadline_guard(once) is once
        assert once.name == f"guarded:{policy.name}"


def test_the_guard_says_what_it_changed_and_why():
    job = Job(work=8, deadline=4, value=50, throughput=linear_throughput(4))
    outcome = simulate(job, constant_market(6, available=0), deadline_guard(Idle()), LAST)
    raised = [entry for entry in outcome.entries if entry.allocation.total]
    assert outcome.on_time
    assert all("guard" in entry.reason and "slot 4" in entry.reason for entry in raised)


def test_the_budget_stays_above_the_guard():
    job = Job(work=8, deadline=4, value=50, throughput=linear_throughput(4), budget=3.0)
    for policy in (Idle(), MaximalSpot()):
        outcome = simulate(job, constant_market(6, available=0), deadline_guard(policy), LAST)
        assert outcome.cost <= 3.0
        assert not outcome.on_time


def test_an_illegal_wish_is_refused_under_the_guard_as_without_it():
    job = Job(work=15.6, deadline=4, value=50, throughput=linear_throughput(4))
    for illegal in (Stubborn(0, 5), Stubborn(0, 400), Stubborn(0, -1)):
        for policy in (illegal, deadline_guard(illegal)):
            with pytest.raises(InvalidInput):
                simulate(job, constant_market(6, available=0), policy, LAST)


def test_a_committed_plan_replayed_under_the_guard_never_does_worse_than_late():
    """The guard may cost money, but what it buys is being on time."""
    job = Job(work=12, deadline=5, value=100, throughput=linear_throughput(4))
    trace = market_of([0.2] * 7, [4, 0, 0, 0, 4, 4, 4])
    late = simulate(job, trace, FixedPlan(((4, 0),) * 7), LAST)
    saved = simulate(job, trace, deadline_guard(FixedPlan(((4, 0),) * 7)), LAST)
    spot = np.array([entry.allocation.spot for entry in saved.entries])
    on_demand = np.array([entry.allocation.on_demand for entry in saved.entries])
    utility = play(job_physics(job), trace.window(0, 7), spot, on_demand)[0]
    assert (late.on_time, saved.on_time) == (False, True)
    assert saved.utility == utility > late.utility
