from __future__ import annotations

import itertools

import numpy as np
import pytest

from duetune.knowledge.configurations.configuration import Configuration, Configurations
from duetune.knowledge.model.frontier import Support
from support.synthetic_history import drawn

RUN = Configuration(model="a", gpu_model="L40S", num_gpus=4, batch_size=16, tokens_per_sample=1024)


def count(rows, *asked):
    return Support.of(Configurations.of(rows)).count(Configurations.of(asked)).tolist()


def step(number):
    return round(float(np.log2(number)))


def by_hand(rows, asked):
    """Runs of the same model, method and GPU within one step of every size."""
    return sum(
        all(
            getattr(row, field) == getattr(asked, field)
            for field in ("model", "method", "gpu_model")
        )
        and all(
            abs(step(getattr(row, field)) - step(getattr(asked, field))) <= 1
            for field in ("num_gpus", "batch_size", "tokens_per_sample")
        )
        for row in rows
    )


@pytest.mark.parametrize("field", ["num_gpus", "batch_size", "tokens_per_sample"])
def test_one_doubling_away_is_near_and_two_are_not(field):
    number = getattr(RUN, field)
    for factor, near in ((1, 1), (2, 1), (0.5, 1), (4, 0), (0.25, 0)):
        assert count([RUN], RUN.replace(**{field: int(number * factor)})) == [near]


def test_near_in_one_size_and_far_in_another_is_far():
    assert count([RUN], RUN.replace(batch_size=8, tokens_per_sample=8192)) == [0]
    assert count([RUN], RUN.replace(batch_size=8, tokens_per_sample=2048, num_gpus=2)) == [1]


@pytest.mark.parametrize("other", [{"model": "b"}, {"method": "full"}, {"gpu_model": "A100-80GB"}])
def test_other_words_do_not_count(other):
    assert count([RUN], RUN.replace(**other)) == [0]
    assert count([RUN, RUN.replace(**other)], RUN) == [1]


@pytest.mark.parametrize(
    "other", [{"software": "b"}, {"lora_rank": 64}, {"grad_checkpoint": False}]
)
def test_other_fields_do_not_matter(other):
    assert count([RUN, RUN], RUN.replace(**other)) == [2]


def test_nothing_measured_supports_nothing():
    assert count([], RUN, RUN.replace(batch_size=1)) == [0, 0]
    assert count([RUN]) == []


def test_counts_are_those_by_hand():
    rows = list(drawn(120, 1))
    asked = [*drawn(150, 2, method=("full", "lora", "qlora")), *rows[:20]]
    assert count(rows, *asked) == [by_hand(rows, each) for each in asked]
    assert max(count(rows, *asked)) > 3


def test_numbers_between_powers_of_two_count_with_the_nearest():
    rows = [RUN.replace(batch_size=size) for size in (12, 20, 23, 24, 90)]
    asked = [RUN.replace(batch_size=size) for size in range(1, 130)]
    assert count(rows, *asked) == [by_hand(rows, each) for each in asked]


def test_the_largest_sizes_are_counted_together_and_do_not_wrap_around():
    vast = RUN.replace(batch_size=2**25)
    assert count([vast], vast, RUN.replace(batch_size=1)) == [1, 0]
    assert count([RUN.replace(batch_size=1)], vast) == [0]


def test_combinations_of_words_that_never_met_count_nothing():
    rows = [RUN, RUN.replace(model="b", gpu_model="H200")]
    for model, gpu in itertools.product("ab", ("L40S", "H200")):
        met = (model, gpu) in {("a", "L40S"), ("b", "H200")}
        assert count(rows, RUN.replace(model=model, gpu_model=gpu)) == [int(met)]
