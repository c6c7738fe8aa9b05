"""The course of the learning rate: transformers' schedules that are a pure function of the step.

``reduce_lr_on_plateau`` and ``greedy`` follow the loss of one process, so they have no place here.
"""

from __future__ import annotations

import math
from enum import StrEnum
from typing import Literal, assert_never

import msgspec

from duetune.errors import InvalidInput

Curve = Literal["linear", "cosine", "1-sqrt"]


class Schedule(StrEnum):
    """The course of the learning rate, by its name in ``lr_scheduler_type``."""

    LINEAR = "linear"
    COSINE = "cosine"
    COSINE_WITH_RESTARTS = "cosine_with_restarts"
    POLYNOMIAL = "polynomial"
    CONSTANT = "constant"
    CONSTANT_WITH_WARMUP = "constant_with_warmup"
    INVERSE_SQRT = "inverse_sqrt"
    COSINE_WITH_MIN_LR = "cosine_with_min_lr"
    COSINE_WARMUP_WITH_MIN_LR = "cosine_warmup_with_min_lr"
    WARMUP_STABLE_DECAY = "warmup_stable_decay"


class ScheduleOptions(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """The options of a schedule, by their names in ``lr_scheduler_kwargs``.

    None stands for the default of transformers, which may depend on the schedule.
    """

    num_cycles: float | None = None
    lr_end: float | None = None
    power: float | None = None
    timescale: float | None = None
    min_lr: float | None = None
    min_lr_rate: float | None = None
    warmup_lr_rate: float | None = None
    num_decay_steps: int | None = None
    num_stable_steps: int | None = None
    warmup_type: Curve | None = None
    decay_type: Curve | None = None
    min_lr_ratio: float | None = None

    @property
    def given(self) -> dict[str, float | str]:
        """The options that were given, by name."""
        found: dict[str, float | str] = msgspec.structs.asdict(self)
        return {name: value for name, value in found.items() if value is not None}


_MIN_LR = ("num_cycles", "min_lr", "min_lr_rate")
_OPTIONS: dict[Schedule, tuple[str, ...]] = {
    Schedule.COSINE: ("num_cycles",),
    Schedule.COSINE_WITH_RESTARTS: ("num_cycles",),
    Schedule.POLYNOMIAL: ("lr_end", "power"),
    Schedule.INVERSE_SQRT: ("timescale",),
    Schedule.COSINE_WITH_MIN_LR: _MIN_LR,
    Schedule.COSINE_WARMUP_WITH_MIN_LR: (*_MIN_LR, "warmup_lr_rate"),
    Schedule.WARMUP_STABLE_DECAY: (
        "num_decay_steps",
        "num_stable_steps",
        "warmup_type",
        "decay_type",
        "min_lr_ratio",
        "num_cycles",
    ),
}


class LearningRate(msgspec.Struct, frozen=True):
    """The learning rate of a run of ``total`` steps, with ``warmup`` steps up to ``peak``."""

    schedule: Schedule
    peak: float
    warmup: int
    total: int
    options: ScheduleOptions = ScheduleOptions()

    def at(self, step: int) -> float:
        """Return the learning rate of the update after ``step`` updates."""
        if self.schedule is Schedule.CONSTANT:
            return self.peak
        if self.schedule is Schedule.WARMUP_STABLE_DECAY:
            return self.peak * self._stages(step)
        if step < self.warmup:
            return self.peak * self._warming(step)
        return self.peak * self._after(step)

    def _warming(self, step: int) -> float:
        if self.schedule is not Schedule.COSINE_WARMUP_WITH_MIN_LR:
            return step / self.warmup
        first = self.options.warmup_lr_rate
        if first is None:
            return (step + 1) / self.warmup
        return first + (1 - first) * step / max(1, self.warmup - 1)

    def _after(self, step: int) -> float:
        """Return the share of the peak after the warm-up."""
        options, schedule = self.options, self.schedule
        length = max(1, self.total - self.warmup)
        done = (step - self.warmup) / length
        match schedule:
            case Schedule.LINEAR:
                return max(0.0, (self.total - step) / length)
            case Schedule.COSINE:
                return _cosine(done, _or(options.num_cycles, 0.5), 0.0)
            case Schedule.COSINE_WITH_RESTARTS:
                turn = math.pi * (_or(options.num_cycles, 1.0) * done % 1.0)
                return 0.0 if done >= 1 else max(0.0, 0.5 * (1 + math.cos(turn)))
            case Schedule.COSINE_WITH_MIN_LR:
                return _cosine(done, _or(options.num_cycles, 0.5), self._least)
            case Schedule.COSINE_WARMUP_WITH_MIN_LR:
                later = (step - self.warmup + 1) / length
                return _cosine(later, _or(options.num_cycles, 0.5), self._least)
            case Schedule.POLYNOMIAL:
                end = _or(options.lr_end, 1e-7)
                left = math.pow(max(0.0, 1 - done), _or(options.power, 1.0))
                return ((self.peak - end) * left + end) / self.peak
            case Schedule.INVERSE_SQRT:
                scale = _or(options.timescale, self.warmup or 10_000)
                return 1 / math.sqrt((step + scale - self.warmup) / scale)
            case Schedule.CONSTANT | Schedule.CONSTANT_WITH_WARMUP | Schedule.WARMUP_STABLE_DECAY:
                return 1.0
        assert_never(schedule)

    def _stages(self, step: int) -> float:
        """Return the share of the peak with a warm-up, a constant stage and a decay."""
        options, floor = self.options, self.options.min_lr_ratio or 0.0
        decay = options.num_decay_steps or 0
        stable = _or(options.num_stable_steps, self.total - self.warmup - decay)
        if step < self.warmup:
            done = step / self.warmup
            curve = options.warmup_type or "linear"
            shapes = {"linear": done, "cosine": 0.5 * (1 - math.cos(math.pi * done))}
            return floor + (1 - floor) * shapes.get(curve, 1 - math.sqrt(1 - done))
        if step < self.warmup + stable:
            return 1.0
        if step >= self.warmup + stable + decay:
            return floor
        done = (step - self.warmup - stable) / decay
        curve = options.decay_type or "cosine"
        cycles = _or(options.num_cycles, 0.5)
        shapes = {"linear": 1 - done, "cosine": 0.5 * (1 + math.cos(2 * math.pi * cycles * done))}
        return max(0.0, floor + (1 - floor) * shapes.get(curve, 1 - math.sqrt(done)))

    @property
    def _least(self) -> float:
        if self.options.min_lr is not None:
            return self.options.min_lr / self.peak
        return self.options.min_lr_rate or 0.0


def check_schedule(schedule: Schedule, options: ScheduleOptions, peak: float | None) -> None:
    """Refuse options that the schedule does not have, lacks or cannot use. Specs and tasks call it;
    ``peak`` is the peak learning rate, if known.
    """
    field, given = "lr_scheduler_kwargs", options.given
    known = _OPTIONS.get(schedule, ())
    for name, value in given.items():
        if name not in known:
            words = f"one of {', '.join(known)}" if known else "none"
            raise InvalidInput(f"{field}.{name}", value, f"an option of {schedule}: {words}")
        if not isinstance(value, str) and not (math.isfinite(value) and value >= 0):
            raise InvalidInput(f"{field}.{name}", value, "a number, 0 or more")
    if known[:3] == _MIN_LR and ("min_lr" in given) == ("min_lr_rate" in given):
        raise InvalidInput(field, given, f"either min_lr or min_lr_rate, which {schedule} needs")
    if schedule is Schedule.WARMUP_STABLE_DECAY and options.num_decay_steps is None:
        raise InvalidInput(field, given, f"num_decay_steps, which {schedule} needs")
    if options.timescale == 0:
        raise InvalidInput(f"{field}.timescale", 0, "a number above 0")
    end = _or(options.lr_end, 1e-7)
    if schedule is Schedule.POLYNOMIAL and peak is not None and end >= peak:
        raise InvalidInput(f"{field}.lr_end", end, f"a number below the learning rate {peak:g}")


def _cosine(done: float, cycles: float, least: float) -> float:
    share = 0.5 * (1 + math.cos(2 * math.pi * cycles * done))
    return max(0.0, share * (1 - least) + least)


def _or(value: float | None, default: float) -> float:
    return default if value is None else value
