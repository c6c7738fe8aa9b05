"""Section 5.3, line by line, on slots made by hand."""

from __future__ import annotations

import numpy as np
import pytest

from duetune.core.decision import Outlook
from duetune.core.job import Job, Reconfiguration, linear_throughput
from duetune.errors import InvalidInput
from duetune.market.forecast.forecast_source import ForecastSource
from duetune.policies.ahap import Ahap
from duetune.simulate.episode import simulate
from duetune.testing import market_of, view_of

FREE = Reconfiguration(1.0, 1.0, 1.0)
PERFECT = ForecastSource.parse("perfect")


def planner(window: int = 4, commitment: int = 1, **options: object) -> Ahap:
    defaults = {"threshold": 0.0, "outlook": 0.0, "patience": 0.0}
    return Ahap(window=window, commitment=commitment, **{**defaults, **options})


def job(**fields: object) -> Job:
    defaults = {
        "work": 8.0,
        "deadline": 10,
        "value": 100.0,
        "throughput": linear_throughput(8),
        "reconfiguration": FREE,
    }
    return Job(**{**defaults, **fields})


def held(policy, wish=None, **slot):
    allocation = policy.decide(view_of(wish or job(), **slot)).allocation
    return allocation.spot, allocation.on_demand


LATER_CHEAPER = [(0.05, 8)] + [(0.9, 8)] * 5


# --- the plan


def test_it_waits_for_a_cheaper_slot_that_the_forecast_shows():
    assert held(planner(), spot_price=0.2, available=8, ahead=LATER_CHEAPER) == (0, 0)


def test_it_takes_spot_now_where_the_forecast_shows_nothing_better():
    assert held(planner(), spot_price=0.2, available=8, ahead=[(0.9, 8)] * 5) == (8, 0)


def test_it_does_not_look_beyond_its_window():
    ahead = [(0.9, 0), (0.9, 0), (0.05, 8), (0.05, 8)]
    assert held(planner(2), spot_price=0.2, available=8, ahead=ahead) == (8, 0)
    assert held(planner(3), spot_price=0.2, available=8, ahead=ahead) == (0, 0)


def test_beyond_the_window_it_counts_on_on_demand_alone_without_an_outlook():
    slot = {"spot_price": 0.5, "available": 8, "ahead": [(0.9, 0)]}
    assert held(planner(1), **slot) == (8, 0)


def test_with_an_outlook_it_waits_for_the_typical_market():
    typical = Outlook(available=8.0, spot_price=0.1)
    slot = {"spot_price": 0.5, "available": 8, "ahead": [(0.9, 0)], "outlook": typical}
    assert held(planner(1, outlook=1.0), **slot) == (0, 0)
    assert held(planner(1, outlook=0.0), **slot) == (8, 0)


def test_it_never_plans_past_the_deadline():
    # Cheap spot in slot 11 would be late; the window ends with slot 10.
    slot = {"slot": 9, "spot_price": 0.5, "available": 8, "ahead": [(0.9, 0), (0.01, 8)]}
    assert held(planner(4), job(hard_deadline_factor=1.2), **slot) == (8, 0)


def test_on_demand_fills_what_the_market_does_not_give():
    assert held(planner(), job(deadline=2), slot=1, available=3, ahead=[(0.9, 0)])[0] == 3


def test_patience_makes_on_demand_now_seem_dearer_and_spot_not():
    # Two slots are left for the work of one: on demand now or later costs the same.
    slot = {"slot": 8, "available": 0, "ahead": [(0.9, 0), (0.9, 0)]}
    busy = job(work=16.0)
    assert held(planner(2), busy, **slot)[1] <= 8
    assert held(planner(2, patience=0.5), busy, **slot) == (0, 0)
    cheap = {"spot_price": 0.2, "available": 8, "ahead": [(0.9, 8)] * 5}
    assert held(planner(patience=0.5), **cheap) == (8, 0)


def test_a_window_of_nothing_plans_with_this_slot_and_what_is_beyond():
    assert held(planner(0), spot_price=0.5, available=8) == (8, 0)
    assert held(planner(0), spot_price=1.0, available=8) == (0, 0)


# --- the threshold


def test_ahead_and_cheap_it_banks_all_spot():
    slot = {"spot_price": 0.2, "available": 7, "ahead": LATER_CHEAPER}
    decision = planner(threshold=0.2).decide(view_of(job(), **slot))
    assert (decision.allocation.spot, decision.allocation.on_demand) == (7, 0)
    assert "working ahead" in decision.reason


