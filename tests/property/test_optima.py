"""T1: the dynamic program, the integer program and a naive enumeration agree."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from duetune.core.job import Job, Reconfiguration, ReconfigurationKey, ValueShape
from duetune.core.market import MarketTrace, MarketWindow
from duetune.core.physics import job_physics, play
from duetune.policies.solve.dynamic import offline_optimum
from duetune.policies.solve.milp import milp_optimum
from duetune.policies.solve.progress_grid import progress_grid
from duetune.testing import market_of
from support.strategies import COMPOSITION, TOTAL, job_on_market, jobs, markets, tight_budget

if TYPE_CHECKING:
    from duetune.policies.solve.optimum import Optimum

CLOSE = 1e-6


# --- The specification once more, naively and in plain Python; shares nothing with the package.


def worth(job: Job, slot: int) -> float:
    """Section 2.5."""
    deadline, factor = job.deadline, job.hard_deadline_factor
    if slot <= deadline:
        return job.value
    if slot > math.floor(factor * deadline + 1e-9):
        return 0.0
    if job.value_shape is ValueShape.LINEAR:
        return job.value * (1 - (slot - deadline) / ((factor - 1) * deadline))
    if job.value_shape is ValueShape.STEP:
        return job.value
    return job.value * math.exp(-job.decay * (slot - deadline))


def effective(job: Job, held: tuple[int, int], now: tuple[int, int], available: int) -> float:
    """Section 2.4; with the composition key the dearest of simultaneous changes counts."""
    rule = job.reconfiguration
    if rule.key is ReconfigurationKey.TOTAL:
        before, after = sum(held), sum(now)
        return rule.grow if after > before else rule.shrink if after < before else 1.0
    survivors = (min(held[0], available), held[1])
    losses = [1.0]
    if survivors[0] < held[0]:
        losses.append(rule.preempted)
    if any(new > old for new, old in zip(now, survivors, strict=True)):
        losses.append(rule.grow)
    if any(new < old for new, old in zip(now, survivors, strict=True)):
        losses.append(rule.shrink)
    return min(losses)


def brute_force(job: Job, market: MarketWindow, *, by_second: bool = False) -> float:
    """The utility of the best of all plans, by trying them all; ``by_second`` bills the last slot
    until the work is done.
    """
    last = math.floor(job.hard_deadline_factor * job.deadline + 1e-9)
    most = len(job.throughput) - 1
    sizes = [0, *range(job.min_gpus, most + 1)]
    budget = math.inf if job.budget is None else job.budget

    def best_from(slot: int, done: float, held: tuple[int, int], spent: float) -> float:
        """The most that can still be had, less what will still be paid."""
        if slot > last:
            return 0.0
        price, dear = float(market.spot_price[slot - 1]), float(market.on_demand_price[slot - 1])
        available = int(market.available[slot - 1])
        best = 0.0
        for total in sizes:
            for spot in range(min(total, available) + 1):
                now = (spot, total - spot)
                paid = spot * price + (total - spot) * dear
                share = effective(job, held, now, available)
                work = share * job.throughput[total]
                finishes = done + work >= job.work - 1e-9
                if by_second and finishes and total > 0:
                    paid *= 1 - share + (job.work - done) / job.throughput[total]
                if spent + paid > budget + 1e-9:
                    continue
                if finishes:
                    value = worth(job, slot)
                else:
                    value = best_from(slot + 1, done + work, now, spent + paid)
                best = max(best, value - paid)
        return best

    return best_from(1, 0.0, (0, 0), 0.0)


def window(case: tuple[Job, MarketTrace]) -> MarketWindow:
    return case[1].window(0, case[0].hard_deadline)


def assert_feasible(job: Job, market: MarketWindow, best: Optimum) -> None:
    """The plan may be held, costs what is said and earns what is said."""
    for slot, held in enumerate(best.plan):
        assert 0 <= held.spot <= market.available[slot]
        assert held.on_demand >= 0
        assert held.total == 0 or job.min_gpus <= held.total <= job.max_gpus
    spot = np.array([held.spot for held in best.plan], dtype=np.int64)
    on_demand = np.array([held.on_demand for held in best.plan], dtype=np.int64)
    utility, cost, finished, _ = play(job_physics(job), market, spot, on_demand)
    assert (utility, cost, finished or None) == (best.utility, best.cost, best.finished)
    if job.budget is not None:
        assert cost <= job.budget + 1e-6


# Plans are (pairs of GPUs) ** slots: 10 ** 4 with three GPUs, 6 ** 5 with two.
tiny = st.one_of(
    job_on_market(max_slots=4, max_gpus=3, moving_on_demand=True),
    job_on_market(max_slots=5, max_gpus=2),
)
tiny_total = job_on_market(max_slots=4, max_gpus=3, key=TOTAL, moving_on_demand=True)


# --- T1


@given(tiny)
def test_dynamic_program_equals_brute_force_with_both_keys(case):
    job, market = case[0], window(case)
    best = offline_optimum(job, market)
    assert progress_grid(job, 20_000).exact
    assert best.utility == pytest.approx(brute_force(job, market), abs=CLOSE)
    assert best.upper_bound == pytest.approx(best.utility, abs=CLOSE)
    assert_feasible(job, market, best)


@given(tiny_total)
def test_integer_program_equals_brute_force_and_dynamic_program(case):
    job, market = case[0], window(case)
    integer = milp_optimum(job, market)
    assert integer.utility == pytest.approx(brute_force(job, market), abs=CLOSE)
    assert integer.utility == pytest.approx(offline_optimum(job, market).utility, abs=CLOSE)
    assert_feasible(job, market, integer)


@given(job_on_market(max_slots=9, max_gpus=6, key=TOTAL))
def test_integer_program_equals_dynamic_program_on_jobs_too_large_to_enumerate(case):
    job, market = case[0], window(case)
    assert milp_optimum(job, market).utility == pytest.approx(
        offline_optimum(job, market).utility, abs=CLOSE
    )


@given(tight_budget(max_slots=4, max_gpus=3, key=TOTAL, moving_on_demand=True))
@settings(max_examples=200)
def test_both_methods_equal_brute_force_where_a_budget_binds(case):
    job, market = case[0], window(case)
    truth = brute_force(job, market)
    for best in (offline_optimum(job, market), milp_optimum(job, market)):
        assert best.utility == pytest.approx(truth, abs=CLOSE)
        assert best.upper_bound == pytest.approx(truth, abs=CLOSE)
        assert_feasible(job, market, best)


@given(tight_budget(max_slots=4, max_gpus=3, key=COMPOSITION))
def test_dynamic_program_equals_brute_force_with_a_budget_and_the_composition_key(case):
    job, market = case[0], window(case)
    best = offline_optimum(job, market)
    assert best.utility == pytest.approx(brute_force(job, market), abs=CLOSE)
    assert best.upper_bound == pytest.approx(best.utility, abs=CLOSE)
    assert_feasible(job, market, best)


@given(tight_budget(max_slots=4, max_gpus=3), st.integers(1, 12))
def test_on_a_coarse_grid_the_plan_keeps_the_budget_and_the_bound_holds(case, steps):
    job, market = case[0], window(case)
    truth = brute_force(job, market)
    coarse = offline_optimum(job, market, max_steps=steps)
    assert -CLOSE <= coarse.utility <= truth + CLOSE
    assert coarse.upper_bound >= truth - CLOSE
    assert_feasible(job, market, coarse)


@given(tight_budget(max_slots=9, max_gpus=6, key=TOTAL))
@settings(max_examples=20)
def test_methods_agree_on_tight_budgets_of_jobs_too_large_to_enumerate(case):
    job, market = case[0], window(case)
    assert milp_optimum(job, market).utility == pytest.approx(
        offline_optimum(job, market).utility, abs=CLOSE
    )


@given(st.one_of(tiny, tight_budget(max_slots=4, max_gpus=3)), st.sampled_from([7, 20_000]))
def test_the_best_plan_billed_by_the_second_equals_brute_force(case, steps):
    job, market = case[0], window(case)
    truth = brute_force(job, market, by_second=True)
    best = offline_optimum(job, market, max_steps=steps, by_second=True)
    assert best.upper_bound >= truth - CLOSE
    assert -CLOSE <= best.utility <= truth + CLOSE
    if steps == 20_000:
        assert best.utility == pytest.approx(truth, abs=CLOSE)
        assert best.upper_bound == pytest.approx(truth, abs=CLOSE)


@given(tiny, st.integers(1, 12))
def test_a_coarse_grid_gives_a_feasible_plan_and_a_bound_that_holds(case, steps):
    job, market = case[0], window(case)
    truth = brute_force(job, market)
    coarse = offline_optimum(job, market, max_steps=steps)
    assert coarse.utility <= truth + CLOSE
    assert coarse.upper_bound >= truth - CLOSE
    assert coarse.gap >= 0
    assert coarse.utility >= -CLOSE, "holding nothing is always possible"
    assert_feasible(job, market, coarse)


@given(
    tiny_total,
    st.lists(st.floats(0.1, 2.0), min_size=3, max_size=3),
    st.floats(0.05, 8.0),
)
def test_arbitrary_real_amounts_of_work_are_bounded_from_both_sides(case, rises, work):
    job = msgspec.structs.replace(
        case[0],
        work=work,
        throughput=(0.0, *np.cumsum(rises[: case[0].max_gpus]).tolist()),
    )
    market = window(case)
    truth = brute_force(job, market)
    for steps in (50, 20_000):
        best = offline_optimum(job, market, max_steps=steps)
        assert -CLOSE <= best.utility <= truth + CLOSE
        assert best.upper_bound >= truth - CLOSE
    assert milp_optimum(job, market).utility == pytest.approx(truth, abs=1e-5)


# --- Decimals that a progress grid gets wrong if it takes near for equal.

FREE = Reconfiguration(grow=1.0, shrink=1.0, preempted=1.0)


def hard_job(**fields: object) -> Job:
    return Job(value=10.0, hard_deadline_factor=1.0, reconfiguration=FREE, **fields)


@pytest.mark.parametrize(
    "job",
    [
        # A hair more than three slots can do: nothing to be earned, so nothing to be paid.
        hard_job(work=3.00000005, deadline=3, throughput=(0.0, 1.0)),
        hard_job(work=3000.00005, deadline=3, throughput=(0.0, 1000.0)),
        # Seven digits are not a third.
        hard_job(work=1.0, deadline=3, throughput=(0.0, 0.3333333)),
        # One GPU does little, but just what is missing.
        hard_job(work=1.0000004, deadline=2, throughput=(0.0, 4e-7, 1.0)),
        # So little work that a tolerance of 1e-9 is all of it.
        hard_job(work=1e-10, deadline=2, throughput=(0.0, 1e-10)),
        hard_job(work=1.5e-9, deadline=2, throughput=(0.0, 1e-9)),
    ],
    ids=["hair", "large hair", "seven digits", "small step", "tiny work", "tiny steps"],
)
def test_the_plan_is_the_best_and_the_bound_holds_for_awkward_decimals(job):
    market = market_of([0.5] * 3, [0] * 3).window(0, job.hard_deadline)
    exact = {
        3.00000005: 0.0,
        3000.00005: 0.0,
        1.0: 0.0,
        1.0000004: 10.0 - 3.0,
        1e-10: 10.0 - 1.0,
        1.5e-9: 10.0 - 2.0,
    }[job.work]
    best = offline_optimum(job, market)
    assert best.utility <= exact + CLOSE
    assert best.upper_bound >= exact - CLOSE
    assert best.utility >= -CLOSE, "holding nothing is always possible"
    assert best.utility == pytest.approx(exact, abs=best.gap + CLOSE)


# --- Sanity of the optimum


@given(job_on_market(max_slots=8, max_gpus=4), st.data())
def test_more_spot_or_lower_prices_never_lower_the_optimum(case, data):
    job, trace = case
    # Where shrinking by choice costs more than a preemption, spot that is not lost can do harm.
    rule = job.reconfiguration
    rule = msgspec.structs.replace(rule, preempted=min(rule.preempted, rule.shrink))
    job = msgspec.structs.replace(job, reconfiguration=rule)
    better = data.draw(st.sampled_from(["available", "spot_price", "on_demand_price"]))
    slot = data.draw(st.integers(0, job.hard_deadline - 1))
    series = {
        field: np.array(getattr(trace, field)[0])
        for field in ("spot_price", "available", "on_demand_price")
    }
    if better == "available":
        series["available"][slot] += 1
    else:
        series[better][slot] *= 0.5
    here = offline_optimum(job, window((job, trace))).upper_bound
    there = offline_optimum(job, window((job, MarketTrace.single(**series)))).upper_bound
    assert there >= here - CLOSE


@given(st.data())
@settings(max_examples=30)
def test_a_longer_deadline_never_lowers_the_optimum(data):
    job = data.draw(jobs(max_slots=8, max_gpus=4))
    longer = msgspec.structs.replace(job, deadline=job.deadline + 1)
    trace = data.draw(markets(longer.hard_deadline, most=5))
    before = offline_optimum(job, trace.window(0, job.hard_deadline))
    after = offline_optimum(longer, trace.window(0, longer.hard_deadline))
    assert after.utility >= before.utility - CLOSE


@given(job_on_market(max_slots=8, max_gpus=4, budget=True))
@settings(max_examples=30)
def test_a_budget_never_raises_the_optimum(case):
    job, market = case[0], window(case)
    free = offline_optimum(msgspec.structs.replace(job, budget=None), market)
    assert offline_optimum(job, market).upper_bound <= free.upper_bound + CLOSE


@given(job_on_market(max_slots=8, max_gpus=4))
def test_the_optimum_is_never_below_zero_nor_above_the_value(case):
    best = offline_optimum(case[0], window(case))
    assert -CLOSE <= best.utility <= case[0].value + CLOSE


# --- T4: section 5.5


def settled(job: Job, totals: list[int], trace: MarketTrace) -> float:
    """Utility of holding these totals, split as the lemma says."""
    spot = [
        min(total, int(trace.available[0, slot]))
        if trace.spot_price[0, slot] < trace.on_demand_price[0, slot]
        else 0
        for slot, total in enumerate(totals)
    ]
    on_demand = [total - part for total, part in zip(totals, spot, strict=True)]
    market = trace.window(0, job.hard_deadline)
    return play(job_physics(job), market, np.array(spot), np.array(on_demand))[0]


def error_between(job: Job, truth: MarketTrace, belief: MarketTrace) -> float:
    """E = sum of N_max |p - p^| + p_o |a - a^|."""
    price = np.abs(truth.spot_price - belief.spot_price).sum()
    count = (truth.on_demand_price * np.abs(truth.available - belief.available)).sum()
    return float(job.max_gpus * price + count)


@given(st.data())
def test_the_utility_of_fixed_totals_moves_no_more_than_the_market_error(data):
    job = data.draw(jobs(max_slots=10, max_gpus=5, key=TOTAL))
    truth, belief = (data.draw(markets(job.hard_deadline, most=6)) for _ in range(2))
    sizes = st.sampled_from([0, *range(job.min_gpus, job.max_gpus + 1)])
    totals = data.draw(st.lists(sizes, min_size=job.hard_deadline, max_size=job.hard_deadline))
    moved = abs(settled(job, totals, truth) - settled(job, totals, belief))
    assert moved <= error_between(job, truth, belief) + CLOSE


@given(st.data())
def test_the_plan_made_on_a_forecast_is_within_twice_the_error_of_the_optimum(data):
    job = data.draw(jobs(max_slots=10, max_gpus=5, key=TOTAL, value_per_gpu_slot=(0.5, 3.0)))
    truth = data.draw(markets(job.hard_deadline, most=6))
    price = np.array(truth.spot_price[0])
    available = np.array(truth.available[0])
    for slot in data.draw(st.lists(st.integers(0, price.size - 1), max_size=4)):
        price[slot] = max(0.0, price[slot] + data.draw(st.sampled_from([-0.2, -0.05, 0.05, 0.2])))
        available[slot] = max(0, available[slot] + data.draw(st.integers(-2, 2)))
    belief = MarketTrace.single(price, available, 1.0)
    planned = offline_optimum(job, belief.window(0, job.hard_deadline))
    totals = [held.total for held in planned.plan]
    totals += [0] * (job.hard_deadline - len(totals))
    best = offline_optimum(job, truth.window(0, job.hard_deadline)).utility
    assert settled(job, totals, truth) >= best - 2 * error_between(job, truth, belief) - CLOSE
