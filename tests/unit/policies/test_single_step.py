from __future__ import annotations

import math

import numpy as np
import pytest

from duetune.errors import InvalidInput
from duetune.market.forecast.regimes import first_belief
from duetune.policies.single_instance import Instance, SingleInstance
from duetune.simulate.single_episode import SingleJob, run_single, single_optimum

WAIT, SPOT, ON_DEMAND = Instance
HOUR = 3600.0


def made(**fields) -> SingleInstance:
    defaults = {"work_s": 4 * HOUR, "deadline_s": 6 * HOUR, "restart_overhead_s": 180.0}
    return SingleInstance(**{**defaults, **fields})


def step(policy, elapsed=0.0, left=4 * HOUR, current=WAIT, pending=0.0, there=True):
    return policy(elapsed, left, current, pending, there)


def belief(policy) -> np.ndarray:
    return policy._belief


# --- Choices


def test_spot_is_taken_where_there_is_some_and_waited_for_where_there_is_time():
    assert step(made()) is SPOT
    assert step(made(), there=False) is WAIT


def test_on_demand_is_taken_when_waiting_would_lose_the_deadline():
    assert step(made(), elapsed=2 * HOUR - 180.0, there=False) is ON_DEMAND
    assert step(made(work_s=6 * HOUR - 180.0), left=6 * HOUR - 180.0, there=False) is ON_DEMAND


def test_spot_is_left_alone_where_losing_it_would_lose_the_deadline():
    tight = made(work_s=6 * HOUR - 180.0)
    assert step(tight, left=6 * HOUR - 180.0) is ON_DEMAND
    assert step(made(), elapsed=2 * HOUR, current=ON_DEMAND) is ON_DEMAND


def test_spot_that_is_no_cheaper_is_not_taken():
    assert step(made(spot_price=3.06)) is not SPOT
    assert step(made(spot_price=9.0)) is not SPOT


def test_what_is_lost_anyway_goes_on_with_what_needs_no_restart():
    policy = made()
    assert step(policy, elapsed=3 * HOUR, current=SPOT) is SPOT
    assert step(policy, elapsed=3 * HOUR, current=SPOT, there=False) is ON_DEMAND
    assert step(policy, elapsed=3 * HOUR, current=ON_DEMAND) is ON_DEMAND
    assert step(policy, elapsed=9 * HOUR) is ON_DEMAND
    assert all(math.isinf(cost) for cost in policy.costs.values())


@pytest.mark.parametrize("left", [0.0, -0.5])
def test_finished_work_needs_nothing(left):
    for current in Instance:
        assert step(made(), elapsed=HOUR, left=left, current=current) is WAIT


@pytest.mark.parametrize("elapsed", [0.0, HOUR, 1.9 * HOUR])
@pytest.mark.parametrize("pending", [0.0, 100.0, 1e9])
def test_a_spot_instance_that_is_gone_is_as_good_as_none(elapsed, pending):
    gone, none = made(), made()
    choice = step(gone, elapsed=elapsed, current=SPOT, pending=pending, there=False)
    assert choice is step(none, elapsed=elapsed, current=WAIT, there=False)
    assert gone.costs == none.costs


def test_what_runs_may_be_named_in_plain_words():
    for current in Instance:
        words, kind = made(), made()
        chosen = step(words, elapsed=HOUR, current=str(current.value), pending=90.0)
        assert chosen is step(kind, elapsed=HOUR, current=current, pending=90.0)
        assert words.costs == kind.costs
    assert step(made()) == "spot"


def test_what_runs_with_its_restart_behind_it_is_worth_more_than_what_would_have_to_start():
    for current in (SPOT, ON_DEMAND):
        policy = made(restart_overhead_s=1500.0)
        costs = []
        for pending in (0.0, 300.0, 900.0, 1500.0):
            step(policy, elapsed=HOUR / 2, current=current, pending=pending)
            costs.append(policy.costs[current])
        assert costs == sorted(costs)
        assert costs[0] < costs[-1]


