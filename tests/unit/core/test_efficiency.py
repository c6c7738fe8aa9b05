"""The tables of section 2.4 and 2.8, one line each."""

from __future__ import annotations

import pytest

from duetune.core.job import Job, Reconfiguration, ReconfigurationKey, linear_throughput
from duetune.core.physics import (
    affordable,
    charge,
    cheapest_charge,
    cheapest_spot,
    efficiency,
    is_done,
    job_physics,
    reach_after,
)

GROW, SHRINK, PREEMPTED = 0.9, 0.95, 0.8


def physics(key: str, **fields: object):
    rule = Reconfiguration(GROW, SHRINK, PREEMPTED, ReconfigurationKey(key))
    defaults = {"work": 10.0, "deadline": 5, "value": 9.0, "throughput": linear_throughput(8)}
    return job_physics(Job(**{**defaults, **fields}, reconfiguration=rule))


@pytest.mark.parametrize(
    ("held", "now", "available", "mu", "why"),
    [
        ((0, 0), (2, 0), 4, GROW, "cold start"),
        ((2, 0), (2, 0), 4, 1.0, "no change"),
        ((2, 0), (3, 0), 4, GROW, "growing"),
        ((3, 0), (2, 0), 4, SHRINK, "shrinking"),
        ((2, 0), (0, 2), 4, 1.0, "a swap is free"),
        ((2, 0), (0, 2), 0, 1.0, "a preemption that is replaced is free"),
        ((3, 1), (1, 1), 1, SHRINK, "a preemption that is not replaced is a shrink"),
        ((3, 1), (0, 5), 0, GROW, "only the total counts"),
    ],
)
def test_total_key(held, now, available, mu, why):
    assert efficiency(physics("total"), *held, *now, available) == mu, why


@pytest.mark.parametrize(
    ("held", "now", "available", "mu", "why"),
    [
        ((0, 0), (2, 0), 4, GROW, "cold start"),
        ((2, 1), (2, 1), 4, 1.0, "no change"),
        ((2, 1), (2, 1), 2, 1.0, "what we hold is still available"),
        ((2, 0), (3, 0), 4, GROW, "growing on spot"),
        ((2, 0), (2, 1), 4, GROW, "growing on demand"),
        ((3, 0), (2, 0), 4, SHRINK, "shrinking by choice"),
        ((3, 1), (3, 0), 4, SHRINK, "letting on-demand go"),
        ((2, 0), (0, 2), 4, GROW, "a swap grows and shrinks; the dearer counts"),
        ((3, 0), (2, 0), 2, PREEMPTED, "preempted, not replaced"),
        ((3, 0), (2, 1), 2, PREEMPTED, "preempted and replaced: the dearest counts, not both"),
        ((3, 1), (0, 4), 0, PREEMPTED, "all spot preempted and replaced"),
        ((3, 2), (1, 1), 1, PREEMPTED, "preempted, and on-demand let go"),
    ],
)
def test_composition_key(held, now, available, mu, why):
    assert efficiency(physics("composition"), *held, *now, available) == mu, why


def test_growing_may_be_dearer_than_a_preemption():
    rule = Reconfiguration(0.5, 0.95, 0.8, ReconfigurationKey.COMPOSITION)
    job = job_physics(
        Job(work=1, deadline=2, value=1, throughput=linear_throughput(4), reconfiguration=rule)
    )
    assert efficiency(job, 3, 0, 2, 1, 2) == 0.5


@pytest.mark.parametrize(
    ("gpus", "available", "price", "spot"),
    [
        (4, 3, 0.4, 3),
        (2, 3, 0.4, 2),
        (4, 0, 0.4, 0),
        (4, 3, 1.0, 0),
        (4, 3, 1.2, 0),
        (0, 3, 0.4, 0),
        (4, 4, 0.0, 4),
    ],
)
def test_spot_is_taken_first_where_it_is_cheaper(gpus, available, price, spot):
    assert cheapest_spot(gpus, available, price, 1.0) == spot
    assert cheapest_charge(gpus, available, price, 1.0) == pytest.approx(
        charge(spot, gpus - spot, price, 1.0)
    )


def test_the_cheapest_charge_takes_a_mean_availability():
    assert cheapest_charge(4, 1.5, 0.4, 1.0) == pytest.approx(4 - 1.5 * 0.6)


@pytest.mark.parametrize(
    ("budget", "spent", "wish", "kept"),
    [
        (None, 1e9, (4, 4), (4, 4)),
        (10.0, 0.0, (4, 4), (4, 4)),
        (5.6, 0.0, (4, 4), (4, 4)),
        (5.5, 0.0, (4, 4), (4, 3)),
        (5.6, 4.0, (4, 4), (4, 0)),
        (5.6, 4.8, (4, 4), (2, 0)),
        (5.6, 5.2, (4, 4), (0, 0)),
        (0.0, 0.0, (4, 4), (0, 0)),
        (2.0, 0.0, (0, 4), (0, 2)),
        (1.9, 0.0, (0, 4), (0, 0)),
    ],
)
def test_the_budget_drops_the_dearer_kind_first_and_all_below_the_minimum(
    budget, spent, wish, kept
):
    job = physics("total", budget=budget, min_gpus=2)
    assert affordable(job, *wish, 0.4, 1.0, spent) == kept


def test_where_spot_is_dearer_the_budget_drops_spot_first():
    assert affordable(physics("total", budget=5.0), 4, 4, 2.0, 1.0, 0.0) == (0, 4)


def test_free_spot_needs_no_budget():
    assert affordable(physics("total", budget=0.0), 4, 0, 0.0, 1.0, 0.0) == (4, 0)


def test_a_job_is_done_at_its_work_up_to_rounding():
    job = physics("total", work=0.3)
    assert is_done(job, 0.1 + 0.1 + 0.1)
    assert is_done(job, 0.3 - 1e-12)
    assert not is_done(job, 0.3 - 1e-6)


def test_reach_pays_for_the_first_start_only():
    assert physics("total").reach[3, 0] == pytest.approx((0.9 + 1 + 1) * 8)
    assert physics("total").reach[3, 8] == pytest.approx(3 * 8)
    assert physics("total").reach[0, 8] == 0


def test_reach_may_stay_small_where_growing_costs_too_much():
    rule = Reconfiguration(grow=0.1, shrink=1.0)
    job = Job(work=1, deadline=2, value=1, throughput=(0.0, 1.0, 1.5), reconfiguration=rule)
    assert job_physics(job).reach[1, 1] == 1.0


def test_reach_after_spot_counts_it_as_lost_only_with_the_composition_key():
    assert reach_after(physics("total"), 2, 8, 0) == 16
    assert reach_after(physics("composition"), 2, 8, 0) == pytest.approx(PREEMPTED * 8 + 8)
    assert reach_after(physics("composition"), 2, 0, 8) == 16
    assert reach_after(physics("composition"), 0, 0, 8) == 0


def test_below_the_minimum_nothing_is_done():
    job = physics("total", min_gpus=3)
    assert job.throughput[:3].tolist() == [0, 0, 0]
