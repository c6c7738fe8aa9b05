from __future__ import annotations

import numpy as np
import pytest

from duetune.knowledge.configurations.configuration import Configuration, Configurations, Method
from duetune.knowledge.facts.gpus import GPUS
from duetune.knowledge.history import History
from duetune.knowledge.model.quality import (
    IMPLAUSIBLE,
    SATURATED,
    TOO_LIGHT,
    implied_mfu,
    noted,
)
from duetune.knowledge.observation import Observation, RunOutcome

BASE = Configuration(model="mistral-7b-v0.1", gpu_model="A100-80GB", method=Method.FULL)


def mfu(configuration, tokens_per_s):
    return implied_mfu(Configurations.of([configuration]), np.array([tokens_per_s]))[0]


def seen(configuration=BASE, outcome=RunOutcome.VALID, **given):
    return Observation(
        configuration=configuration, outcome=outcome, **({"tokens_per_s": 100.0} | given)
    )


def test_mfu_is_six_flop_per_parameter_and_token_over_the_peak():
    assert mfu(BASE, 1000) == pytest.approx(1000 * 6 * 7.2417e9 / 312e12, rel=1e-3)
    assert mfu(BASE.replace(num_gpus=4), 4000) == pytest.approx(mfu(BASE, 1000))


def test_adapters_need_two_thirds_of_the_arithmetic():
    assert mfu(BASE.replace(method="lora"), 1500) == pytest.approx(mfu(BASE, 1000))


def test_only_active_experts_count():
    sparse = BASE.replace(model="mixtral-8x7b")
    assert mfu(sparse, 1000) == pytest.approx(1000 * 6 * 12.9e9 / 312e12, rel=0.01)


@pytest.mark.parametrize("other", [{"model": "nobody/knows"}, {"gpu_model": "emulated"}])
def test_of_what_is_not_known_nothing_is_implied(other):
    assert np.isnan(mfu(BASE.replace(**other), 1e12))
    assert noted([seen(BASE.replace(**other), tokens_per_s=1e12)])[0].flags == ()


def test_more_arithmetic_than_there_is_gets_a_flag():
    below, above = noted([seen(tokens_per_s=6000.0), seen(tokens_per_s=6200.0)])
    assert below.flags == ()
    assert above.flags == (IMPLAUSIBLE,)
    assert noted([above]) == [above]


def test_a_full_memory_gets_a_flag():
    capacity = GPUS["A100-80GB"].capacity / 1e9
    below, above = noted(
        [seen(peak_memory_gb=0.98 * capacity), seen(peak_memory_gb=0.995 * capacity)]
    )
    assert below.flags == ()
    assert above.flags == (SATURATED,)


def test_a_cap_counts_as_the_memory():
    capped = BASE.replace(memory_cap_gb=40)
    assert noted([seen(capped, peak_memory_gb=42.8)])[0].flags == (SATURATED,)


@pytest.mark.parametrize(
    ("change", "peak", "odd"),
    [
        ({}, 12.9, True),
        ({}, 13.5, False),
        ({"method": "qlora"}, 3.5, False),
        ({"method": "qlora"}, 3.0, True),
        ({"num_gpus": 4}, 3.5, False),
        ({"model": "nobody/knows"}, 0.1, False),
        ({}, None, False),
    ],
)
def test_a_peak_below_the_weights_is_not_learnt_from(change, peak, odd):
    history = History([seen(BASE.replace(**change), tokens_per_s=1000.0, peak_memory_gb=peak)])
    assert [each.reason.split(":")[0] for each in history.quarantined] == [TOO_LIGHT] * odd