def test_costs_are_told_and_infinite_where_a_choice_is_not_to_be_had():
    policy = made()
    step(policy, there=False)
    assert policy.costs[SPOT] == math.inf
    assert 0 < policy.costs[WAIT] < policy.costs[ON_DEMAND] < math.inf


# --- Belief


def test_the_same_call_twice_in_a_tick_moves_no_belief():
    policy = made()
    step(policy, there=False)
    step(policy, elapsed=600.0)
    before = belief(policy).copy()
    first = step(policy, elapsed=600.0)
    assert step(policy, elapsed=600.0) is first
    assert (belief(policy) == before).all()


def test_a_belief_is_a_probability_and_agrees_with_what_was_seen_last():
    policy = made()
    for tick, there in enumerate([True, True, False, True, False, False]):
        step(policy, elapsed=600.0 * tick, there=there)
        assert belief(policy).sum() == pytest.approx(1.0)
        assert belief(policy)[int(not there) :: 2].sum() == 0


def test_after_ticks_that_were_missed_the_belief_is_vaguer():
    def after(missed):
        policy = made(deadline_s=100 * HOUR)
        policy.watch([True] * 60)
        step(policy)
        step(policy, elapsed=600.0 * (1 + missed))
        return np.abs(belief(policy)[1::2] - first_belief()[1::2] * 2).sum()

    assert after(0) > after(10) > after(200)
    assert after(10_000) == pytest.approx(after(2000), abs=1e-6)


def test_time_that_goes_back_begins_a_new_run():
    used, fresh = made(), made()
    for tick in range(8):
        step(used, elapsed=600.0 * tick, there=tick % 2 == 0)
    assert step(used, elapsed=0.0) is step(fresh, elapsed=0.0)
    assert (belief(used) == belief(fresh)).all()
    assert used.costs == fresh.costs


def test_what_was_watched_before_the_job_moves_the_first_belief():
    calm, restless, blank = made(), made(), made()
    calm.watch([True] * 100)
    restless.watch([True, False] * 50 + [True])
    for policy in (calm, restless, blank):
        step(policy)
    assert calm.costs[SPOT] < blank.costs[SPOT] < restless.costs[SPOT]


def test_watching_in_two_parts_is_watching_in_one():
    there = [True, True, False, True, False, False, True]
    once, twice = made(), made()
    once.watch(there)
    twice.watch(there[:3])
    twice.watch(np.array(there[3:]))
    assert belief(once) == pytest.approx(belief(twice))
    first, second = made(), made()
    first.watch(there[:-1])
    step(first, there=there[-1])
    second.watch(there)
    assert belief(first) == pytest.approx(belief(second))


def test_watching_nothing_changes_nothing():
    policy = made()
    policy.watch([])
    assert (belief(policy) == first_belief()).all()


def test_what_it_would_choose_is_what_it_chooses_and_teaches_nothing():
    for there in (True, False):
        asked, called = made(), made()
        for policy in (asked, called):
            step(policy, there=False)
        before = belief(asked).copy()
        view = (600.0, 4 * HOUR, WAIT, 0.0, there)
        assert asked.choice_if(*view) is called(*view)
        assert (belief(asked) == before).all()
        asked.look(600.0, there=there)
        assert (belief(asked) == belief(called)).all()


def test_another_price_changes_the_choice_and_not_the_belief():
    policy = made()
    assert step(policy) is SPOT
    before = belief(policy).copy()
    policy.reprice(spot_price=4.0, on_demand_price=3.06)
    assert step(policy) is not SPOT
    assert (belief(policy) == before).all()


# --- Bad values


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *((field, value) for field in ("work_s", "deadline_s", "tick_s") for value in (0.0, -1.0)),
        ("on_demand_price", 0.0),
        ("work_s", math.nan),
        ("deadline_s", math.inf),
        ("restart_overhead_s", -0.1),
        ("restart_overhead_s", math.nan),
        ("spot_price", -1.0),
        ("spot_price", math.inf),
        ("deadline_s", 599.0),
    ],
)
def test_a_bad_value_is_refused_in_one_line(field, value):
    with pytest.raises(InvalidInput, match=field) as refused:
        made(**{field: value})
    assert str(value).removesuffix(".0") in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("current", ["SPOT", "on_demand", "", None, 3])
