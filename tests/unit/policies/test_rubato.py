from __future__ import annotations

import re

import msgspec
import numpy as np
import pytest

from duetune.core.decision import Allocation, Seen
from duetune.core.job import Job, Reconfiguration, ReconfigurationKey, ValueShape, linear_throughput
from duetune.core.market import MarketTrace
from duetune.errors import InvalidInput
from duetune.policies.rubato import LARGEST_STEPS, Rubato
from duetune.policies.solve.dynamic import offline_optimum
from duetune.registry.policies import policy_named
from duetune.simulate.episode import simulate
from duetune.testing import constant_market, market_of, random_market, view_of

WEEK = 336
TOTAL, COMPOSITION = ReconfigurationKey
both_keys = pytest.mark.parametrize("key", [TOTAL, COMPOSITION])


def job(*, key=TOTAL, mu=(0.9, 0.95, 0.9), **fields) -> Job:
    defaults = {"work": 40.0, "deadline": 14, "value": 120.0, "throughput": linear_throughput(4)}
    return Job(**{**defaults, **fields}, reconfiguration=Reconfiguration(*mu, key))


def seen_view(wish: Job, available, spot_price=0.4, **slot):
    """The market as it was seen, the present last."""
    counts = np.array(available, dtype=np.int64)
    prices = np.array(np.broadcast_to(spot_price, counts.shape), dtype=np.float64)
    now = {"available": int(counts[-1]), "spot_price": float(prices[-1])}
    return msgspec.structs.replace(view_of(wish, **{**now, **slot}), seen=Seen(prices, counts))


# --- A market that does not move


@both_keys
@pytest.mark.parametrize(
    ("available", "spot_price"),
    [(4, 0.4), (2, 0.4), (0, 0.4), (4, 0.9), (4, 1.4), (1, 0.2)],
    ids=["all", "half", "none", "dear", "dearer than on demand", "one"],
)
@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"work": 20.0},
        {"work": 52.0},
        {"min_gpus": 3},
        {"throughput": (0.0, 5.0), "work": 50.0},
        {"throughput": (0.0, 1.0, 1.8, 2.4, 2.8), "work": 30.0},
        {"value": 45.0},
    ],
    ids=["usual", "roomy", "tight", "three at least", "one GPU", "concave", "just worth it"],
)
def test_in_a_market_that_never_moves_it_earns_the_optimum(key, available, spot_price, fields):
    wish = job(key=key, **fields)
    trace = constant_market(WEEK + 24, spot_price=spot_price, available=available)
    best = offline_optimum(wish, trace.window(WEEK, wish.hard_deadline))
    outcome = simulate(wish, trace, Rubato(), start=WEEK)
    assert outcome.utility == pytest.approx(best.utility, rel=0.01, abs=0.01 * best.cost)


# --- What was seen counts


def worth(decision) -> float:
    return float(re.search(r"expected value \$(-?[0-9.]+)", decision.reason)[1])


def test_it_waits_for_spot_that_comes_back():
    wish = job(work=20.0, mu=(1.0, 1.0, 1.0))
    often = Rubato().decide(seen_view(wish, ([4] * 3 + [0] * 3) * 30 + [4, 0]))
    never = Rubato().decide(seen_view(wish, [0] * 182))
    assert often.allocation == Allocation()
    assert worth(often) > wish.value - 0.5 * 20 > worth(never)


def test_it_waits_for_a_cheaper_price_where_prices_move():
    wish = job(work=12.0, mu=(1.0, 1.0, 1.0))
    cheap_and_dear = [0.9] * 3 + [0.2] * 3
    for prices, wanted in (
        (cheap_and_dear * 30 + [0.9], 0),
        (cheap_and_dear * 30, 4),
        ([0.9] * 180, 4),
    ):
        held = Rubato().decide(seen_view(wish, [4] * len(prices), prices)).allocation
        assert held == Allocation(spot=wanted)


