"""The training task: what to train and how. ``launch`` writes it, every worker of the job reads it.

Field names are those of Hugging Face's ``TrainingArguments``, TRL and PEFT. Torch is not needed
here. The file never changes during a job, because all members must do the same.
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
    """The course of the learning rate after the warm-up."""

    LINEAR = "linear"
    COSINE = "cosine"
    CONSTANT = "constant"
    CONSTANT_WITH_WARMUP = "constant_with_warmup"


class TrainingTask(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The task of one job, the same for all its members.

    - ``per_device_train_batch_size``: examples of the longest length per microbatch.
    - ``gradient_accumulation_steps``: microbatches per optimiser step, over all members together.
    - ``global_batch``: examples per optimiser step; it overrides the line above.
    - ``max_steps``: overrides ``num_train_epochs``.
    - ``checkpoint_every_s``: overrides the interval that follows from the loss rate of nodes.
    - ``reproducible``: the result is the same to the last bit with any members, but slower.
    - ``max_tokens_per_microbatch``: overrides ``per_device_train_batch_size * max_length``.
    - ``use_liger_kernel``: fused kernels on CUDA; None uses them where they can be used.
    - ``emulated_microbatch_s``: minimum duration of ``per_device_train_batch_size`` examples, to
      emulate an accelerator.
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
    reproducible: bool = False
    max_tokens_per_microbatch: int | None = None
    use_liger_kernel: bool | None = None
    checkpoint_every_s: float | None = None
    emulated_microbatch_s: float | None = None

    def __post_init__(self) -> None:
        for field in (*_POSITIVE, *_NOT_NEGATIVE):
            value: float | None = getattr(self, field)
            allowed = "a number above 0" if field in _POSITIVE else "a number from 0 on"
            if value is not None and (
                not math.isfinite(value) or value < 0 or (value == 0 and field in _POSITIVE)
            ):
                raise InvalidInput(field, value, allowed)
        for field in ("adam_beta1", "adam_beta2", "lora_dropout", "eval_fraction"):
            if not 0 <= getattr(self, field) < 1:
                raise InvalidInput(field, getattr(self, field), "a number from 0 to below 1")
        if not 0 <= self.warmup_ratio <= 1:
            raise InvalidInput("warmup_ratio", self.warmup_ratio, "a number from 0 to 1")
        if not 0 <= self.seed < 2**32:
            raise InvalidInput("seed", self.seed, "a whole number from 0 to 4294967295")
        if self.bf16 and self.fp16:
            raise InvalidInput("fp16", True, "false, because bf16 is true")
        if self.max_length < 2:
            raise InvalidInput("max_length", self.max_length, "a whole number from 2 on")

    @property
    def batch_rows(self) -> int:
        """Return the examples per optimiser step, with any number of members."""
        return self.global_batch or (
            self.per_device_train_batch_size * self.gradient_accumulation_steps
        )

    @property
    def microbatches(self) -> int:
        """Return the most microbatches per optimiser step with the usual budget of tokens.

        A reproducible step has at least as many, so that every member has a share of it.
        """
        return -(-self.batch_rows // self.per_device_train_batch_size)

    @property
    def microbatch_tokens(self) -> int:
        """Return the most tokens of a microbatch; a single longer row is still trained on."""
        return self.max_tokens_per_microbatch or self.per_device_train_batch_size * self.max_length

    def total_steps(self, rows: int) -> int:
        """Return the optimiser steps for ``rows`` training examples."""
        if self.max_steps is not None:
            return self.max_steps
        return max(1, math.ceil(self.num_train_epochs * rows / self.batch_rows))

    def learning_rate_at(self, step: int, total_steps: int) -> float:
        """Return the learning rate of the update after ``step`` updates, as transformers does."""
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
    """Write the task to the job's folder and return the file. ``launch`` calls this."""
    path = folder / TASK_FILE
    write_whole(path, msgspec.json.format(msgspec.json.encode(task)) + b"\n")
    return path


def read_task(folder: Path) -> TrainingTask:
    """Read the task from the job's folder; ``InvalidInput`` if it is missing or not valid."""
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
    "max_tokens_per_microbatch",
    "learning_rate",
    "adam_epsilon",
    "lora_r",
    "lora_alpha",
    "logging_steps",
    "eval_rows",
    "checkpoint_every_s",
)
_NOT_NEGATIVE = ("warmup_steps", "weight_decay", "max_grad_norm", "emulated_microbatch_s")