def test_an_unknown_kind_is_refused_and_moves_no_belief(current):
    policy = made()
    with pytest.raises(InvalidInput, match="current") as refused:
        step(policy, current=current)
    assert "wait, spot, on-demand" in str(refused.value)
    assert (belief(policy) == first_belief()).all()


@pytest.mark.parametrize("field", ["elapsed", "left", "pending"])
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_bad_number_in_a_step_is_refused_in_one_line(field, value):
    with pytest.raises(InvalidInput):
        step(made(), **{"current": ON_DEMAND, field: value})


def test_a_count_of_instances_says_as_much_as_true():
    policy = made()
    assert step(policy, there=3) is step(made())
    assert belief(policy).sum() == pytest.approx(1.0)


def test_a_hair_of_work_left_is_still_work():
    assert step(made(), elapsed=6 * HOUR - 600.0, left=5e-7, there=False) is ON_DEMAND


@pytest.mark.parametrize("left", [10.0, 60.0, 90.0])
def test_the_last_bit_of_work_is_done_while_spot_is_there(left):
    for current in (WAIT, SPOT):
        assert step(made(), elapsed=5 * HOUR, left=left, current=current) is SPOT


# --- Sizes


def table_bytes(policy) -> float:
    task = policy._task
    levels = max(0, math.ceil(task.restart / task.tick - 1e-6) - 1)
    steps = math.ceil(task.slack / task.unit - 1e-6) + 1
    return 4.0 * (task.ticks + 1) * 32 * (1 + 2 * (levels + 1)) * steps


@pytest.mark.parametrize("tick", [600.0, 60.0, 30.0])
def test_tables_stay_within_memory_however_short_a_tick(tick):
    assert table_bytes(made(work_s=48 * HOUR, deadline_s=52 * HOUR, tick_s=tick)) < 4e8


@pytest.mark.parametrize("fields", [{"tick_s": 1.0}, {"tick_s": 1.0, "restart_overhead_s": 1e6}])
def test_ticks_too_short_to_plan_with_are_refused(fields):
    with pytest.raises(InvalidInput, match="tick_s") as refused:
        made(**{"work_s": 48 * HOUR, "deadline_s": 52 * HOUR, **fields})
    assert "\n" not in str(refused.value)


def test_a_tick_longer_than_the_work_or_a_restart_longer_than_the_time_is_no_trouble():
    assert step(made(work_s=300.0), left=300.0) is SPOT
    hopeless = made(restart_overhead_s=7 * HOUR)
    assert step(hopeless) is ON_DEMAND


# --- In a run


def runs(there, job, **options):
    outcome = run_single(
        job,
        np.array(there),
        made(
            work_s=job.work_s,
            deadline_s=job.deadline_s,
            restart_overhead_s=job.restart_overhead_s,
            **options,
        ),
    )
    return outcome, single_optimum(job, np.array(there))


@pytest.mark.parametrize("restart", [0.0, 180.0, 900.0])
def test_where_spot_is_always_or_never_there_it_is_nearly_the_optimum(restart):
    job = SingleJob(8 * HOUR, 12 * HOUR, restart)
    for there in ([True] * 72, [False] * 72):
        outcome, best = runs(there, job)
        assert outcome.finished_tick is not None
        assert outcome.cost <= best + 1e-9 + 3.06 / 6


def test_where_spells_are_long_it_costs_little_more_than_the_optimum():
    job = SingleJob(24 * HOUR, 30 * HOUR, 180.0)
    random = np.random.default_rng(7)
    spent = best = 0.0
    for _ in range(6):
        there = np.repeat(random.integers(0, 2, 12), 20)[:180].astype(bool)
        outcome, least = runs(there, job)
        assert outcome.finished_tick is not None
        spent, best = spent + outcome.cost, best + least
    assert best <= spent <= 1.15 * best