@both_keys
def test_one_gpu_is_kept_where_spells_are_short_and_swaps_dear(key):
    """By composition going over to spot that will not stay costs two restarts."""
    wish = job(key=key, mu=(0.4, 0.4, 0.4), throughput=(0.0, 1.0), work=9.0, deadline=16)
    view = seen_view(wish, [0, 1] * 60, spot_price=0.7, slot=4, progress=2.0, held=(0, 1))
    kept = Rubato().decide(view).allocation
    assert kept == (Allocation(spot=1) if key is TOTAL else Allocation(on_demand=1))


def test_with_nothing_seen_it_decides_on_the_present_slot_alone():
    wish = job()
    bare, one = view_of(wish, available=3), seen_view(wish, [3])
    empty = msgspec.structs.replace(bare, seen=Seen(np.empty(0), np.empty(0, dtype=np.int64)))
    assert bare.seen is None
    assert Rubato().decide(bare) == Rubato().decide(one) == Rubato().decide(empty)


def test_more_gpus_than_levels_and_swaps_that_count_are_planned_with():
    for key in ReconfigurationKey:
        wish = job(key=key, work=300.0, throughput=linear_throughput(40), value=500.0)
        outcome = simulate(wish, constant_market(WEEK + 24, available=37), Rubato(), start=WEEK)
        assert outcome.on_time
        assert outcome.cost <= 1.1 * 0.4 * wish.work


# --- Steps and names


@pytest.mark.parametrize("steps", [0, -1, LARGEST_STEPS + 1, float("nan")])
def test_steps_out_of_range_are_refused_in_one_line(steps):
    with pytest.raises(InvalidInput, match="steps") as refused:
        Rubato(steps=steps)
    assert "8,192" in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("policy", [Rubato(), Rubato(steps=64), Rubato(steps=1)])
def test_its_name_is_read_back(policy):
    assert policy_named(policy.name) == policy


@pytest.mark.parametrize("name", ["rubato:", "rubato:0", "rubato:-4", "rubato:x", "rubato:8:8"])
def test_a_name_that_means_nothing_is_refused(name):
    with pytest.raises(InvalidInput, match=r"rubato|steps"):
        policy_named(name)


@pytest.mark.parametrize("steps", [1, 2, 7])
def test_even_the_coarsest_grid_is_on_time(steps):
    wish = job(value=1e4)
    for seed in range(5):
        assert simulate(wish, random_market(seed, 24), Rubato(steps=steps)).on_time


# --- The reason


def test_the_reason_names_the_choice_its_value_the_next_best_and_whether_spot_stays():
    decision = Rubato().decide(seen_view(job(), [3] * 100))
    assert decision.reason.startswith(f"{decision.allocation.spot} spot: expected value $")
    assert "better than" in decision.reason
    assert decision.reason.endswith("% probability")
    assert "; spot stays available next slot with " in decision.reason


def test_waiting_is_called_holding_no_gpu():
    decision = Rubato().decide(seen_view(job(value=0.0), [0] * 50))
    assert decision.allocation == Allocation()
    assert decision.reason.startswith("no GPU: expected value $0.00")


def test_the_guard_says_what_it_holds_and_why():
    """Late is worth as much, so the plan waits for spot; going on on demand it is no gain."""
    wish = job(work=40.0, deadline=10, mu=(1.0, 1.0, 1.0), value_shape=ValueShape.STEP)
    decision = Rubato().decide(seen_view(wish, ([4] * 3 + [0] * 3) * 30))
    assert decision.allocation == Allocation(on_demand=4)
    assert decision.reason.startswith("no GPU: expected value")
    assert "the deadline guard holds 4 on-demand instead of no GPU: " in decision.reason
    assert "meet the deadline in slot 10" in decision.reason


# --- The budget


