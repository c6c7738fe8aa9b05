from __future__ import annotations

import math

import msgspec
import numpy as np
import pytest

from duetune.core.multi_region_physics import MoveCost
from duetune.errors import InvalidInput
from duetune.policies import MultiRegionInstance, SingleInstance
from duetune.policies.multi_region_baselines import (
    LifetimeUtility,
    PoolOrder,
    UniformProgressOverPools,
)
from duetune.policies.multi_region_guard import MultiRegionGuard
from duetune.policies.multi_region_step import Attempt, Otherwise, PoolPrice, PoolStep
from duetune.simulate.multi_region_episode import optimum_over_pools, run_multi_region
from duetune.simulate.single_episode import SingleJob, run_single
from support.multi_region import ON_DEMAND, SPOT, TICK, job_over, market_over

HOUR = 3600.0
CHEAP, DEAR = Attempt("p0", SPOT), Attempt("p1", SPOT)
SURE = Attempt("p0", ON_DEMAND)
PRICES = {"p0": PoolPrice(1.0, 3.0), "p1": PoolPrice(1.4, 3.2)}


def job_of(**fields):
    return job_over([180.0, 180.0], **{"work_s": 4 * HOUR, "deadline_s": 6 * HOUR, **fields})


def step(policy, elapsed=0.0, left=4 * HOUR, active=None, pending=0.0, answer=None, prices=None):
    return policy(elapsed, left, active, pending, prices or PRICES, answer)


# --- Steps


def test_pools_are_asked_by_value_and_waited_for_where_there_is_time():
    todo = step(MultiRegionInstance(job_of(deadline_s=5 * HOUR)))
    assert todo.attempts == (CHEAP, DEAR)
    assert todo.otherwise is Otherwise.WAIT


def test_the_step_ends_with_on_demand_when_waiting_would_lose_the_deadline():
    todo = step(MultiRegionInstance(job_of()), elapsed=2 * HOUR - 600.0)
    assert todo.attempts[-1] == SURE
    assert todo.attempts[:-1] == (CHEAP, DEAR)
    late = step(MultiRegionInstance(job_of()), elapsed=3 * HOUR)
    assert late.attempts == (SURE,)


def test_spot_that_costs_more_than_on_demand_is_not_asked_for():
    prices = {"p0": PoolPrice(3.5, 3.0), "p1": PoolPrice(1.4, 3.2)}
    assert step(MultiRegionInstance(job_of()), prices=prices).attempts == (DEAR,)


def test_a_slower_pool_is_judged_by_its_price_per_unit_of_work():
    half_pace = job_over([180.0, 180.0], [0.5, 1.0], work_s=HOUR, deadline_s=1.5 * HOUR)
    assert step(MultiRegionInstance(half_pace), left=HOUR).attempts[0] == DEAR


def test_what_is_held_is_kept_where_a_move_costs_more_than_it_saves():
    far = MoveCost(seconds=600.0, dollars=5.0)
    moves = ((MoveCost(), far), (far, MoveCost()))
    kept = step(MultiRegionInstance(job_of(moves=moves)), active=DEAR)
    assert kept == PoolStep((), Otherwise.STAY)
    prices = {"p0": PoolPrice(0.2, 3.0), "p1": PoolPrice(1.4, 3.2)}
    moved = step(MultiRegionInstance(job_of()), active=DEAR, prices=prices)
    assert moved.attempts == (CHEAP,)


def test_finished_work_stops():
    for active in (None, CHEAP, SURE):
        assert step(MultiRegionInstance(job_of()), left=0.0, active=active) == PoolStep(
            (), Otherwise.STOP
        )


def test_what_is_lost_anyway_goes_on_with_what_needs_no_restart():
    for active in (CHEAP, SURE):
        todo = step(MultiRegionInstance(job_of()), elapsed=4 * HOUR, active=active)
        assert todo == PoolStep((), Otherwise.STAY)
    assert step(MultiRegionInstance(job_of()), elapsed=9 * HOUR).attempts == (SURE,)


def test_a_host_may_limit_the_attempts_and_still_gets_on_demand():
    tight = {"elapsed": 2 * HOUR - 600.0}
    assert step(MultiRegionInstance(job_of(), max_attempts=2), **tight).attempts == (CHEAP, SURE)
    assert step(MultiRegionInstance(job_of(), max_attempts=1), **tight).attempts == (SURE,)
    assert step(MultiRegionInstance(job_of(), max_attempts=1)).attempts == (CHEAP,)


