from __future__ import annotations

import numpy as np
import pytest

from duetune.core.decision import Allocation
from duetune.core.job import Job, Reconfiguration, ReconfigurationKey, linear_throughput
from duetune.core.physics import job_physics
from duetune.errors import InvalidInput, SolverStopped
from duetune.market.synthetic import synthetic_market
from duetune.policies.solve.dynamic import holdings, offline_optimum
from duetune.policies.solve.milp import milp_optimum
from duetune.testing import constant_market, market_of

FREE = Reconfiguration(1.0, 1.0, 1.0)
METHODS = pytest.mark.parametrize("method", [offline_optimum, milp_optimum])


def pairs(best):
    return [(held.spot, held.on_demand) for held in best.plan]


@METHODS
def test_cheap_spot_is_used_and_dear_slots_are_waited_out(method):
    job = Job(work=4, deadline=4, value=50, throughput=linear_throughput(2), reconfiguration=FREE)
    market = market_of([0.1, 0.9, 0.1, 0.9, 0.9, 0.9], [2] * 6).window(0, 6)
    best = method(job, market)
    assert pairs(best) == [(2, 0), (0, 0), (2, 0)]
    assert (best.finished, best.cost) == (3, pytest.approx(0.4))
    assert best.utility == pytest.approx(49.6)


@METHODS
def test_a_job_not_worth_its_cost_is_not_begun(method):
    job = Job(work=4, deadline=4, value=1.0, throughput=linear_throughput(2))
    best = method(job, constant_market(6, spot_price=0.9).window(0, 6))
    assert (best.utility, best.cost, best.finished) == (0, 0, None)
    assert all(held == Allocation() for held in best.plan)


@METHODS
def test_finishing_late_may_earn_more_than_on_time(method):
    job = Job(
        work=2,
        deadline=4,
        value=8,
        throughput=linear_throughput(1),
        reconfiguration=FREE,
        hard_deadline_factor=2.0,
    )
    # On time costs two dear slots (2.0), one slot late costs 2.0 of value: spot is for nothing.
    market = market_of([9] * 4 + [0.0] * 4, [0] * 4 + [1] * 4, [9] * 4 + [1.0] * 4).window(0, 8)
    assert method(job, market).finished == 6


@METHODS
def test_the_cold_start_counts(method):
    job = Job(
        work=2, deadline=2, value=50, throughput=linear_throughput(1), hard_deadline_factor=2.0
    )
    best = method(job, constant_market(4, available=0).window(0, 4))
    assert best.finished == 3, "0.9 + 1 is not 2"


@METHODS
def test_a_zero_budget_buys_nothing_but_what_is_free(method):
    job = Job(
        work=2,
        deadline=4,
        value=9,
        throughput=linear_throughput(2),
        budget=0.0,
        reconfiguration=FREE,
    )
    assert method(job, constant_market(6).window(0, 6)).utility == 0
    free = method(job, constant_market(6, spot_price=0.0).window(0, 6))
    assert (free.utility, free.cost) == (9, 0)


def test_the_composition_key_makes_a_swap_cost():
    rule = Reconfiguration(0.5, 0.5, 0.5, ReconfigurationKey.COMPOSITION)
    job = Job(
        work=3.5,
        deadline=4,
        value=50,
        throughput=linear_throughput(1),
        reconfiguration=rule,
        hard_deadline_factor=1.0,
    )
    # Half a slot may be lost, once: spot, gone in slot 3, is of no use however cheap.
    best = offline_optimum(job, market_of([0.1] * 4, [1, 1, 0, 0]).window(0, 4))
    assert pairs(best) == [(0, 1)] * 4


def test_the_integer_program_knows_one_key_only():
    rule = Reconfiguration(key=ReconfigurationKey.COMPOSITION)
    job = Job(work=1, deadline=2, value=1, throughput=(0.0, 1.0), reconfiguration=rule)
    with pytest.raises(InvalidInput, match=r"reconfiguration\.key: 'composition'"):
        milp_optimum(job, constant_market(3).window(0, 3))


def test_a_solver_out_of_time_says_so():
    job = Job(work=300, deadline=40, value=999, throughput=linear_throughput(12))
    random = np.random.default_rng(1)
    market = market_of(random.uniform(0.1, 0.9, 60), random.integers(0, 12, 60)).window(0, 60)
    with pytest.raises(SolverStopped, match=r"0\.01 s"):
        milp_optimum(job, market, time_limit_s=0.01)


def test_the_integer_program_finds_the_optimum_that_its_tolerance_hides():
    job = Job(
        work=3.5,
        deadline=2,
        value=7.2,
        throughput=(0.0, 0.5, 1.5, 2.5),
        budget=3.6,
        hard_deadline_factor=2.0,
        reconfiguration=FREE,
    )
    market = market_of([0.05, 0, 0, 0], [2, 0, 0, 0], [0.8, 0.8, 0.9, 0.8]).window(0, 4)
    assert offline_optimum(job, market).utility == pytest.approx(4.7)
    assert milp_optimum(job, market).utility == pytest.approx(4.7)


def test_holdings_are_nothing_or_every_pair_within_the_range():
    rule = Reconfiguration(key=ReconfigurationKey.COMPOSITION)
    job = Job(1, 1, 1, throughput=linear_throughput(3), min_gpus=2, reconfiguration=rule)
    spot, on_demand = holdings(job_physics(job))
    assert sorted(zip(spot.tolist(), on_demand.tolist(), strict=True)) == [
        (0, 0),
        (0, 2),
        (0, 3),
        (1, 1),
        (1, 2),
        (2, 0),
        (2, 1),
        (3, 0),
    ]


def test_a_large_job_is_solved_on_a_coarser_grid_with_an_honest_gap():
    """500 slots, 64 GPUs: the table would not fit, so the grid is coarse and the bound says so."""
    job = Job(work=12_345.6, deadline=334, value=40_000, throughput=linear_throughput(64))
    random = np.random.default_rng(5)
    market = market_of(random.uniform(0.2, 0.9, 501), random.integers(0, 65, 501)).window(0, 501)
    best = offline_optimum(job, market)
    assert best.finished is not None
    assert 0 < best.gap < 0.1 * best.utility


def test_a_budget_below_the_cost_of_the_deadline_still_buys_a_late_finish():
    """A multiplier on the charges cannot find this plan: no multiplier makes it the best one."""
    job = Job(20, 8, 93, throughput=linear_throughput(6), budget=7.32)
    market = synthetic_market("capacity_storm", seed=2).window(188, job.hard_deadline)
    best = offline_optimum(job, market)
    assert best.utility == pytest.approx(milp_optimum(job, market).utility)
    assert best.utility > 40
    assert best.gap == pytest.approx(0, abs=1e-9)


def test_a_longer_market_than_needed_changes_nothing():
    job = Job(work=4, deadline=4, value=50, throughput=linear_throughput(2))
    trace = constant_market(20)
    assert offline_optimum(job, trace.window(0, 6)) == offline_optimum(job, trace.window(0, 20))