def test_the_budget_is_a_hard_cap():
    wish = job(budget=6.0)
    for seed in range(4):
        outcome = simulate(wish, random_market(seed, 24), Rubato())
        assert outcome.cost <= 6.0
    view = seen_view(job(budget=1.0), [4] * 60, spent=0.2)
    assert Rubato().decide(view).allocation.total <= 2


# --- Large and small, hopeless and lost


def test_a_job_of_more_slots_than_steps_is_planned_too():
    wish = Job(work=100, deadline=130, value=150, throughput=(0, 1.0), hard_deadline_factor=1.0)
    coarse, fine = (
        Rubato(steps=steps).decide(seen_view(wish, [0, 1] * 100)) for steps in (60, 200)
    )
    assert fine.allocation == coarse.allocation == Allocation(spot=1)
    assert worth(coarse) == pytest.approx(worth(fine), rel=0.1)


@both_keys
def test_progress_that_the_present_curve_could_not_have_made_counts(key):
    """A resumed job, or one whose measured pace fell, decides as one with that much work left."""
    market = [4] * 3 + [0] * 3
    resumed = job(key=key, work=100.0, deadline=15)
    fresh = job(key=key, work=40.0, deadline=15)
    for now in (4, 0):
        ours = Rubato().decide(seen_view(resumed, [*market * 40, now], progress=60.0))
        same = Rubato().decide(seen_view(fresh, [*market * 40, now]))
        assert ours.allocation == same.allocation
        assert worth(ours) == pytest.approx(worth(same), rel=0.01)


@pytest.mark.parametrize("value", [1e7, 1e9])
def test_a_value_that_only_says_must_finish_changes_no_plan(value):
    random = np.random.default_rng(0)
    trace = MarketTrace.single(
        np.repeat(random.uniform(0.2, 0.6, 100), 4), np.repeat(random.integers(0, 5, 100), 4), 1.0
    )
    costs = [
        simulate(job(deadline=20, value=worth), trace, Rubato(), start=WEEK).cost
        for worth in (1e3, value)
    ]
    assert costs[1] == pytest.approx(costs[0], rel=0.02)


@pytest.mark.parametrize("fields", [{"value": 0.0}, {"work": 500.0}], ids=["worthless", "hopeless"])
def test_nothing_is_spent_where_nothing_can_be_earned(fields):
    trace = constant_market(24, spot_price=0.03)
    assert simulate(job(**fields), trace, Rubato()).cost == 0


def test_no_more_is_held_than_finishes_the_job_in_this_slot():
    view = seen_view(job(), [4] * 100, 0.03, slot=9, progress=39.5, held=(1, 0))
    assert Rubato().decide(view).allocation == Allocation(spot=1)


def test_a_deadline_that_is_lost_anyway_changes_nothing_about_the_split():
    """4 on demand are held; going over to spot would cost 70% of the slot."""
    wish = job(key=COMPOSITION, mu=(0.3, 0.3, 0.3), work=30.0, deadline=6, value=60.0)
    wish = msgspec.structs.replace(wish, hard_deadline_factor=2.0)
    view = seen_view(wish, [0, 0, 0, 4] * 75, 0.9, slot=5, progress=14.0, held=(0, 4))
    decision = Rubato().decide(view)
    assert "4 on-demand: expected value" in decision.reason
    assert decision.allocation == Allocation(on_demand=4)


def test_a_job_that_is_not_worth_its_price_is_given_up_at_once_by_composition():
    trace = constant_market(24, available=0)
    assert simulate(job(key=COMPOSITION, value=20.0), trace, Rubato()).cost == 0


def test_spot_that_is_not_cheaper_than_on_demand_is_not_held_by_composition():
    wish = job(key=COMPOSITION, mu=(1.0, 1.0, 1.0), work=0.1, deadline=3, value=1.8)
    trace = market_of([1.0] * 4, [0, 0, 1, 0])
    outcome = simulate(wish, trace, Rubato())
    assert all(entry.allocation.spot == 0 for entry in outcome.entries)
