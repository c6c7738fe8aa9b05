"""The schedules of the learning rate, which are those of transformers."""

from __future__ import annotations

import msgspec
import pytest

from duetune.errors import InvalidInput
from duetune.training.learning_rate import LearningRate, Schedule, ScheduleOptions
from duetune.training.task import TrainingTask
from support.later import later

torch = later("torch")
transformers = later("transformers")

OPTIONS = {
    Schedule.LINEAR: [{}],
    Schedule.COSINE: [{}, {"num_cycles": 1.5}],
    Schedule.COSINE_WITH_RESTARTS: [{}, {"num_cycles": 3}],
    Schedule.POLYNOMIAL: [{}, {"lr_end": 1e-5, "power": 2.0}],
    Schedule.CONSTANT: [{}],
    Schedule.CONSTANT_WITH_WARMUP: [{}],
    Schedule.INVERSE_SQRT: [{}, {"timescale": 7}],
    Schedule.COSINE_WITH_MIN_LR: [{"min_lr": 1e-5}, {"min_lr_rate": 0.1, "num_cycles": 0.7}],
    Schedule.COSINE_WARMUP_WITH_MIN_LR: [
        {"min_lr_rate": 0.1},
        {"min_lr": 1e-5, "warmup_lr_rate": 0.2},
    ],
    Schedule.WARMUP_STABLE_DECAY: [
        {"num_decay_steps": 20},
        {"num_decay_steps": 10, "decay_type": "linear", "warmup_type": "cosine"},
        {"num_decay_steps": 9, "num_stable_steps": 30, "decay_type": "1-sqrt"},
        {"num_decay_steps": 9, "min_lr_ratio": 0.2, "warmup_type": "1-sqrt", "num_cycles": 1.0},
    ],
}
TOTAL = 60


@pytest.mark.torch
@pytest.mark.filterwarnings("ignore:Both num_training_steps")
@pytest.mark.parametrize("schedule", Schedule)
@pytest.mark.parametrize("warmup", [0, 1, 13])
def test_rates_are_those_of_transformers(schedule, warmup):
    for given in OPTIONS[schedule]:
        options = msgspec.convert(given, ScheduleOptions)
        ours = LearningRate(schedule, 3e-4, warmup, TOTAL, options)
        optimiser = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=3e-4)
        theirs = transformers.get_scheduler(
            schedule.value, optimiser, warmup, TOTAL, scheduler_specific_kwargs=given
        )
        for step in range(TOTAL + 3):
            assert ours.at(step) == pytest.approx(theirs.get_last_lr()[0], abs=1e-12), (given, step)
            optimiser.step()
            theirs.step()


@pytest.mark.parametrize(
    ("schedule", "options", "words"),
    [
        ("linear", {"num_cycles": 2}, "an option of linear: none"),
        ("cosine", {"power": 2}, "an option of cosine: one of num_cycles"),
        ("cosine_with_min_lr", {}, "either min_lr or min_lr_rate"),
        ("cosine_with_min_lr", {"min_lr": 0.1, "min_lr_rate": 0.1}, "either min_lr or"),
        ("warmup_stable_decay", {}, "num_decay_steps"),
        ("polynomial", {"lr_end": 1.0}, "below the learning rate"),
        ("inverse_sqrt", {"timescale": 0}, "above 0"),
    ],
)
def test_options_that_a_schedule_does_not_have_or_lacks_are_refused(schedule, options, words):
    with pytest.raises(InvalidInput, match=words):
        TrainingTask(
            model="",
            dataset="",
            lr_scheduler_type=Schedule(schedule),
            lr_scheduler_kwargs=ScheduleOptions(**options),
        )
