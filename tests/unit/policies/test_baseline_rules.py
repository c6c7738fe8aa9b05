"""Section 7, rule by rule, on slots made by hand: 40 work by slot 10, so 4 a slot; up to 8 GPUs."""

from __future__ import annotations

import pytest

from duetune.core.job import Job, Reconfiguration, linear_throughput
from duetune.policies.baselines import MaximalSpot, OnDemandOnly, UniformProgress
from duetune.testing import view_of

EAGER = UniformProgress(hysteresis=False)
GANG = UniformProgress(gang=True)


def job(**fields: object) -> Job:
    defaults = {"work": 40.0, "deadline": 10, "value": 500.0, "throughput": linear_throughput(8)}
    return Job(**{**defaults, **fields})


def held(policy, wish=None, **slot):
    """(spot, on-demand) that the policy holds."""
    allocation = policy.decide(view_of(wish or job(), **slot)).allocation
    return allocation.spot, allocation.on_demand


# --- thrift


def test_thrifty_maximal_spot_holds_no_more_than_finishes_the_work():
    slot = {"slot": 5, "progress": 36.0, "held": (8, 0), "available": 8}
    assert held(MaximalSpot(), **slot) == (8, 0)
    assert held(MaximalSpot(thrifty=True), **slot) == (5, 0), "0.95 x 4 is below the 4 left"


def test_thrift_changes_nothing_while_the_work_goes_on():
    assert held(MaximalSpot(thrifty=True), available=6) == held(MaximalSpot(), available=6)


# --- on-demand only


def test_on_demand_holds_the_fewest_that_meet_the_deadline():
    assert held(OnDemandOnly()) == (0, 5), "(9 + 0.9) x 4 is below 40"


def test_on_demand_counts_the_cold_start():
    assert held(OnDemandOnly(), job(work=39.6)) == (0, 4)
    assert held(OnDemandOnly(), job(work=39.7)) == (0, 5)


def test_on_demand_takes_no_spot_however_cheap():
    assert held(OnDemandOnly(), spot_price=0.0, available=8) == (0, 5)


def test_on_demand_respects_the_minimum():
    assert held(OnDemandOnly(), job(min_gpus=7)) == (0, 7)


def test_on_demand_holds_the_maximum_where_nothing_meets_the_deadline():
    assert held(OnDemandOnly(), job(work=500.0)) == (0, 8)


def test_on_demand_gives_up_after_the_deadline_where_finishing_is_not_worth_it():
    late = {"slot": 11, "held": (0, 5)}
    assert held(OnDemandOnly(), job(value=500.0), progress=35.0, **late) == (0, 5)
    assert held(OnDemandOnly(), job(value=5.0), progress=35.0, **late) == (0, 0)


# --- maximal spot


@pytest.mark.parametrize(("available", "expected"), [(5, (5, 0)), (12, (8, 0)), (1, (1, 0))])
def test_maximal_spot_holds_all_there_is(available, expected):
    assert held(MaximalSpot(), available=available) == expected


def test_maximal_spot_waits_below_the_minimum():
    assert held(MaximalSpot(), job(min_gpus=3), available=2) == (0, 0)


def test_maximal_spot_waits_until_the_last_moment_and_not_longer():
    late = job(work=16.0)
    # Two slots do (0.9 + 1) x 8 = 15.2, three do 23.2.
    assert held(MaximalSpot(), late, slot=7, available=0) == (0, 0)
    assert held(MaximalSpot(), late, slot=8, available=0) == (0, 8)


def test_maximal_spot_takes_spot_first_at_the_last_moment():
    assert held(MaximalSpot(), job(work=23.2), slot=8, available=3) == (3, 5)


def test_maximal_spot_goes_on_with_spot_where_the_deadline_is_lost():
    assert held(MaximalSpot(), job(work=39.0), slot=9, available=3) == (3, 0)


# --- uniform progress


def test_uniform_progress_behind_takes_all_spot_if_that_is_more_than_the_pace():
    assert held(UniformProgress(), available=8) == (8, 0)


def test_uniform_progress_behind_fills_up_to_the_pace_on_demand():
    # 0.9 x 5 = 4.5 is the least that does 4.
    assert held(UniformProgress(), available=2) == (2, 3)
    assert held(UniformProgress(), available=0) == (0, 5)


def test_uniform_progress_needs_fewer_where_nothing_changes():
    slot = {"slot": 2, "progress": 4.0, "available": 0}
    assert held(UniformProgress(), held=(0, 4), **slot) == (0, 4)
    assert held(UniformProgress(), held=(0, 3), **slot) == (0, 5)
    assert held(UniformProgress(), held=(0, 6), **slot) == (0, 5), "0.95 x 5 is enough"