def test_above_the_threshold_it_does_not_bank():
    assert held(planner(threshold=0.19), spot_price=0.2, available=7, ahead=LATER_CHEAPER) == (0, 0)


def test_behind_it_does_not_bank():
    slot = {"slot": 3, "progress": 0.0, "spot_price": 0.2, "available": 7, "ahead": LATER_CHEAPER}
    assert held(planner(threshold=0.2), **slot) == (0, 0)


def test_ahead_is_measured_at_the_end_of_the_slot_before():
    slot = {"slot": 3, "spot_price": 0.2, "available": 7, "ahead": LATER_CHEAPER}
    assert held(planner(threshold=0.2), progress=1.6, **slot) == (7, 0)
    assert held(planner(threshold=0.2), progress=1.5, **slot) == (0, 0)


def test_it_banks_no_more_than_the_job_can_hold():
    slot = {"spot_price": 0.2, "available": 50, "ahead": LATER_CHEAPER}
    assert held(planner(threshold=0.2), **slot) == (8, 0)


def test_banking_never_lowers_what_the_plan_holds():
    slot = {"spot_price": 0.2, "available": 3, "ahead": [(0.9, 0)], "on_demand_price": 0.3}
    bare, banking = (
        held(planner(), job(deadline=2), **slot),
        held(planner(threshold=0.7), job(deadline=2), **slot),
    )
    assert sum(banking) >= sum(bare)


def test_ahead_it_can_refuse_dear_spot():
    slot = {"spot_price": 0.5, "available": 8, "ahead": [(0.9, 0)] * 3}
    refusing = planner(threshold=0.3, refuse_dear_spot=True)
    assert held(planner(threshold=0.3), **slot) == (8, 0)
    assert held(refusing, **slot)[0] == 0


def test_behind_it_refuses_nothing():
    slot = {"slot": 5, "progress": 0.0, "spot_price": 0.5, "available": 8, "ahead": [(0.9, 0)] * 3}
    assert held(planner(threshold=0.3, refuse_dear_spot=True), **slot) == (8, 0)


# --- the mean of the last plans


def second_slot(policy, wish):
    """Planned in slot 1: all in slot 2. Planned in slot 2: all in slot 3."""
    first = policy.decide(view_of(wish, spot_price=0.9, available=0, ahead=LATER_CHEAPER))
    assert first.allocation.total == 0
    return policy.decide(
        view_of(wish, slot=2, spot_price=0.5, available=8, ahead=LATER_CHEAPER, memo=first.memo)
    )


def test_with_a_commitment_of_one_only_the_newest_plan_counts():
    assert second_slot(planner(4, 1), job(work=7.0)).allocation.total == 0


def test_the_mean_of_the_plans_is_rounded_half_up():
    assert second_slot(planner(4, 2), job(work=7.0)).allocation.total == 4, "(7 + 0) / 2 = 3.5"


def test_the_first_slots_average_the_plans_there_are():
    assert second_slot(planner(4, 4), job(work=7.0)).allocation.total == 4


def test_a_mean_of_at_least_half_the_minimum_becomes_the_minimum():
    assert second_slot(planner(4, 2), job(work=4.0, min_gpus=4)).allocation.total == 4


def test_a_mean_below_half_the_minimum_becomes_nothing():
    wish, policy = job(work=4.0, min_gpus=4), planner(4, 3)
    second = second_slot(policy, wish)
    third = policy.decide(
        view_of(wish, slot=3, spot_price=0.5, available=8, ahead=LATER_CHEAPER, memo=second.memo)
    )
    assert third.allocation.total == 0, "(0 + 4 + 0) / 3 = 1.33"


def test_old_plans_are_forgotten():
    wish, policy = job(work=7.0), planner(4, 2)
    second = second_slot(policy, wish)
    slot = {"spot_price": 0.5, "available": 8, "ahead": LATER_CHEAPER}
    third = policy.decide(view_of(wish, slot=3, memo=second.memo, **slot))
    fourth = policy.decide(view_of(wish, slot=4, memo=third.memo, **slot))
    assert third.allocation.total == fourth.allocation.total == 4, "(7 + 0) / 2, each time"


def test_a_plan_that_does_not_reach_this_slot_does_not_count():
    policy, wish = planner(2, 2), job()
    first = policy.decide(view_of(wish, spot_price=0.9, available=0, ahead=()))
    slot = {"slot": 2, "spot_price": 0.1, "available": 8, "ahead": (), "memo": first.memo}
    assert first.allocation.total == 0
    assert held(policy, wish, **slot) == (8, 0)


