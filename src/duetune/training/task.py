"""The training task: what to train and how. ``launch`` writes it, every worker of the job reads it.

Field names are those of Hugging Face's ``TrainingArguments``, TRL and PEFT. Torch is not needed
here. The file never changes during a job, because all members must do the same.
"""

from __future__ import annotations

import math
from enum import StrEnum
from typing import TYPE_CHECKING, Literal, assert_never

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


class Reduction(StrEnum):
    """How the gradients of the members are summed.

    - EXACT: every microbatch's gradient is sent separately and all are added in one order, so the
      result is the same to the last bit with any number of members.
    - FAST: each member sums its own gradients first.
    - AUTO: EXACT if the gradients of a step have at most ``EXACT_BYTES``, otherwise FAST.
    """

    AUTO = "auto"
    EXACT = "exact"
    FAST = "fast"


EXACT_BYTES = 256 * 2**20


class EvalStrategy(StrEnum):
    """When the evaluation loss is measured during training: never, every ``eval_steps``, or after
    every pass over the data. It is measured at the end in any case.
    """

    NO = "no"
    STEPS = "steps"
    EPOCH = "epoch"


class Tracker(StrEnum):
    """An experiment tracker to which metrics are sent, by its name in ``report_to``."""

    WANDB = "wandb"
    MLFLOW = "mlflow"
    TENSORBOARD = "tensorboard"


class TrainingTask(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The task of one job, the same for all its members.

    - ``per_device_train_batch_size``: examples per microbatch.
    - ``gradient_accumulation_steps``: microbatches per optimiser step, over all members together.
    - ``global_batch``: examples per optimiser step; it overrides the line above.
    - ``max_steps``: overrides ``num_train_epochs``.
    - ``checkpoint_every_s``: overrides the interval that follows from the loss rate of nodes.
    - ``emulated_microbatch_s``: minimum duration of a microbatch, to emulate an accelerator.
    - ``reproducible``: results are the same to the last bit, whatever happens to the members.
    - ``max_tokens_per_microbatch``: None for ``per_device_train_batch_size`` x ``max_length``.
    - ``use_liger_kernel``: None for wherever it can be used.
    - ``early_stopping_patience``: evaluations without an improvement of more than
      ``early_stopping_threshold`` after which training ends; None for never.
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
    reproducible: bool = False
    max_tokens_per_microbatch: int | None = None
    use_liger_kernel: bool | None = None
    eval_strategy: EvalStrategy = EvalStrategy.NO
    eval_steps: int | None = None
    load_best_model_at_end: bool = False
    metric_for_best_model: Literal["eval_loss"] = "eval_loss"
    early_stopping_patience: int | None = None
    early_stopping_threshold: float = 0.0
    report_to: tuple[Tracker, ...] = ()
    run_name: str | None = None
    project: str | None = None

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
        """Return the microbatches per optimiser step; the last one may be smaller."""
        return -(-self.batch_rows // self.per_device_train_batch_size)

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
    "learning_rate",
    "adam_epsilon",
    "lora_r",
    "lora_alpha",
    "logging_steps",
    "eval_rows",
    "checkpoint_every_s",
    "max_tokens_per_microbatch",
    "eval_steps",
    "early_stopping_patience",
)
_NOT_NEGATIVE = (
    "warmup_steps",
    "weight_decay",
    "max_grad_norm",
    "emulated_microbatch_s",
    "early_stopping_threshold",
)
