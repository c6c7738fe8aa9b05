"""What to train and how, as the service writes it and every worker of the job reads it.

Field names are those of Hugging Face's ``TrainingArguments``, TRL and PEFT. Nothing here needs
torch. The file never changes during a job: every member must follow the same recipe.
"""

from __future__ import annotations

import math
from enum import StrEnum
from typing import TYPE_CHECKING, assert_never

import msgspec

from duetune.errors import InvalidInput
from duetune.files import write_whole

if TYPE_CHECKING:
    from pathlib import Path

TASK_FILE = "task.json"


class TrainingMethod(StrEnum):
    """Which weights a worker trains: low-rank adapters, or all of them."""

    LORA = "lora"
    FULL = "full"


class Schedule(StrEnum):
    """How the learning rate goes on after the warm-up."""

    LINEAR = "linear"
    COSINE = "cosine"
    CONSTANT = "constant"
    CONSTANT_WITH_WARMUP = "constant_with_warmup"


class Reduction(StrEnum):
    """How gradients of the members become one.

    EXACT: every microbatch's gradient travels by itself and all are added in one order, so the
    result is the same to the last bit with any number of members. FAST: members add up their own
    first. AUTO: exact while that is at most ``EXACT_BYTES``.
    """

    AUTO = "auto"
    EXACT = "exact"
    FAST = "fast"


EXACT_BYTES = 256 * 2**20


class TrainingTask(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One optimiser step takes ``gradient_accumulation_steps`` microbatches of
    ``per_device_train_batch_size`` examples over all members together; ``global_batch`` says the
    same as a number of examples. ``max_steps`` overrides ``num_train_epochs``.

    ``emulated_microbatch_s`` stands in for an accelerator: a microbatch takes at least so long.
    ``checkpoint_every_s`` overrides the interval that follows from how often nodes are lost.
    """

    model: str
    dataset: str
    eval_dataset: str | None = None
    eval_fraction: float = 0.05
    eval_rows: int = 256
    method: TrainingMethod = TrainingMethod.LORA
    num_train_epochs: float = 3.0
    max_steps: int | None = None
    per_device_train_batch_size: int = 8
    gradient_accumulation_steps: int = 4
    global_batch: int | None = None
    learning_rate: float = 2e-4
    lr_scheduler_type: Schedule = Schedule.LINEAR
    warmup_steps: int = 0
    warmup_ratio: float = 0.0
    weight_decay: float = 0.0
    max_grad_norm: float = 1.0
    adam_beta1: float = 0.9
    adam_beta2: float = 0.999
    adam_epsilon: float = 1e-8
    seed: int = 42
    max_length: int = 1024
    bf16: bool = False
    fp16: bool = False
    gradient_checkpointing: bool = False
    lora_r: int = 16
    lora_alpha: float = 32.0
    lora_dropout: float = 0.0
    lora_target_modules: str | tuple[str, ...] = "all-linear"
    logging_steps: int = 10
    reduction: Reduction = Reduction.AUTO
    checkpoint_every_s: float | None = None
    emulated_microbatch_s: float | None = None

    def __post_init__(self) -> None:
        for field in _POSITIVE:
            _above(self, field, 0, strictly=True)
        for field in _NOT_NEGATIVE:
            _above(self, field, 0, strictly=False)
        for field in ("adam_beta1", "adam_beta2", "lora_dropout", "eval_fraction"):
            if not 0 <= getattr(self, field) < 1:
                raise InvalidInput(field, getattr(self, field), "a number from 0 to below 1")
        if not 0 <= self.warmup_ratio <= 1:
            raise InvalidInput("warmup_ratio", self.warmup_ratio, "a number from 0 to 1")
        if not 0 <= self.seed < 2**32:
            raise InvalidInput("seed", self.seed, "a whole number from 0 to 4294967295")
        if self.bf16 and self.fp16:
            raise InvalidInput("fp16", True, "false, or bf16 false: one of the two")
        if self.max_length < 2:
            raise InvalidInput("max_length", self.max_length, "a whole number from 2 on")

    @property
    def batch_rows(self) -> int:
        """Examples per optimiser step, whatever the number of members."""
        return self.global_batch or (
            self.per_device_train_batch_size * self.gradient_accumulation_steps
        )

    @property
    def microbatches(self) -> int:
        """Microbatches per optimiser step; the last one may be smaller."""
        return -(-self.batch_rows // self.per_device_train_batch_size)

    def total_steps(self, rows: int) -> int:
        """Optimiser steps for ``rows`` training examples."""
        if self.max_steps is not None:
            return self.max_steps
        return max(1, math.ceil(self.num_train_epochs * rows / self.batch_rows))

    def learning_rate_at(self, step: int, total_steps: int) -> float:
        """The learning rate of the update after ``step`` ones, as in transformers."""
        warmup = self.warmup_steps or math.ceil(self.warmup_ratio * total_steps)
        if self.lr_scheduler_type is Schedule.CONSTANT:
            return self.learning_rate
        if step < warmup:
            return self.learning_rate * step / warmup
        done = (step - warmup) / max(1, total_steps - warmup)
        match self.lr_scheduler_type:
            case Schedule.LINEAR:
                return self.learning_rate * max(0.0, 1 - done)
            case Schedule.COSINE:
                return self.learning_rate * max(0.0, 0.5 * (1 + math.cos(math.pi * done)))
            case Schedule.CONSTANT_WITH_WARMUP:
                return self.learning_rate
        assert_never(self.lr_scheduler_type)


def write_task(folder: Path, task: TrainingTask) -> Path:
    """Put the task into the job's folder; a reader sees all of it or none."""
    path = folder / TASK_FILE
    write_whole(path, msgspec.json.format(msgspec.json.encode(task)) + b"\n")
    return path


def read_task(folder: Path) -> TrainingTask:
    path = folder / TASK_FILE
    try:
        return msgspec.json.decode(path.read_bytes(), type=TrainingTask)
    except OSError as error:
        raise InvalidInput("task", str(path), f"a readable file ({error.strerror})") from None
    except msgspec.MsgspecError as error:
        raise InvalidInput("task", str(path), f"a training task ({error})") from None


_POSITIVE = (
    "num_train_epochs",
    "max_steps",
    "per_device_train_batch_size",
    "gradient_accumulation_steps",
    "global_batch",
    "learning_rate",
    "adam_epsilon",
    "lora_r",
    "lora_alpha",
    "logging_steps",
    "eval_rows",
    "checkpoint_every_s",
)
_NOT_NEGATIVE = ("warmup_steps", "weight_decay", "max_grad_norm", "emulated_microbatch_s")


def _above(task: TrainingTask, field: str, least: float, *, strictly: bool) -> None:
    value: float | None = getattr(task, field)
    if value is None:
        return
    if not math.isfinite(value) or value < least or (strictly and value == least):
        word = "above 0" if strictly else "from 0 on"
        raise InvalidInput(field, value, f"a number {word}")
