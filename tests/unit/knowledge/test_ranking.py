from __future__ import annotations

import math

import msgspec
import numpy as np
import pytest

from duetune.knowledge.configurations.configuration import Configuration, Configurations
from duetune.knowledge.estimate import CAUSES, Cause, Estimates
from duetune.knowledge.ranking import (
    NO_GPUS,
    NO_PRICE,
    RAN_OUT,
    RULE,
    UNKNOWN,
    UNLIKELY,
    Ranker,
    exceeding,
    on_time,
    rank,
)
from duetune.knowledge.sources.knowledge_source import Limits, Objective

ONE = Configuration(model="llama3.1-8b", gpu_model="A100-80GB", batch_size=8)
FOUR = ONE.replace(num_gpus=4, sharding="fsdp")
OTHER = ONE.replace(gpu_model="L40S")


def estimates(pace, p_valid=0.99, width=1.1, cause=Cause.NONE):
    middle = np.array(pace, np.float64)
    result = Estimates.unknown(len(middle), "test")
    result.p_valid = np.broadcast_to(np.array(p_valid, np.float64), middle.shape).copy()
    result.tokens_per_s = np.stack([middle / width, middle, middle * width], axis=1)
    result.cause[:] = CAUSES.index(cause)
    return result


def ranked(rows, found, objective, **limits):
    return rank(Configurations.of(rows), found, objective, Limits(**limits))


def order(ranking):
    return [candidate.configuration for candidate in ranking.candidates]


def test_the_fastest_has_the_most_tokens_per_second():
    ranking = ranked([ONE, FOUR, OTHER], estimates([1000, 3000, 1500]), Objective.FASTEST)
    assert order(ranking) == [FOUR, OTHER, ONE]
    assert [candidate.score for candidate in ranking.candidates] == pytest.approx([2970, 1485, 990])


def test_gpu_hours_are_fewest_where_gpus_are_used_best():
    ranking = ranked([FOUR, ONE], estimates([3000, 1000]), Objective.GPU_HOURS)
    assert order(ranking) == [ONE, FOUR]


def test_balance_is_pace_over_gpus_to_the_power_of_seven_tenths():
    ranking = ranked([ONE, FOUR], estimates([1000, 2700], 1.0), Objective.BALANCED)
    assert order(ranking) == [FOUR, ONE]
    assert ranking.candidates[0].score == pytest.approx(2700 / 4**0.7)
    assert order(ranked([ONE, FOUR], estimates([1000, 2600]), Objective.BALANCED)) == [ONE, FOUR]


def test_runtime_hours_and_cost_follow_from_work_and_price():
    ranking = ranked(
        [FOUR],
        estimates([1000], width=2.0),
        Objective.DEADLINE,
        tokens=1e6,
        deadline_s=3000,
        start_up_s=100,
        price={"A100-80GB": 3.6},
    )
    best = ranking.candidates[0]
    assert best.runtime_s == pytest.approx((600, 1100, 2100))
    assert best.gpu_hours == pytest.approx((600 / 900, 1100 / 900, 2100 / 900))
    assert best.cost == pytest.approx((2.4, 4.4, 8.4))
    assert ranking.note == ""


def test_with_a_deadline_the_cheapest_that_is_on_time_is_best():
    rows = [ONE, FOUR, OTHER]
    price = {"A100-80GB": 2.0, "L40S": 1.0}
    found = estimates([1000, 3000, 600])
    wide = ranked(rows, found, Objective.DEADLINE, tokens=1e6, deadline_s=5000, price=price)
    assert order(wide) == [OTHER, ONE, FOUR]
    close = ranked(rows, found, Objective.DEADLINE, tokens=1e6, deadline_s=1500, price=price)
    assert order(close) == [ONE, FOUR, OTHER]
    tight = ranked(rows, found, Objective.DEADLINE, tokens=1e6, deadline_s=600, price=price)
    assert order(tight)[0] == FOUR
    assert not tight.note
    late = ranked(rows, found, Objective.DEADLINE, tokens=1e6, deadline_s=390, price=price)
    assert order(late)[0] == FOUR
    assert "no configuration meets the deadline with 90% certainty" in late.note
    assert late.candidates[0].on_time < 0.9


def test_a_deadline_before_the_start_is_met_by_nothing():
    ranking = ranked([ONE], estimates([1000]), Objective.DEADLINE, tokens=1.0, deadline_s=30)
    assert ranking.candidates[0].on_time == 0.0


def test_what_is_not_known_is_named():
    bare = ranked([ONE, FOUR], estimates([1000, 3000]), Objective.DEADLINE)
    assert "number of tokens is unknown" in bare.note
    assert "no prices" in bare.note
    assert bare.candidates[0].runtime_s is None
    assert bare.candidates[0].on_time is None
    work = ranked([ONE, FOUR], estimates([1000, 3000]), Objective.DEADLINE, tokens=1e6)
    assert "no deadline" in work.note
    assert order(work) == [ONE, FOUR]


def test_what_may_not_fit_counts_for_less():
    found = estimates([1000, 1100], p_valid=[0.99, 0.85])
    assert order(ranked([ONE, OTHER], found, Objective.FASTEST)) == [ONE, OTHER]
    assert order(ranked([ONE, OTHER], found, Objective.FASTEST, min_p_valid=0.9)) == [ONE]