def test_uniform_progress_ahead_holds_spot_only():
    assert held(UniformProgress(), slot=3, progress=12.0, available=6) == (6, 0)


def test_uniform_progress_ahead_waits_where_there_is_no_spot():
    assert held(UniformProgress(), slot=3, progress=12.0, available=0) == (0, 0)


def test_uniform_progress_stays_on_demand_until_two_changeovers_ahead():
    # Two changeovers are 0.2 slots, 0.8 work.
    slot = {"slot": 3, "held": (0, 5), "available": 0}
    assert held(UniformProgress(), progress=12.7, **slot) == (0, 5)
    assert held(UniformProgress(), progress=12.8, **slot) == (0, 0)
    assert held(EAGER, progress=12.7, **slot) == (0, 0)


def test_uniform_progress_has_no_hysteresis_without_on_demand():
    assert held(UniformProgress(), slot=3, progress=12.1, held=(5, 0), available=0) == (0, 0)


def test_uniform_progress_below_the_minimum_has_no_spot():
    few = job(min_gpus=3)
    assert held(UniformProgress(), few, slot=3, progress=12.0, available=2) == (0, 0)
    assert held(UniformProgress(), few, available=2) == (2, 3)


def test_uniform_progress_rushes_before_the_deadline_is_lost():
    # Ahead of the pace no, but waiting is impossible: two slots of 8 from 5 do 0.9 x 8 + 8.
    slot = {"slot": 9, "progress": 24.8, "held": (0, 5), "available": 0}
    assert held(UniformProgress(), **slot) == (0, 8)


# --- the gang of NSDI'24: 5 GPUs, all or none


def test_gang_takes_spot_only_if_there_is_enough_for_all():
    assert held(GANG, available=5) == (5, 0)
    assert held(GANG, available=4) == (0, 0)


def test_gang_behind_catches_up_on_demand():
    assert held(GANG, slot=3, progress=6.0, available=4) == (0, 5)


def test_gang_behind_takes_the_risk_of_spot():
    assert held(GANG, slot=3, progress=6.0, available=5) == (5, 0)


def test_gang_on_spot_stays_on_spot():
    assert held(GANG, slot=3, progress=4.0, held=(5, 0), available=6) == (5, 0)


def test_gang_on_demand_stays_until_two_changeovers_ahead():
    slot = {"slot": 3, "held": (0, 5), "available": 8}
    assert held(GANG, progress=8.7, **slot) == (0, 5)
    assert held(GANG, progress=8.8, **slot) == (5, 0)


def test_gang_once_in_the_safety_net_stays_on_demand_to_the_end():
    net = GANG.decide(view_of(job(), slot=9, progress=32.0, available=4))
    assert (net.allocation.spot, net.allocation.on_demand) == (0, 5)
    after = {"slot": 10, "progress": 36.5, "available": 8}
    assert held(GANG, memo=net.memo, held=(0, 5), **after) == (0, 5)


def test_gang_is_free_of_the_net_in_a_job_of_its_own():
    assert held(GANG, slot=10, progress=36.5, held=(5, 0), available=8) == (5, 0)


@pytest.mark.parametrize(
    "policy", [MaximalSpot(), UniformProgress(), GANG], ids=lambda policy: policy.name
)
def test_spot_that_is_dearer_counts_as_none(policy):
    dear = held(policy, spot_price=1.2, available=8)
    assert dear == held(policy, spot_price=0.4, available=0)


def test_behind_the_pace_on_demand_replaces_spot_that_is_dearer():
    spot, on_demand = held(UniformProgress(), spot_price=1.2, available=8)
    assert spot == 0
    assert on_demand > 0


@pytest.mark.parametrize("policy", [OnDemandOnly(), MaximalSpot(), UniformProgress(), EAGER, GANG])
def test_a_job_of_one_gpu_and_one_slot_is_decided(policy):
    one = Job(work=0.9, deadline=1, value=5, throughput=(0.0, 1.0))
    assert sum(held(policy, one, available=1)) == 1


@pytest.mark.parametrize("policy", [OnDemandOnly(), MaximalSpot(), UniformProgress(), EAGER, GANG])
def test_no_loss_and_one_size_is_decided(policy):
    rigid = job(min_gpus=8, reconfiguration=Reconfiguration(1.0, 1.0, 1.0))
    assert held(policy, rigid, available=8) in {(8, 0), (0, 8)}
