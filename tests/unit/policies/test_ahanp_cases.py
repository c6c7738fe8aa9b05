"""Section 6, case by case: 40 work by slot 10, so 4 a slot; up to 8 GPUs; threshold 0.5."""

from __future__ import annotations

import pytest

from duetune.core.job import Job, Reconfiguration, linear_throughput
from duetune.errors import InvalidInput
from duetune.policies.ahanp import Ahanp
from duetune.testing import view_of

CHEAP, DEAR = 0.5, 0.51
FREE = Reconfiguration(1.0, 1.0, 1.0)  # whole numbers of work: the planner's grid is exact
AHEAD, BEHIND = {"slot": 3, "progress": 12.0}, {"slot": 3, "progress": 8.0}


def held(**slot):
    job = Job(
        work=40.0,
        deadline=10,
        value=slot.pop("value", 500.0),
        throughput=linear_throughput(8),
        min_gpus=slot.pop("min_gpus", 1),
        reconfiguration=slot.pop("rule", Reconfiguration()),
    )
    allocation = Ahanp(threshold=0.5).decide(view_of(job, **slot)).allocation
    return allocation.spot, allocation.on_demand


def test_case_1_from_the_deadline_on_it_finishes_where_that_earns_most():
    assert held(slot=10, progress=36.0, held=(4, 0), available=4, rule=FREE) == (4, 0)
    assert held(slot=12, progress=36.0, held=(0, 4), available=0, rule=FREE) == (0, 4)


def test_case_1_it_gives_up_where_finishing_earns_less_than_it_costs():
    assert held(slot=12, progress=32.0, held=(0, 8), available=0, value=10.0) == (0, 0)


def test_case_1_it_uses_the_spot_of_this_slot():
    assert held(slot=11, progress=36.0, held=(0, 4), available=3, spot_price=0.9, rule=FREE) == (
        3,
        1,
    )


def test_case_2_ahead_and_cheap_takes_all_spot_and_nothing_else():
    assert held(**AHEAD, spot_price=CHEAP, available=6) == (6, 0)
    assert held(**AHEAD, spot_price=CHEAP, available=20) == (8, 0)


def test_case_3_ahead_and_dear_waits():
    assert held(**AHEAD, spot_price=DEAR, available=6) == (0, 0)


def test_case_3_ahead_without_spot_waits():
    assert held(**AHEAD, spot_price=CHEAP, available=0) == (0, 0)


def test_case_3_ahead_with_less_spot_than_the_minimum_waits():
    assert held(**AHEAD, spot_price=CHEAP, available=2, min_gpus=3) == (0, 0)


def test_case_3_on_demand_is_kept_until_the_lead_pays_for_two_restarts():
    # 5 GPUs lose 2 x 0.1 x 5 = 1 work in two restarts.
    slot = {"slot": 3, "held": (0, 5), "available": 0, "spot_price": DEAR}
    assert held(progress=12.9, **slot) == (0, 5)
    assert held(progress=13.0, **slot) == (0, 0)


def test_case_4_behind_and_cheap_takes_the_larger_of_pace_and_spot():
    assert held(**BEHIND, spot_price=CHEAP, available=7) == (7, 0)
    assert held(**BEHIND, spot_price=CHEAP, available=2) == (2, 3)


def test_case_5_behind_and_dear_keeps_to_the_pace_spot_first():
    assert held(**BEHIND, spot_price=DEAR, available=7) == (5, 0)
    assert held(**BEHIND, spot_price=DEAR, available=2) == (2, 3)
    assert held(**BEHIND, spot_price=DEAR, available=0) == (0, 5)


def test_far_behind_it_holds_the_maximum():
    assert held(slot=6, progress=4.0, spot_price=DEAR, available=0) == (0, 8)


def test_the_pace_is_that_at_the_end_of_the_slot():
    assert held(slot=3, progress=11.9, spot_price=DEAR, available=0) == (0, 1), "behind by 0.1"
    assert held(slot=3, progress=12.0, spot_price=DEAR, available=0) == (0, 0)


@pytest.mark.parametrize("threshold", [-0.1, 1.1, float("nan")])
def test_a_threshold_is_a_share_of_the_on_demand_price(threshold):
    with pytest.raises(InvalidInput) as caught:
        Ahanp(threshold=threshold)
    assert caught.value.field == "threshold"
    assert repr(threshold) in str(caught.value)
    assert "0 to 1" in str(caught.value)
