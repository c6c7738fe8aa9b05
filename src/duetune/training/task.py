"""The training task: what to train and how. ``launch`` writes it, every worker of the job reads it.

Field names are those of Hugging Face's ``TrainingArguments``, TRL and PEFT. Torch is not needed
here. The file never changes during a job, because all members must do the same.
"""

from __future__ import annotations

import math
from enum import StrEnum
from typing import TYPE_CHECKING, Literal

import msgspec

from duetune.errors import InvalidInput
from duetune.files import write_whole
from duetune.training.learning_rate import (
    LearningRate,
    Schedule,
    ScheduleOptions,
    check_schedule,
)

if TYPE_CHECKING:
    from pathlib import Path

TASK_FILE = "task.json"


class TrainingMethod(StrEnum):
    """Which weights a worker trains: low-rank adapters, also beside weights in 4 bits, or all."""

    LORA = "lora"
    QLORA = "qlora"
    FULL = "full"


class TrainingPrecision(StrEnum):
    """How weights are stored and computed with, in the words of configuration knowledge.

    - BF16, FP16, FP32: both in this format. Adapters are stored in 32 bits in any case. With
      ``full``, BF16 keeps weights, gradients and the optimiser's state in 16 bits.
    - BF16_MIXED, FP16_MIXED: weights are stored in 32 bits and computed with in 16.
    """

    BF16 = "bf16"
    FP16 = "fp16"
    FP32 = "fp32"
    BF16_MIXED = "bf16-mixed"
    FP16_MIXED = "fp16-mixed"


class OptimiserName(StrEnum):
    """An optimiser, by its name in ``optim``. Those with bits in their name need bitsandbytes."""

    ADAMW_TORCH = "adamw_torch"
    ADAMW_TORCH_FUSED = "adamw_torch_fused"
    ADAMW_8BIT = "adamw_8bit"
    ADAMW_BNB_8BIT = "adamw_bnb_8bit"
    PAGED_ADAMW_8BIT = "paged_adamw_8bit"
    PAGED_ADAMW_32BIT = "paged_adamw_32bit"
    ADAFACTOR = "adafactor"
    SGD = "sgd"
    LION_32BIT = "lion_32bit"
    LION_8BIT = "lion_8bit"
    PAGED_LION_32BIT = "paged_lion_32bit"
    PAGED_LION_8BIT = "paged_lion_8bit"


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
    - ``precision``: None for what ``bf16`` and ``fp16`` say, which older tasks have.
    - ``completion_only_loss``: None for true. ``data_seed``: None for ``seed``.
    - ``chat_template``: the text of a template; None for the model's own.
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
    optim: OptimiserName = OptimiserName.ADAMW_TORCH
    lr_scheduler_type: Schedule = Schedule.LINEAR
    lr_scheduler_kwargs: ScheduleOptions = ScheduleOptions()
    warmup_steps: int = 0
    warmup_ratio: float = 0.0
    weight_decay: float = 0.0
    max_grad_norm: float = 1.0
    adam_beta1: float = 0.9
    adam_beta2: float = 0.999
    adam_epsilon: float = 1e-8
    seed: int = 42
    data_seed: int | None = None
    max_length: int = 1024
    precision: TrainingPrecision | None = None
    bf16: bool = False
    fp16: bool = False
    gradient_checkpointing: bool = False
    lora_r: int = 16
    lora_alpha: float = 32.0
    lora_dropout: float = 0.0
    lora_target_modules: str | tuple[str, ...] = "all-linear"
    lora_modules_to_save: tuple[str, ...] = ()
    lora_bias: bool = False
    use_rslora: bool = False
    use_dora: bool = False
    init_lora_weights: bool | Literal["gaussian", "orthogonal"] = True
    bnb_4bit_quant_type: Literal["nf4", "fp4"] = "nf4"
    use_bnb_nested_quant: bool = True
    model_revision: str | None = None
    attn_implementation: str | None = None
    dataset_text_field: str = "text"
    chat_template: str | None = None
    eos_token: str | None = None
    pad_token: str | None = None
    assistant_only_loss: bool = True
    completion_only_loss: bool | None = None
    push_to_hub: bool = False
    hub_model_id: str | None = None
    hub_private_repo: bool | None = None
    logging_steps: int = 10
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
        for field in ("seed", "data_seed"):
            if not 0 <= (getattr(self, field) or 0) < 2**32:
                allowed = "a whole number from 0 to 4294967295"
                raise InvalidInput(field, getattr(self, field), allowed)
        if self.bf16 and self.fp16:
            raise InvalidInput("fp16", True, "false, because bf16 is true")
        if self.precision is TrainingPrecision.FP16 and self.method is TrainingMethod.FULL:
            raise InvalidInput("precision", "fp16", "fp16-mixed, because all weights are trained")
        if self.use_dora and self.lora_bias:
            raise InvalidInput("lora_bias", True, "false, because use_dora is true")
        if self.push_to_hub and self.hub_model_id is None:
            raise InvalidInput("hub_model_id", None, "a name on the hub, because of push_to_hub")
        check_schedule(self.lr_scheduler_type, self.lr_scheduler_kwargs, self.learning_rate)
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

    @property
    def unshardable(self) -> str:
        """Return why this task cannot be split over the GPUs of a member; "" if it can."""
        if self.method is TrainingMethod.QLORA:
            return "weights in 4 bits cannot be sharded"
        if self.optim not in _SHARDABLE:
            return f"the state of {self.optim} cannot be sharded"
        return ""

    def total_steps(self, rows: int) -> int:
        """Return the optimiser steps for ``rows`` training examples."""
        if self.max_steps is not None:
            return self.max_steps
        return max(1, math.ceil(self.num_train_epochs * rows / self.batch_rows))

    def learning_rate_at(self, step: int, total_steps: int) -> float:
        """Return the learning rate of the update after ``step`` updates, as transformers does."""
        warmup = self.warmup_steps or math.ceil(self.warmup_ratio * total_steps)
        return LearningRate(
            self.lr_scheduler_type,
            self.learning_rate,
            warmup,
            total_steps,
            self.lr_scheduler_kwargs,
        ).at(step)

    @property
    def weights(self) -> TrainingPrecision:
        """Return how weights are stored and computed with."""
        if self.precision is not None:
            return self.precision
        mixed = "-mixed" if self.method is TrainingMethod.FULL else ""
        word = "bf16" if self.bf16 else "fp16" if self.fp16 else None
        return TrainingPrecision.FP32 if word is None else TrainingPrecision(word + mixed)

    @property
    def computed_in(self) -> str:
        """Return the format of computations: bf16, fp16 or fp32."""
        return self.weights.removesuffix("-mixed")

    @property
    def trained_in_bf16(self) -> bool:
        """Return whether the trained weights, their gradients and moments have 16 bits."""
        return self.method is TrainingMethod.FULL and self.weights is TrainingPrecision.BF16

    @property
    def adapts(self) -> bool:
        """Return whether adapters are trained beside frozen weights."""
        return self.method is not TrainingMethod.FULL

    @property
    def order_seed(self) -> int:
        """Return the seed of the data order."""
        return self.seed if self.data_seed is None else self.data_seed


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
# Those that treat every element by itself. Others share numbers between the elements of a block
# (8 bits) or of a row (Adafactor), which shards would cut.
_SHARDABLE = (
    OptimiserName.ADAMW_TORCH,
    OptimiserName.ADAMW_TORCH_FUSED,
    OptimiserName.SGD,
    OptimiserName.PAGED_ADAMW_32BIT,
    OptimiserName.LION_32BIT,
    OptimiserName.PAGED_LION_32BIT,
)
