"""The order of the data, and the recipe that it follows."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from duetune.errors import InvalidInput
from duetune.training.batches import BatchPlan, dropout_seed, held_out
from duetune.training.learning_rate import Schedule
from duetune.training.task import TrainingTask, read_task, write_task

plans = st.builds(
    BatchPlan,
    rows=st.integers(1, 40),
    batch_rows=st.integers(1, 50),
    seed=st.integers(0, 2**32 - 1),
)


@given(plan=plans)
def test_every_row_comes_once_in_every_pass(plan):
    steps = -(-3 * plan.rows // plan.batch_rows)
    line = np.concatenate([plan.rows_of(step) for step in range(steps)])
    for number in range(3):
        part = line[number * plan.rows : (number + 1) * plan.rows]
        np.testing.assert_array_equal(np.sort(part), np.arange(plan.rows))


def test_the_order_follows_from_the_seed_alone_and_differs_between_passes():
    plan = BatchPlan(rows=50, batch_rows=50, seed=1)
    np.testing.assert_array_equal(plan.rows_of(3), BatchPlan(50, 50, 1).rows_of(3))
    assert not np.array_equal(plan.rows_of(0), plan.rows_of(1))
    assert not np.array_equal(plan.rows_of(0), BatchPlan(50, 50, 2).rows_of(0))


@given(rows=st.integers(1, 500), fraction=st.floats(0, 0.99), most=st.integers(1, 50))
def test_at_most_half_is_held_out_and_each_row_once(rows, fraction, most):
    kept = held_out(rows, fraction, most, seed=7)
    assert len(kept) <= min(most, rows // 2, rows * fraction)
    assert len(np.unique(kept)) == len(kept)


def test_every_microbatch_has_its_own_dropout():
    seeds = {dropout_seed(1, step, number) for step in range(50) for number in range(8)}
    assert len(seeds) == 400
    assert all(0 <= seed < 2**63 for seed in seeds)


def task(**fields):
    return TrainingTask(model="m", dataset="d", **fields)


def test_the_global_batch_does_not_depend_on_members():
    assert task(per_device_train_batch_size=4, gradient_accumulation_steps=6).batch_rows == 24
    assert task(per_device_train_batch_size=4, global_batch=10).microbatches == 3


def test_steps_follow_from_epochs_unless_they_are_given():
    assert task(num_train_epochs=2, global_batch=10).total_steps(95) == 19
    assert task(num_train_epochs=0.001, global_batch=10).total_steps(95) == 1
    assert task(num_train_epochs=2, max_steps=7).total_steps(95) == 7


def test_a_task_is_read_as_it_was_written(tmp_path):
    wished = task(lora_target_modules=("q_proj", "v_proj"), bf16=True, lr_scheduler_type="cosine")
    write_task(tmp_path, wished)
    assert read_task(tmp_path) == wished


def test_a_task_file_of_an_older_version_still_loads(tmp_path):
    (tmp_path / "task.json").write_text('{"model": "m", "dataset": "d", "reduction": "exact"}')
    assert read_task(tmp_path) == task()


def test_a_microbatch_has_room_for_its_examples_at_full_length_unless_told_otherwise():
    usual = {"per_device_train_batch_size": 4, "max_length": 512}
    assert task(**usual).microbatch_tokens == 2048
    assert task(**usual, max_tokens_per_microbatch=700).microbatch_tokens == 700


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"max_steps": 0}, "max_steps: 0"),
        ({"learning_rate": float("nan")}, "learning_rate: nan"),
        ({"lora_dropout": 1.0}, "lora_dropout"),
        ({"bf16": True, "fp16": True}, "because bf16 is true"),
        ({"seed": -1}, "seed"),
    ],
)
def test_a_task_that_cannot_be_trained_is_refused(fields, words):
    with pytest.raises(InvalidInput, match=words):
        task(**fields)


def test_a_broken_task_file_is_refused_in_one_line(tmp_path):
    (tmp_path / "task.json").write_text('{"model": "m"}')
    with pytest.raises(InvalidInput, match="dataset"):
        read_task(tmp_path)
    with pytest.raises(InvalidInput, match="No such file"):
        read_task(tmp_path / "nowhere")


@pytest.mark.parametrize(
    "schedule", ["linear", "cosine", "constant", "constant_with_warmup"], ids=str
)
def test_learning_rates_rise_and_fall_as_their_names_say(schedule):
    schedule = Schedule(schedule)
    wished = task(learning_rate=1.0, lr_scheduler_type=schedule, warmup_steps=10)
    rates = [wished.learning_rate_at(step, 110) for step in range(111)]
    if schedule is Schedule.CONSTANT:
        assert set(rates) == {1.0}
        return
    assert rates[:11] == [step / 10 for step in range(11)]
    falls = schedule is not Schedule.CONSTANT_WITH_WARMUP
    assert rates[60] == pytest.approx(0.5 if falls else 1.0)
    assert rates[110] == pytest.approx(0.0 if falls else 1.0)
