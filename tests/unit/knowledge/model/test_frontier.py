from __future__ import annotations

import pytest

from duetune.knowledge.configurations.configuration import FIELDS, Configuration, Configurations
from duetune.knowledge.history import History
from duetune.knowledge.model.frontier import INVALID, UNKNOWN, VALID, Frontier
from duetune.knowledge.observation import Observation, RunOutcome

RUN = Configuration(
    model="meta-llama/Llama-3.1-8B",
    gpu_model="A100-80GB",
    method="full",
    batch_size=8,
    tokens_per_sample=1024,
    memory_cap_gb=48.0,
)


def history(*outcomes):
    return History(
        Observation(
            configuration=row,
            outcome=outcome,
            tokens_per_s=100.0 if outcome is RunOutcome.VALID else None,
        )
        for row, outcome in outcomes
    )


def answer(past, **changes):
    return int(Frontier(past).answers(Configurations.of([RUN.replace(**changes)]))[0])


OOM = history((RUN, RunOutcome.OOM))
FITTED = history((RUN, RunOutcome.VALID))


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"batch_size": 9},
        {"tokens_per_sample": 1025},
        {"memory_cap_gb": 40.0},
        {"batch_size": 16, "tokens_per_sample": 4096, "memory_cap_gb": 24.0},
    ],
)
def test_more_than_what_ran_out_of_memory_does_too(more):
    assert answer(OOM, **more) == INVALID


@pytest.mark.parametrize(
    "less",
    [
        {},
        {"batch_size": 7},
        {"tokens_per_sample": 1023},
        {"memory_cap_gb": 0.0},
        {"batch_size": 1, "tokens_per_sample": 128, "memory_cap_gb": 80.0},
    ],
)
def test_less_than_what_fitted_fits(less):
    assert answer(FITTED, **less) == VALID


@pytest.mark.parametrize(
    ("past", "changes"),
    [
        (OOM, {"batch_size": 7}),
        (OOM, {"tokens_per_sample": 1023}),
        (OOM, {"memory_cap_gb": 0.0}),
        (FITTED, {"batch_size": 9}),
        (FITTED, {"tokens_per_sample": 1025}),
        (FITTED, {"memory_cap_gb": 24.0}),
        # More of one, less of another.
        (OOM, {"batch_size": 4, "tokens_per_sample": 2048}),
        (FITTED, {"batch_size": 4, "tokens_per_sample": 2048}),
    ],
)
def test_nothing_follows_for_the_other_side(past, changes):
    assert answer(past, **changes) == UNKNOWN


@pytest.mark.parametrize(
    "field",
    sorted(
        set(FIELDS)
        - {"batch_size", "tokens_per_sample", "longest_sample", "memory_cap_gb", "interconnect"}
    ),
)
def test_nothing_follows_for_another_cell(field):
    other = {
        "method": "lora",
        "precision": "fp32",
        "sharding": "fsdp",
        "optimiser": "sgd",
        "attention": "eager",
        "grad_checkpoint": False,
        "fast_kernels": True,
        "model": "meta-llama/Llama-3.2-1B",
        "gpu_model": "L40S",
        "lora_targets": "all-linear",
        "software": "other",
    }
    new = other.get(field, 0)
    if field not in other:
        new = getattr(RUN, field) + 1
    for past in (OOM, FITTED):
        assert answer(past, **{field: new}) == UNKNOWN


def test_runs_that_contradict_each_other_say_nothing_where_they_do():
    past = history((RUN, RunOutcome.VALID), (RUN.replace(batch_size=4), RunOutcome.OOM))
    assert answer(past, batch_size=8) == UNKNOWN
    assert answer(past, batch_size=5) == UNKNOWN
    assert answer(past, batch_size=4) == UNKNOWN
    assert answer(past, batch_size=3) == VALID
    assert answer(past, batch_size=9) == INVALID


def test_the_batch_is_that_of_one_gpu():
    two = RUN.replace(num_gpus=2, batch_size=16, sharding="fsdp")
    past = history((two, RunOutcome.OOM))
    same = {"num_gpus": 2, "sharding": "fsdp"}
    assert answer(past, batch_size=16, **same) == INVALID
    assert answer(past, batch_size=14, **same) == UNKNOWN
    assert answer(past, batch_size=16) == UNKNOWN  # of one GPU nothing was measured


def test_a_gap_is_left_open_between_what_fitted_and_what_did_not():
    past = history((RUN, RunOutcome.VALID), (RUN.replace(batch_size=32), RunOutcome.OOM))
    told = [answer(past, batch_size=size) for size in (4, 8, 16, 31, 32, 64)]
    assert told == [VALID, VALID, UNKNOWN, UNKNOWN, INVALID, INVALID]


@pytest.mark.parametrize("outcome", [RunOutcome.FAILED, RunOutcome.STOPPED, RunOutcome.REJECTED])
def test_other_outcomes_say_nothing(outcome):
    assert answer(history((RUN, outcome))) == UNKNOWN


def test_nothing_measured_and_nothing_asked():
    assert answer(History()) == UNKNOWN
    assert Frontier(OOM).answers(Configurations.of([])).tolist() == []


def test_many_at_once_are_each_answered_by_their_own_cell():
    small = RUN.replace(model="HuggingFaceTB/SmolLM2-135M")
    past = history((RUN, RunOutcome.OOM), (small, RunOutcome.VALID))
    asked = Configurations.of(
        [small.replace(batch_size=2), RUN.replace(batch_size=64), small.replace(batch_size=64), RUN]
    )
    assert Frontier(past).answers(asked).tolist() == [VALID, INVALID, UNKNOWN, INVALID]