def test_on_time_is_the_quantile_of_the_interval():
    rows = np.array([[500.0, 1000.0, 4000.0]])
    assert on_time(rows, 500.0) == pytest.approx([0.95])
    assert on_time(rows, 1000.0) == pytest.approx([0.5])
    assert on_time(rows, 4000.0) == pytest.approx([0.05])
    assert on_time(rows, 2000.0)[0] == pytest.approx(
        0.5 * (1 + math.erf(-1.6448536 / 2 / math.sqrt(2)))
    )
    sure = np.array([[1000.0, 1000.0, 1000.0], [np.nan, 1000.0, np.nan]])
    assert on_time(sure, 999.0).tolist() == [1.0, 1.0]
    assert on_time(sure, 1001.0).tolist() == [0.0, 0.0]
    assert on_time(sure, math.inf).tolist() == [0.0, 0.0]
    assert on_time(sure, 0.0).tolist() == [1.0, 1.0]


def test_equal_scores_go_to_fewer_gpus_then_the_smaller_batch():
    rows = [FOUR, ONE.replace(batch_size=16), ONE]
    ranking = ranked(rows, estimates([1000, 1000, 1000]), Objective.FASTEST)
    assert order(ranking) == [ONE, ONE.replace(batch_size=16), FOUR]


def test_only_what_is_in_the_inventory_is_chosen():
    ranking = ranked(
        [ONE, FOUR, OTHER],
        estimates([1, 2, 3]),
        Objective.FASTEST,
        inventory={"nvidia-a100-sxm4-80gb": 2},
    )
    assert order(ranking) == [ONE]
    assert ranking.left_out == {NO_GPUS: 2}


def test_a_gpu_without_a_price_is_left_out_where_there_are_prices():
    found = estimates([1000, 900])
    ranking = ranked([ONE, OTHER], found, Objective.DEADLINE, price={"L40S": 1.0})
    assert order(ranking) == [OTHER]
    assert ranking.left_out == {NO_PRICE: 1}


@pytest.mark.parametrize(
    ("changes", "out"),
    [
        ({}, True),
        ({"batch_size": 16}, True),
        ({"tokens_per_sample": 2048}, True),
        ({"batch_size": 4}, False),
        ({"batch_size": 4, "tokens_per_sample": 2048}, True),
        ({"batch_size": 4, "grad_checkpoint": False}, False),
        ({"grad_checkpoint": False}, True),
        ({"fast_kernels": True}, False),
        ({"memory_cap_gb": 40.0}, True),
        ({"software": "another"}, True),
        ({"num_gpus": 2, "sharding": "fsdp", "batch_size": 32}, False),
        ({"method": "full"}, False),
        ({"gpu_model": "H200"}, False),
        ({"lora_rank": 4}, False),
        ({"optimiser": "adamw-8bit"}, False),
        ({"attention": "flash"}, False),
        ({"model": "llama3.2-3b"}, False),
    ],
)
def test_what_needs_the_memory_of_one_that_ran_out_is_left_out(changes, out):
    row = ONE.replace(**changes)
    assert exceeding(Configurations.of([row]), (ONE,)).tolist() == [out]
    ranking = ranked([row], estimates([1000]), Objective.FASTEST, ran_out=(ONE,))
    assert ranking.left_out == ({RAN_OUT: 1} if out else {})


def test_one_that_ran_out_under_a_cap_says_nothing_of_the_whole_card():
    capped = ONE.replace(memory_cap_gb=24.0)
    rows = Configurations.of([ONE, capped, ONE.replace(memory_cap_gb=16.0)])
    assert exceeding(rows, (capped,)).tolist() == [False, True, True]


def test_every_one_that_is_left_out_is_counted_once():
    rows = [ONE.replace(batch_size=size) for size in (1, 2, 4, 8, 16)]
    found = estimates([1, 2, 3, 4, np.nan], p_valid=[0.9, 0.5, 0.9, 0.9, 0.9])
    found.cause[2] = CAUSES.index(Cause.RULE)
    ranking = ranked(rows, found, Objective.FASTEST, ran_out=(rows[3].replace(batch_size=8),))
    assert order(ranking) == [rows[0]]
    assert ranking.left_out == {RULE: 1, RAN_OUT: 2, UNLIKELY: 1}
    assert ranking.considered == 5
    unknown = ranked(rows[:1], estimates([np.nan]), Objective.FASTEST)
    assert unknown.left_out == {UNKNOWN: 1}


def test_if_nothing_qualifies_the_likeliest_is_named():
    rows = [ONE, FOUR]
    found = estimates([1, 2], p_valid=[0.1, 0.4], cause=Cause.MEMORY)
    ranking = ranked(rows, found, Objective.FASTEST)
    assert ranking.candidates == ()
    assert f"of 2 configurations, 2 {UNLIKELY}" in ranking.note
    assert "40%" in ranking.note
    assert "4 x A100-80GB" in ranking.note
    empty = ranked([], Estimates.unknown(0, "test"), Objective.FASTEST)
    assert "contains no configuration" in empty.note


@pytest.mark.parametrize("objective", list(Objective))
@pytest.mark.parametrize("top", [0, 1, 7, 200])
def test_part_by_part_is_the_same_as_all_at_once(objective, top):
    rng = np.random.default_rng(5)
    rows = Configurations.grid(
        {"model": ["llama3.1-8b"], "gpu_model": ["L40S", "H100"], "batch_size": range(1, 61)}
    )
    found = estimates(rng.integers(1, 30, len(rows)), rng.uniform(0.5, 1.0, len(rows)))
    limits = Limits(tokens=1e4, deadline_s=1500, top=top)
    whole = rank(rows, found, objective, limits)
    ranker = Ranker(objective, limits)
    for start in range(0, len(rows), 17):
        part = np.arange(start, min(start + 17, len(rows)))
        ranker.add(rows.take(part), found.take(part))
    assert msgspec.json.encode(ranker.ranking()) == msgspec.json.encode(whole)  # NaN is not NaN
    assert len(whole.candidates) == min(top, len(rows) - sum(whole.left_out.values()))
    scores = [candidate.score for candidate in whole.candidates]
    assert scores == sorted(scores, reverse=True)