def test_a_host_with_a_net_of_its_own_gets_on_demand_a_tick_earlier():
    plain, early = (MultiRegionInstance(job_of(), host_safety_net=net) for net in (False, True))
    for policy in (plain, early):
        step(policy, elapsed=2 * HOUR - 1200.0)
    assert plain.costs[None] < math.inf == early.costs[None]
    assert step(early, elapsed=2 * HOUR - 1200.0).attempts[-1] == SURE


def test_pairs_of_plain_words_are_as_good_as_attempts():
    plain, words = MultiRegionInstance(job_of()), MultiRegionInstance(job_of())
    pairs = {name: tuple(price) for name, price in PRICES.items()}
    assert step(plain, active=DEAR) == step(words, active=("p1", "spot"), prices=pairs)
    assert plain.costs == words.costs


def test_whole_numbers_are_as_good_as_others():
    whole = MultiRegionInstance(job_of(work_s=4 * 3600, deadline_s=6 * 3600, tick_s=600))
    assert step(whole, elapsed=0, left=4 * 3600) == step(MultiRegionInstance(job_of()))


@pytest.mark.parametrize(
    ("restarts", "paces", "work", "deadline"),
    [
        ([0.0, 0.0], [1.0, 1.0], 600.0, 600.0),
        ([180.0, 180.0], [1.0, 0.001], 420.0, 1200.0),
        ([1e6, 180.0], [1.0, 1.0], 600.0, 1800.0),
        ([180.0, 180.0], [1.0, 1.0], 1e9, 7200.0),
        ([180.0, 180.0], [1000.0, 1.0], 1e6, 7200.0),
    ],
    ids=["one tick", "hardly any pace", "endless restart", "endless work", "any pace"],
)
def test_extreme_jobs_get_a_step_too(restarts, paces, work, deadline):
    job = job_over(restarts, paces, work_s=work, deadline_s=deadline)
    feasible = any(
        restart + work / pace <= deadline for restart, pace in zip(restarts, paces, strict=True)
    )
    market = market_over(np.ones((2, 12)), [1.0, 1.0], [3.0, 3.0])
    outcome = run_multi_region(job, market, MultiRegionInstance(job))
    assert (outcome.finished_tick is not None) == feasible


# --- Looks


def test_a_refusal_makes_a_pool_less_likely_and_a_grant_more():
    def cost_after(answer, active):
        policy = MultiRegionInstance(job_of())
        step(policy)
        step(policy, elapsed=600.0, active=active, answer=answer)
        return policy.costs[None]

    refused = cost_after(None, None)
    lost = cost_after(CHEAP, None)
    assert cost_after(CHEAP, CHEAP) < lost
    assert cost_after(CHEAP, CHEAP) < refused


def test_a_pool_that_is_known_to_be_down_is_not_asked():
    policy = MultiRegionInstance(job_of())
    policy.look("p0", False)
    assert step(policy).attempts == (DEAR,)
    assert CHEAP in step(policy, elapsed=1200.0, left=3 * HOUR).attempts


def test_the_same_call_twice_in_a_tick_changes_nothing():
    policy = MultiRegionInstance(job_of())
    step(policy)
    first = step(policy, elapsed=600.0)
    costs = dict(policy.costs)
    assert step(policy, elapsed=600.0) == first
    assert policy.costs == costs


def test_time_that_goes_back_begins_a_new_run():
    used, fresh = MultiRegionInstance(job_of()), MultiRegionInstance(job_of())
    for tick in range(5):
        step(used, elapsed=600.0 * tick)
    assert step(used) == step(fresh)
    assert used.costs == fresh.costs


# --- Bad values


@pytest.mark.parametrize(
    ("field", "view"),
    [
        ("elapsed_s", {"elapsed": math.nan}),
        ("work_left_s", {"left": math.inf}),
        ("pending_s", {"pending": math.nan}),
        ("prices", {"prices": {"p0": PoolPrice(1.0, 3.0)}}),
        ("pool", {"active": ("elsewhere", "spot")}),
        ("current", {"active": ("p0", "SPOT")}),
    ],
)
def test_a_bad_value_of_a_step_is_refused_in_one_line(field, view):
    with pytest.raises(InvalidInput) as refused:
        step(MultiRegionInstance(job_of()), **view)
    assert refused.value.field == field
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("fields", [{"most_pools": 0}, {"most_pools": 7}, {"max_attempts": 0}])
def test_a_bad_option_is_refused(fields):
    with pytest.raises(InvalidInput, match=next(iter(fields))):
        MultiRegionInstance(job_of(), **fields)


