"""When the loss is measured, what counts as better, and that members make no difference."""

from __future__ import annotations

import math
from types import SimpleNamespace

import msgspec
import numpy as np
import pytest

from duetune.training.dataset_rows import DataRow
from duetune.training.task import EvalStrategy, TrainingTask
from support.later import later

pytestmark = pytest.mark.torch

torch = later("torch")
evaluating = later("duetune.training.evaluation")
learning = later("duetune.training.shared_state")
learner_state = later("duetune.training.learner_state")
models = later("duetune.training.trained_model")
tiny = later("duetune.training.tiny")
tokens = later("duetune.training.tokens")

ROWS = [DataRow(prompt=f"{number} + 1 = ", completion=f"{number + 1}") for number in range(30)]


@pytest.fixture(scope="module")
def task(tmp_path_factory):
    folder = tiny.build_tiny_model(tmp_path_factory.mktemp("model"), hidden=32, layers=1, heads=2)
    return TrainingTask(
        model=str(folder),
        dataset="unused",
        max_steps=20,
        max_length=64,
        per_device_train_batch_size=2,
        gradient_accumulation_steps=2,
        lora_dropout=0.5,
    )


@pytest.fixture(scope="module")
def measured(task):
    data = tokens.tokenized(ROWS, models.load_tokenizer(task), task.max_length)
    device = torch.device("cpu")
    held_out = evaluating.Evaluation(task, data, np.arange(9), 21, device)
    return held_out, learning.SharedState(
        task, models.load_model(task, device), data, np.arange(9, 30), device
    )


def due(strategy, *, rows=10, **fields):
    task = TrainingTask(
        model="m",
        dataset="d",
        per_device_train_batch_size=2,
        gradient_accumulation_steps=2,
        eval_strategy=strategy,
        **fields,
    )
    data = SimpleNamespace(lengths=np.ones_like)
    found = evaluating.Evaluation(task, data, np.arange(rows), 10, None)
    return [step for step in range(13) if found.due(step)]


def test_it_is_due_by_steps_or_by_passes_over_the_data():
    assert due(EvalStrategy.NO) == []
    assert due(EvalStrategy.STEPS, eval_steps=5) == [5, 10]
    assert due(EvalStrategy.STEPS, logging_steps=6) == [6, 12]
    # Ten rows, four in a step: the passes end in the steps 2.5, 5, 7.5 and 10.
    assert due(EvalStrategy.EPOCH) == [3, 5, 8, 10]
    assert due(EvalStrategy.STEPS, eval_steps=5, rows=0) == []


def test_any_lower_loss_is_the_best_but_patience_asks_for_more():
    found = evaluating.EvaluationHistory()
    for step, loss in ((1, 3.0), (2, 2.0), (3, 1.95), (4, math.nan), (5, 2.5)):
        found = found.after(step, loss, 0.1)
    assert (found.step, found.loss) == (5, 2.5)
    assert (found.best_step, found.best_loss) == (3, 1.95)
    assert found.waited == 3


def test_the_number_of_members_makes_no_difference(measured):
    held_out, member = measured
    alone = held_out.alone(member.model)
    for paces in ((0.0, 0.0), (1.0, 5.0, 2.0), (0.0,) * 12):
        parts = [
            held_out.share(member.model, rank, paces, lambda: None) for rank in range(len(paces))
        ]
        assert len({part.shape for part in parts}) == 1
        assert held_out.mean(parts, paces) == alone
    # Dropout is off while measuring, and on again afterwards.
    assert member.model.training


def test_the_evaluations_are_part_of_the_state(measured, task):
    held_out, member = measured
    history = evaluating.EvaluationHistory().after(1, held_out.alone(member.model), 0.0)
    part = member.contribution(0, (0.0,), lambda: None)
    member.update(part[0], history)
    assert member.known.evaluated == history
    assert member.known.grad_norm > 0
    assert member.total_steps == task.max_steps
    member.stop(history)
    assert member.total_steps == member.step == 1
    document = msgspec.json.decode(msgspec.json.encode(member.document()))
    before = member.known
    member.known = learner_state.LearnerState(layout=before.layout)
    assert member.total_steps == task.max_steps
    member.load(member.arrays(), document)
    assert member.known == before
    assert member.total_steps == 1


def test_the_end_is_told_in_one_sentence():
    assert evaluating.stopped_words(420, 1000, 3) == (
        "stopped early at step 420 of 1,000: evaluation loss has not improved for 3 evaluations"
    )