def test_versions_with_trajectories_of_their_own_stop_when_they_believe_they_are_done():
    wish, policy = job(work=7.0), planner(4, 2, virtual=True)
    second = second_slot(policy, wish)
    assert second.allocation.total == 4, "one version holds its 7 now, the other waits: 3.5"
    slot = {"spot_price": 0.5, "available": 8, "ahead": LATER_CHEAPER, "held": (4, 0)}
    third = policy.decide(view_of(wish, slot=3, progress=4.0, memo=second.memo, **slot))
    assert third.allocation.total == 3, "one version is done, the other holds its 7; 3 finish"


def test_one_plan_at_a_time_on_its_own_trajectory_is_the_real_one():
    wish = job(work=30.0, reconfiguration=Reconfiguration())
    trace = market_of(
        [0.3, 0.8, 0.2, 0.5, 0.4, 0.9, 0.1, 0.6, 0.3, 0.2, 0.5, 0.5, 0.5, 0.5, 0.5],
        [4, 0, 6, 8, 2, 5, 7, 3, 1, 8, 0, 0, 0, 0, 0],
    )
    outcomes = [
        [entry.allocation for entry in simulate(wish, trace, policy, PERFECT).entries]
        for policy in (planner(4), planner(4, virtual=True))
    ]
    assert outcomes[0] == outcomes[1]


# --- at and after the deadline


def test_at_the_deadline_it_finishes_if_it_can():
    slot = {"slot": 10, "progress": 4.0, "held": (4, 0), "available": 4}
    assert held(planner(), **slot) == (4, 0)


def test_overtime_counts_on_spot_now_and_on_demand_later():
    # 8 left: 8 spot now cost 0.8 of 100 - 20; one slot later they would be on demand.
    slot = {"slot": 11, "held": (0, 0), "spot_price": 0.1, "available": 8}
    assert held(planner(), **slot) == (8, 0)


def test_it_gives_up_where_no_plan_earns_anything():
    poor = job(value=3.0)
    slot = {"slot": 12, "available": 0, "held": (0, 0)}
    decision = planner().decide(view_of(poor, **slot))
    assert decision.allocation.total == 0


def test_it_never_begins_a_job_that_is_not_worth_its_cost():
    assert held(planner(), job(value=0.5), available=8, spot_price=0.4) == (0, 0)


def test_it_goes_on_late_where_that_still_earns():
    slot = {"slot": 12, "available": 0, "held": (0, 4), "progress": 4.0}
    assert held(planner(), **slot) == (0, 4)


# --- fields


@pytest.mark.parametrize(
    ("field", "value", "allowed"),
    [
        ("window", -1, "to 512 slots"),
        ("window", 513, "to 512 slots"),
        ("commitment", 0, "1 to 4, the window"),
        ("commitment", 5, "1 to 4, the window"),
        ("threshold", -0.1, "0 to 1"),
        ("threshold", float("nan"), "0 to 1"),
        ("outlook", -0.1, "0 to 1"),
        ("outlook", 1.1, "0 to 1"),
        ("outlook", float("nan"), "0 to 1"),
        ("patience", -0.1, "0 to 100"),
        ("patience", 101, "0 to 100"),
        ("patience", float("nan"), "0 to 100"),
    ],
)
def test_a_bad_field_is_named_with_its_value_and_what_is_allowed(field, value, allowed):
    with pytest.raises(InvalidInput) as caught:
        Ahap(**{"window": 4, field: value})
    assert caught.value.field == field
    assert repr(value) in str(caught.value)
    assert allowed in str(caught.value)


def test_a_decision_does_not_depend_on_what_was_in_memory(monkeypatch):
    # A slot of 4 GPUs does 66.9 steps of the planning grid: one more than its stride rounded down.
    measured = job(
        work=1021.0,
        deadline=20,
        value=900.0,
        throughput=linear_throughput(4, slope=16.679193929922626),
        reconfiguration=Reconfiguration(grow=0.9, shrink=0.95, preempted=0.9),
    )
    view = view_of(
        measured,
        slot=10,
        progress=297.0,
        held=(0, 4),
        spot_price=0.3,
        available=0,
        ahead=[(0.3, 0)] * 24,
    )
    decisions = []
    for left_over in (-1e9, 1e9):
        monkeypatch.setattr(np, "empty", lambda shape, rest=left_over: np.full(shape, rest))
        decisions.append(Ahap().decide(view))
    assert decisions[0] == decisions[1]
