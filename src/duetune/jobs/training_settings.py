"""The task that a plan gives to the trainer, and every setting of it with where it comes from."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from duetune.jobs.spec.adapter_fields import LORA_SETTINGS
from duetune.jobs.spec.values import written_duration
from duetune.knowledge.advice import GIVEN
from duetune.knowledge.configurations.configuration import Method
from duetune.training.task import TrainingTask
from duetune.training.tokenizer_file import read_template

if TYPE_CHECKING:
    from duetune.jobs.configure import TrainingPlan
    from duetune.jobs.spec.job_spec import JobSpec

DEFAULT = "the trainer's default"
_PLANNED = {
    "num_train_epochs": "epochs",
    "max_steps": "total_steps",
    "per_device_train_batch_size": "microbatch",
    "gradient_accumulation_steps": "accumulation",
    "gradient_checkpointing": "gradient_checkpointing",
    "max_length": "max_length",
    "lora_r": "lora_r",
    "lora_alpha": "lora_alpha",
}
"""Fields that the plan decides, and the name of their reason in it."""

_COMMON = (
    "optim",
    "learning_rate",
    "lr_scheduler_type",
    "warmup_steps",
    "weight_decay",
    "max_grad_norm",
)
_ADAPTERS = ("lora_r", "lora_alpha", "lora_dropout", "lora_target_modules")
_WHERE_GIVEN = (
    *(name for name in LORA_SETTINGS if name not in _ADAPTERS),
    "bnb_4bit_quant_type",
    "use_bnb_nested_quant",
    "data_seed",
    "chat_template_path",
    "assistant_only_loss",
    "completion_only_loss",
    "dataset_text_field",
    "eos_token",
    "model_revision",
    "attn_implementation",
    "hub_model_id",
    "eval_strategy",
    "eval_steps",
    "load_best_model_at_end",
    "early_stopping_patience",
    "early_stopping_threshold",
    "report_to",
)
"""Fields that are shown only if they were given."""


class TrainingSetting(msgspec.Struct, frozen=True):
    """One training setting: its name in a spec, its value, and where the value comes from."""

    name: str
    value: bool | float | str | tuple[str, ...]
    origin: str


def task_fields(spec: JobSpec) -> dict[str, object]:
    """Return the fields of the training section as a task has them, for plans and exports: a chat
    template is written out, so that workers need not reach its file.
    """
    given = dict(spec.training.given)
    for field in ("load_in_4bit", "packing"):
        given.pop(field, None)
    path = given.pop("chat_template_path", None)
    if path is not None:
        given["chat_template"] = read_template(Path(str(path)))
    return given


def training_task(spec: JobSpec, plan: TrainingPlan) -> TrainingTask:
    """Return the task file of the built-in trainer for a planned job."""
    given = task_fields(spec)
    for field in (*_PLANNED, "precision", "bf16", "fp16"):
        if not field.startswith("lora"):
            given.pop(field, None)
    every = spec.checkpoint.every
    return msgspec.convert(
        {
            "model": spec.model,
            "dataset": spec.dataset,
            "method": plan.method,
            "max_steps": plan.total_steps,
            "per_device_train_batch_size": plan.microbatch,
            "gradient_accumulation_steps": plan.accumulation,
            "global_batch": plan.global_batch,
            "max_length": plan.max_length,
            "precision": plan.precision,
            "gradient_checkpointing": plan.gradient_checkpointing,
            "checkpoint_every_s": every.total_seconds() if isinstance(every, timedelta) else None,
            "emulated_microbatch_s": plan.emulated_microbatch_s,
            **given,
        },
        TrainingTask,
    )


def training_settings(
    spec: JobSpec, plan: TrainingPlan, task: TrainingTask, held_out: int | None
) -> tuple[TrainingSetting, ...]:
    """Return the settings that matter for the result, for ``plan`` to show. ``held_out`` is the
    number of rows that are kept for evaluation, if known.
    """
    names = ["per_device_train_batch_size", "gradient_accumulation_steps", "max_steps"]
    names += ["max_length", *_COMMON, "gradient_checkpointing", "seed"]
    if task.warmup_ratio:
        names[names.index("warmup_steps")] = "warmup_ratio"
    if plan.epochs is not None:
        task = msgspec.structs.replace(task, num_train_epochs=plan.epochs)
        names.insert(2, "num_train_epochs")
    if plan.method != Method.FULL:
        names += _ADAPTERS
    given = spec.training.given
    found = [
        TrainingSetting("method", plan.method, plan.reasons.get("method", "")),
        TrainingSetting("precision", plan.precision, plan.reasons.get("precision", "")),
    ]
    for name in names:
        origin = plan.reasons.get(_PLANNED.get(name, ""), GIVEN if name in given else DEFAULT)
        found.append(TrainingSetting(name, getattr(task, name), origin))
    shown = [name for name in _WHERE_GIVEN if name in given]
    found += [TrainingSetting(name, str(given[name]), GIVEN) for name in shown]
    return (*found, _evaluation(spec, task, held_out), *_checkpoints(spec))


def _evaluation(spec: JobSpec, task: TrainingTask, held_out: int | None) -> TrainingSetting:
    """Return the setting of the evaluation: another dataset, or a share of this one."""
    if task.eval_dataset is not None:
        return TrainingSetting("eval_dataset", task.eval_dataset, GIVEN)
    origin = GIVEN if "eval_fraction" in spec.training.given else DEFAULT
    rows = "" if held_out is None else f"; {held_out:,} rows, at most {task.eval_rows}"
    return TrainingSetting("eval_fraction", task.eval_fraction, origin + rows)


def _checkpoints(spec: JobSpec) -> tuple[TrainingSetting, ...]:
    every, keep = spec.checkpoint.every, spec.checkpoint.keep
    auto = not isinstance(every, timedelta)
    return (
        TrainingSetting(
            "checkpoint.every",
            "auto" if not isinstance(every, timedelta) else written_duration(every),
            "follows the rate of lost nodes" if auto else GIVEN,
        ),
        TrainingSetting(
            "checkpoint.keep",
            keep,
            DEFAULT if keep == type(spec.checkpoint)().keep else GIVEN,
        ),
    )