# --- Runs


def test_where_pools_take_turns_it_costs_little_more_than_the_optimum():
    """Outages of two hours that never coincide: who moves hardly needs on-demand."""
    random = np.random.default_rng(5)
    spent = best = 0.0
    for _ in range(4):
        first = np.repeat(random.integers(0, 2, 13), 12)[:150]
        market = market_over([first, 1 - first], [1.0, 1.2], [3.0, 3.0])
        job = job_of(work_s=20 * HOUR, deadline_s=25 * HOUR)
        outcome = run_multi_region(job, market, MultiRegionInstance(job))
        assert outcome.finished_tick is not None
        spent, best = spent + outcome.cost, best + optimum_over_pools(job, market).cost
    assert best <= spent <= 1.1 * best


def test_one_pool_that_has_to_be_asked_costs_as_much_as_one_that_tells():
    random = np.random.default_rng(11)
    asked = told = 0.0
    single = SingleJob(10 * HOUR, 14 * HOUR, 180.0)
    job = job_over([180.0], work_s=single.work_s, deadline_s=single.deadline_s)
    for _ in range(6):
        up = np.repeat(random.random(14) < 0.6, 6)
        market = market_over([up], [single.spot_price], [single.on_demand_price])
        asked += run_multi_region(job, market, MultiRegionInstance(job)).cost
        told += run_single(single, up, SingleInstance(**msgspec.structs.asdict(single))).cost
    assert asked == pytest.approx(told, rel=0.01)


# --- Baselines


def test_uniform_progress_asks_by_price_and_by_what_it_found():
    by_price = UniformProgressOverPools(job_of())
    by_both = UniformProgressOverPools(job_of(), order=PoolOrder.AVAILABILITY_AND_PRICE)
    for policy in (by_price, by_both):
        assert step(policy).attempts == (CHEAP, DEAR)
    assert step(by_price, elapsed=600.0, active=DEAR, answer=DEAR) == PoolStep((), Otherwise.STAY)
    step(by_both, elapsed=600.0, active=DEAR, answer=DEAR)
    assert step(by_both, elapsed=1200.0, left=3.9 * HOUR).attempts[:2] == (DEAR, CHEAP)


def test_uniform_progress_takes_on_demand_when_it_is_behind():
    behind = step(UniformProgressOverPools(job_of()), elapsed=600.0)
    assert behind.attempts == (CHEAP, DEAR, SURE)
    assert step(UniformProgressOverPools(job_of()), elapsed=600.0, left=3 * HOUR).attempts == (
        CHEAP,
        DEAR,
    )


def test_the_rule_of_lifetimes_leaves_a_pool_whose_spells_are_short():
    policy = LifetimeUtility(job_of(deadline_s=8 * HOUR))
    prices = {"p0": PoolPrice(1.0, 3.0), "p1": PoolPrice(1.05, 3.2)}
    assert step(policy, prices=prices).attempts[0] == CHEAP
    for tick in range(1, 12):
        todo = step(policy, elapsed=600.0 * tick, left=3.5 * HOUR, answer=CHEAP, prices=prices)
    assert todo.attempts[0] == DEAR


def test_the_guard_adds_on_demand_where_the_rest_of_the_work_costs_least():
    def idle(*_):
        return PoolStep((CHEAP,), Otherwise.WAIT)

    guard = MultiRegionGuard(job_of(), idle)
    assert step(guard).attempts == (CHEAP,)
    assert step(guard, elapsed=2 * HOUR - 600.0).attempts == (CHEAP, SURE)
    dear = {"p0": PoolPrice(1.0, 3.3), "p1": PoolPrice(1.4, 3.2)}
    assert step(guard, elapsed=2 * HOUR - 600.0, prices=dear).attempts[-1] == Attempt(
        "p1", ON_DEMAND
    )
    assert step(guard, elapsed=2 * HOUR, active=SURE).otherwise is Otherwise.STAY


def test_a_tick_of_spot_is_refused_by_the_guard_if_losing_it_would_be_late():
    guard = MultiRegionGuard(job_of(), lambda *_: PoolStep((CHEAP,), Otherwise.WAIT))
    assert step(guard, elapsed=2 * HOUR - 180.0 - TICK).attempts[0] == CHEAP
    assert step(guard, elapsed=2 * HOUR).attempts == (SURE,)
