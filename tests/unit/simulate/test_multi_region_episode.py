from __future__ import annotations

import math

import pytest

from duetune.core.multi_region_physics import InstancePool, MoveCost, MultiRegionJob
from duetune.errors import InvalidInput
from duetune.policies.multi_region_step import Attempt, Otherwise, PoolStep
from duetune.simulate.multi_region_episode import run_multi_region
from support.multi_region import ON_DEMAND, SPOT, TICK, as_planned, job_over, market_over

LONG = {"work_s": 1e6, "deadline_s": 4 * TICK}


def test_attempts_are_tried_in_order_until_one_is_granted():
    asked = []

    def policy(_elapsed, _left, active, _pending, _prices, answer):
        asked.append((active, answer))
        return PoolStep((Attempt("p0", SPOT), Attempt("p1", SPOT)), Otherwise.STAY)

    market = market_over([[0, 0, 1, 0], [1, 1, 1, 0]], [1.0, 1.2], [3.0, 3.0])
    outcome = run_multi_region(job_over([0.0, 0.0], **LONG), market, policy)
    first, second = Attempt("p0", SPOT), Attempt("p1", SPOT)
    assert outcome.history == (second, second, first, None)
    assert asked == [(None, None), (second, second), (second, second), (None, first)]
    assert (outcome.restarts, outcome.moves, outcome.refused) == (2, 1, 4)


def test_the_policy_sees_prices_of_all_pools_and_no_availability():
    seen = []

    def policy(*view):
        seen.append(view)
        return PoolStep()

    prices = [[1.0, 1.0, 2.0, 2.0], [1.5] * 4]
    job = job_over([0.0, 0.0], **LONG)
    for up in ([[1] * 4, [0] * 4], [[0] * 4, [1] * 4]):
        run_multi_region(job, market_over(up, prices, [3.0, 3.3]), policy)
    assert seen[:4] == seen[4:]
    assert seen[2][4]["p0"] == pytest.approx((2.0, 3.0))
    assert seen[2][4]["p1"] == pytest.approx((1.5, 3.3))


def test_staying_keeps_what_is_held_and_waiting_releases_it():
    market = market_over([[1, 1, 1, 1]], [1.0], [3.0])
    for otherwise, ran in ((Otherwise.STAY, 4), (Otherwise.WAIT, 1), (Otherwise.STOP, 1)):
        steps = iter([PoolStep((Attempt("p0", SPOT),)), *[PoolStep((), otherwise)] * 3])
        outcome = run_multi_region(job_over([0.0], **LONG), market, lambda *_, s=steps: next(s))
        assert sum(each is not None for each in outcome.history) == ran
        assert outcome.restarts == 1


def test_a_move_takes_and_costs_a_transfer_and_the_first_start_does_not():
    far = MoveCost.of_size(gigabytes=15, gigabits_per_s=1, usd_per_gigabyte=0.02)
    assert far == MoveCost(seconds=120.0, dollars=0.3)
    moves = ((MoveCost(), far), (MoveCost(), MoveCost()))
    market = market_over([[1] * 4] * 2, [1.0, 1.0], [3.0, 3.0])
    plan = [("p0", SPOT), ("p1", SPOT), ("p0", SPOT), ("p0", ON_DEMAND)]
    job = job_over([60.0, 90.0], moves=moves, work_s=540 + 390 + 540 + 540, deadline_s=4 * TICK)
    outcome = run_multi_region(job, market, as_planned(plan))
    assert outcome.finished_tick == 4
    assert (outcome.moves, outcome.egress) == (2, pytest.approx(0.3))
    assert outcome.cost == pytest.approx(3 / 6 + 3 / 6 + 0.3)
    more = job_over([60.0, 90.0], moves=moves, work_s=540 + 390 + 541 + 540, deadline_s=4 * TICK)
    assert run_multi_region(more, market, as_planned(plan)).finished_tick is None


def test_the_last_tick_is_billed_in_full_or_up_to_the_end_of_the_work():
    market = market_over([[1, 1]], [1.2], [3.0])
    for prorated, billed in ((False, 0.4), (True, 0.2 + 140 / 3600 * 1.2)):
        job = job_over(
            [100.0], [2.0], work_s=1280.0, deadline_s=2 * TICK, prorate_last_tick=prorated
        )
        plan = [("p0", SPOT), ("p0", SPOT)]
        assert run_multi_region(job, market, as_planned(plan)).cost == pytest.approx(billed)


@pytest.mark.parametrize(
    ("field", "fields"),
    [
        ("work_s", {"work_s": 0.0}),
        ("deadline_s", {"deadline_s": 599.0}),
        ("tick_s", {"tick_s": math.nan}),
        ("pools", {"pools": ()}),
        ("pools", {"pools": (InstancePool("a"), InstancePool("a"))}),
        ("restart_overhead_s of pool a", {"pools": (InstancePool("a", -1.0),)}),
        ("pace of pool a", {"pools": (InstancePool("a", 1.0, 0.0),)}),
        ("moves", {"moves": ((MoveCost(),),)}),
        ("moves[0][1].dollars", {"moves": ((MoveCost(), MoveCost(0, -1)), (MoveCost(),) * 2)}),
        ("moves[1][1]", {"moves": ((MoveCost(),) * 2, (MoveCost(), MoveCost(1.0)))}),
    ],
)
def test_a_job_that_cannot_be_is_refused_in_one_line(field, fields):
    usual = {"work_s": 600.0, "deadline_s": 6000.0, "pools": (InstancePool("a"), InstancePool("b"))}
    with pytest.raises(InvalidInput) as refused:
        MultiRegionJob(**{**usual, **fields})
    assert refused.value.field == field
    assert "\n" not in str(refused.value)


def test_a_market_of_other_slots_or_pools_is_refused():
    market = market_over([[1, 1]], [1.2], [3.0])
    with pytest.raises(InvalidInput, match="tick_s"):
        run_multi_region(job_over([0.0], tick_s=300.0, **LONG), market, as_planned([None] * 9))
    with pytest.raises(InvalidInput, match="pools"):
        run_multi_region(job_over([0.0, 0.0], **LONG), market, as_planned([None] * 9))
    with pytest.raises(InvalidInput, match="one of p0"):
        run_multi_region(job_over([0.0], **LONG), market, as_planned([("elsewhere", SPOT)] * 9))
