"""Configurations, observations and estimates as records: names, keys, and what is refused."""

from __future__ import annotations

import math

import msgspec
import numpy as np
import pytest

from duetune.errors import InvalidInput
from duetune.knowledge.configurations.configuration import Configuration, Configurations, Method
from duetune.knowledge.estimate import CAUSES, Cause, Estimates
from duetune.knowledge.observation import Observation, RunOutcome

ONE = Configuration(model="meta-llama/Llama-3.1-8B", gpu_model="A100-80GB")


def test_keys_stay_what_they_are_from_version_to_version():
    """Stored histories and saved models go by them."""
    assert ONE.key == "8e2af055b1cf47aa"
    other = ONE.replace(
        model="模型-é", gpu_model="H200", method="full", memory_cap_gb=24.0, software="ü"
    )
    assert other.key == "2a868ea814a5b876"
    seen = Observation(configuration=ONE, outcome=RunOutcome.VALID, tokens_per_s=1.0)
    assert seen.key == "c299e50743de1640"


def test_words_that_look_alike_are_not_the_same():
    composed, combining = ONE.replace(model="\u00e9"), ONE.replace(model="e\u0301")
    assert composed.key != combining.key
    many = Configurations.of([composed, combining, composed])
    assert many.is_("model", "\u00e9").tolist() == [True, False, True]


@pytest.mark.parametrize(
    "changes",
    [
        {"method": "everything"},
        {"num_gpus": 1.5},
        {"num_gpus": None},
        {"grad_checkpoint": "yes"},
        {"gpus": 2},
        {"model": 3},
        {"memory_cap_gb": "24"},
    ],
)
def test_a_change_that_makes_no_configuration_is_refused(changes):
    with pytest.raises(msgspec.ValidationError):
        ONE.replace(**changes)


def test_a_change_makes_words_of_the_right_kind_and_leaves_the_first_alone():
    changed = ONE.replace(method="full", memory_cap_gb=24)
    assert changed.method is Method.FULL
    assert isinstance(changed.memory_cap_gb, float)
    assert ONE.method is Method.LORA
    assert changed.replace(method="lora", memory_cap_gb=0) == ONE


def test_numbers_are_gathered_of_a_part_without_asking_for_rows_that_are_gone():
    many = Configurations.of([ONE, ONE.replace(model="bb"), ONE.replace(model="c")])
    part = many.take(np.array([True, False, True]))
    assert part.gather("model", len).tolist() == [len(ONE.model), 1]
    assert part.words("model") == [ONE.model, "c"]
    assert len(part) == 2
    assert Configurations.of([]).gather("model", len).tolist() == []


def test_values_are_numbered_in_their_order():
    many = Configurations.of([ONE.replace(batch_size=size) for size in (8, 2, 8, 4)])
    values, codes = many.distinct("batch_size")
    assert values.tolist() == [2, 4, 8]
    assert codes.tolist() == [2, 0, 2, 1]


def test_a_grid_of_nothing_is_empty():
    none = Configurations.grid({"model": ["a"], "gpu_model": ["L4"], "method": [], "num_gpus": [1]})
    assert len(none) == 0
    assert list(none) == []


@pytest.mark.parametrize("number", [0.0, -1.0, math.nan, math.inf])
@pytest.mark.parametrize(
    "field",
    ["tokens_per_s", "step_s", "peak_memory_gb", "needed_memory_gb", "runtime_s", "weight"],
)
def test_a_measurement_that_is_no_positive_number_is_refused(field, number):
    with pytest.raises(InvalidInput, match=field):
        Observation(
            configuration=ONE, outcome=RunOutcome.VALID, **({"tokens_per_s": 1.0} | {field: number})
        )


def test_a_run_that_was_valid_has_measured_something():
    with pytest.raises(InvalidInput, match="tokens_per_s"):
        Observation(configuration=ONE, outcome=RunOutcome.VALID)
    assert Observation(configuration=ONE, outcome=RunOutcome.VALID, peak_memory_gb=3.0)
    assert Observation(configuration=ONE, outcome=RunOutcome.OOM)


def test_of_what_nothing_is_known_it_may_fit_as_well_as_not():
    unknown = Estimates.unknown(3, "nobody")
    assert len(unknown) == 3
    told = unknown[1]
    assert (told.p_valid, told.cause, told.support) == (0.5, Cause.NONE, 0)
    assert all(math.isnan(number) for number in (*told.tokens_per_s, *told.memory_gb))
    assert told.source == "nobody"


def test_parts_of_estimates_keep_their_order():
    many = Estimates.unknown(4, "test")
    many.p_valid[:] = [0.1, 0.2, 0.3, 0.4]
    many.cause[2] = CAUSES.index(Cause.MEMORY)
    many.extrapolated[2, 1] = True
    many.tokens_per_s[2] = [1.0, 2.0, 3.0]
    part = many.take(np.array([2, 0]))
    assert [part[0].p_valid, part[1].p_valid] == [0.3, 0.1]
    assert part[0].cause is Cause.MEMORY
    assert part[0].extrapolated == ("gpu_model",)
    assert part[0].tokens_per_s == (1.0, 2.0, 3.0)
    assert len(many.take(np.array([True, False, False, True]))) == 2
