from __future__ import annotations

import subprocess
import sys

import msgspec
import numpy as np
import pytest

from duetune.errors import InvalidInput
from duetune.knowledge.configurations.configuration import (
    CATEGORIES,
    FIELDS,
    Configuration,
    Configurations,
    Method,
)

ONE = Configuration(model="llama3.1-8b", gpu_model="L40S", num_gpus=4, batch_size=8)
ROWS = [
    ONE,
    ONE.replace(method="full", software="trl-1.0", grad_checkpoint=False),
    ONE.replace(model="llama3.2-3b", memory_cap_gb=24.0, lora_rank=64, tokens_per_sample=4096),
]


def test_the_same_configuration_has_the_same_key_in_another_process():
    code = (
        "from duetune.knowledge.configurations.configuration import Configuration as C;"
        "print(C(model='llama3.1-8b', gpu_model='L40S', num_gpus=4, batch_size=8).key)"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert told.stdout.strip() == ONE.key


def test_any_field_that_differs_changes_the_key():
    other = {
        "method": "full",
        "lora_targets": "all-linear",
        "precision": "fp16",
        "sharding": "fsdp",
        "optimiser": "sgd",
        "attention": "eager",
        "interconnect": "tcp",
    }
    keys = {ONE.key}
    for field in FIELDS:
        value = getattr(ONE, field)
        new = other.get(field, f"{value}x" if isinstance(value, str) else value + 1)
        keys.add(ONE.replace(**{field: not value if isinstance(value, bool) else new}).key)
    assert len(keys) == len(FIELDS) + 1


def test_a_value_of_the_wrong_kind_cannot_be_put_in():
    with pytest.raises(msgspec.ValidationError):
        ONE.replace(method="fulll")
    with pytest.raises(msgspec.ValidationError):
        ONE.replace(num_gpus="4")


def test_many_are_the_same_one_by_one():
    assert list(Configurations.of(ROWS)) == ROWS


def test_part_of_many_keeps_order_and_words():
    many = Configurations.of(ROWS)
    assert list(many.take(np.array([2, 0]))) == [ROWS[2], ROWS[0]]
    assert list(many.take(np.array([False, True, False]))) == [ROWS[1]]
    assert len(many.take(np.zeros(0, np.int64))) == 0


def test_a_grid_has_every_combination_the_last_field_fastest():
    grid = Configurations.grid(
        {"model": ["a", "b"], "gpu_model": ["L40S"], "num_gpus": [1, 2, 4], "method": ["full"]}
    )
    assert [(each.model, each.num_gpus) for each in grid] == [
        (model, gpus) for model in "ab" for gpus in (1, 2, 4)
    ]
    assert {each.method for each in grid} == {Method.FULL}
    assert {each.tokens_per_sample for each in grid} == {1024}


@pytest.mark.parametrize(
    "domains",
    [{"model": ["a"]}, {"gpu_model": ["L40S"]}, {"model": ["a"], "gpu_model": ["L4"], "gpus": [1]}],
)
def test_a_grid_without_a_model_or_with_an_unknown_field_is_refused(domains):
    with pytest.raises(InvalidInput):
        Configurations.grid(domains)


def test_what_one_gpu_does_in_a_step():
    many = Configurations.of(ROWS)
    assert many.per_gpu_batch.tolist() == [2.0, 2.0, 2.0]
    assert many.per_gpu_tokens.tolist() == [2048.0, 2048.0, 8192.0]


def test_words_are_compared_by_label_whatever_their_code():
    many = Configurations.of(ROWS)
    assert many.is_("model", "llama3.2-3b").tolist() == [False, False, True]
    assert many.is_("method", Method.FULL).tolist() == [False, True, False]
    assert many.is_("model", "none-such").tolist() == [False, False, False]
    assert many.words("software") == ["", "trl-1.0", ""]
    assert frozenset(many.labels) == CATEGORIES


@pytest.mark.parametrize(
    ("field", "value", "allowed"),
    [
        ("method", "nope", "one of full, lora"),
        ("precision", "int3", "one of bf16"),
        ("lora_targets", "v_proj+q_proj", "attention, all-linear, or names of layers in order"),
        ("batch_size", "x", "a number"),
        ("memory_cap_gb", None, "a number"),
    ],
)
def test_a_word_that_means_nothing_is_refused(field, value, allowed):
    with pytest.raises(InvalidInput, match=f"{field}.* expected {allowed}"):
        Configuration(**{"model": "m", "gpu_model": "H100", field: value})
