"""The section ``training`` of a spec, with the names of ``TrainingArguments``, TRL and PEFT.

Fields of the method are in ``adapter_fields``, those of data and results in ``data_fields``. Names
of those libraries that are refused, and why, are in ``training_names``.
"""

from __future__ import annotations

from typing import Annotated, Literal, Self

import msgspec
from pydantic import (
    BeforeValidator,
    ConfigDict,
    Field,
    PlainValidator,
    WithJsonSchema,
    model_validator,
)

from duetune.errors import InvalidInput
from duetune.jobs.spec.adapter_fields import AdapterFields
from duetune.jobs.spec.data_fields import DataFields
from duetune.jobs.spec.problems import Meaning, refusal
from duetune.jobs.spec.values import DATASET, DatasetPlace
from duetune.training.learning_rate import Schedule, ScheduleOptions, check_schedule
from duetune.training.task import OptimiserName, Tracker

TRACKERS = tuple(tracker.value for tracker in Tracker)
_TRACKERS = f"none, all, or a list of {', '.join(TRACKERS)}"
SCHEDULES = tuple(schedule.value for schedule in Schedule)
OPTIMISERS = tuple(name.value for name in OptimiserName)


def parse_trackers(value: object) -> tuple[str, ...]:
    """Return the experiment trackers: none, all of them, a name or a list of names."""
    names = [value] if isinstance(value, str) else value
    if names == ["none"]:
        return ()
    if names == ["all"]:
        return TRACKERS
    if isinstance(names, (list, tuple)) and all(name in TRACKERS for name in names):
        return tuple(dict.fromkeys(names))
    raise refusal(_TRACKERS)


def parse_schedule(value: object) -> str:
    """Return the name of a schedule; one that follows the loss is refused with the reason."""
    if value in SCHEDULES:
        return str(value)
    why = ""
    if isinstance(value, str) and value in {"reduce_lr_on_plateau", "greedy"}:
        why = "; this one follows the loss, so it would not be the same on every member"
    raise refusal(f"one of {', '.join(SCHEDULES)}{why}")


def parse_optimiser(value: object) -> str:
    """Return the name of an optimiser."""
    if value in OPTIMISERS:
        return str(value)
    raise refusal(f"one of {', '.join(OPTIMISERS)}")


def parse_warmup(value: object) -> int:
    """Return the number of warm-up steps; a share is refused with a hint."""
    if isinstance(value, float) and 0 < value < 1:
        raise refusal("a whole number, 0 or more; for a share of the steps use warmup_ratio")
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= 10**9:
        raise refusal("a whole number, 0 or more")
    return value


_WHOLE = "a whole number, 1 or more"
_NOT_NEGATIVE = "a number, 0 or more"
_YES_NO = "true or false"
_SEED = "a whole number from 0 to 4294967295"
_BETA = "a number from 0 to below 1"


class Training(AdapterFields, DataFields):
    """How to train. The configurator or the trainer's default fills what is left out."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    num_train_epochs: Annotated[
        float | None,
        Field(gt=0, le=10_000),
        Meaning("Passes over the dataset; `max_steps` overrides it.", "a number above 0"),
    ] = None
    max_steps: Annotated[
        int | None,
        Field(ge=1, le=10**9),
        Meaning("Total optimiser steps.", f"{_WHOLE}; leave it out to train by epochs"),
    ] = None
    per_device_train_batch_size: Annotated[
        int | None,
        Field(ge=1, le=100_000),
        Meaning("Examples per GPU in one forward pass.", _WHOLE),
    ] = None
    gradient_accumulation_steps: Annotated[
        int | None,
        Field(ge=1, le=100_000),
        Meaning(
            "Such batches per optimiser step, over all GPUs together: the global batch does not "
            "depend on the number of GPUs.",
            _WHOLE,
        ),
    ] = None
    learning_rate: Annotated[
        float | None,
        Field(gt=0, le=100),
        Meaning("The peak learning rate.", "a number above 0, such as 2e-4"),
    ] = None
    lr_scheduler_type: Annotated[
        Annotated[str, PlainValidator(parse_schedule), WithJsonSchema({"enum": [*SCHEDULES]})]
        | None,
        Meaning(
            "How the learning rate changes after the warm-up.", f"one of {', '.join(SCHEDULES)}"
        ),
    ] = None
    lr_scheduler_kwargs: Annotated[
        dict[str, float | str] | None,
        Meaning(
            "Options of the schedule, named as in transformers.",
            "a mapping such as {min_lr_rate: 0.1}",
        ),
    ] = None
    optim: Annotated[
        Annotated[str, PlainValidator(parse_optimiser), WithJsonSchema({"enum": [*OPTIMISERS]})]
        | None,
        Meaning(
            "The optimiser. Those with bits in their name need the extra `quantised`.",
            f"one of {', '.join(OPTIMISERS)}",
        ),
    ] = None
    warmup_steps: Annotated[
        Annotated[int, PlainValidator(parse_warmup), WithJsonSchema({"type": "integer"})] | None,
        Meaning("Steps until the peak learning rate.", "a whole number, 0 or more"),
    ] = None
    warmup_ratio: Annotated[
        float | None,
        Field(ge=0, le=1),
        Meaning("Warm-up steps as a share of all steps.", "a number from 0 to 1"),
    ] = None
    weight_decay: Annotated[
        float | None, Field(ge=0, le=100), Meaning("Weight decay of the optimiser.", _NOT_NEGATIVE)
    ] = None
    max_grad_norm: Annotated[
        float | None,
        Field(ge=0, le=1e9),
        Meaning("The norm to which gradients are clipped; 0 turns clipping off.", _NOT_NEGATIVE),
    ] = None
    adam_beta1: Annotated[
        float | None, Field(ge=0, lt=1), Meaning("beta1 of AdamW and Lion.", _BETA)
    ] = None
    adam_beta2: Annotated[
        float | None, Field(ge=0, lt=1), Meaning("beta2 of AdamW and Lion.", _BETA)
    ] = None
    adam_epsilon: Annotated[
        float | None, Field(gt=0, le=1), Meaning("epsilon of AdamW.", "a number above 0, at most 1")
    ] = None
    seed: Annotated[
        int | None,
        Field(ge=0, lt=2**32),
        Meaning("Random seed of the data order, dropout and new weights.", _SEED),
    ] = None
    data_seed: Annotated[
        int | None,
        Field(ge=0, lt=2**32),
        Meaning("Random seed of the data order, if it is another one.", _SEED),
    ] = None
    gradient_checkpointing: Annotated[
        bool | None, Meaning("Recompute activations: needs less memory and more time.", _YES_NO)
    ] = None
    logging_steps: Annotated[
        int | None, Field(ge=1, le=10**9), Meaning("Steps between two logged losses.", _WHOLE)
    ] = None
    max_length: Annotated[
        int | None,
        Field(ge=2, le=10_000_000),
        Meaning("Most tokens of an example; longer ones are cut.", "a whole number, 2 or more"),
    ] = None
    eval_dataset: Annotated[
        DatasetPlace | None, Meaning("Dataset for evaluation; it is not trained on.", DATASET)
    ] = None
    eval_fraction: Annotated[
        float | None,
        Field(ge=0, lt=1),
        Meaning("Share of the dataset to hold out for evaluation; 0 is none.", _BETA),
    ] = None
    eval_strategy: Annotated[
        Literal["no", "steps", "epoch"] | None,
        Meaning(
            "When the evaluation loss is measured during training; it always is at the end.",
            "one of no, steps, epoch",
        ),
    ] = None
    eval_steps: Annotated[
        int | None,
        Field(ge=1, le=10**9),
        Meaning("Steps between two evaluations, with `eval_strategy: steps`.", _WHOLE),
    ] = None
    load_best_model_at_end: Annotated[
        bool | None,
        Meaning("Publish the state with the lowest evaluation loss, not the last one.", _YES_NO),
    ] = None
    metric_for_best_model: Annotated[
        Literal["eval_loss"] | None,
        Meaning("What makes a state the best one.", "eval_loss"),
    ] = None
    early_stopping_patience: Annotated[
        int | None,
        Field(ge=1, le=10**9),
        Meaning("Evaluations without a lower loss after which training ends.", _WHOLE),
    ] = None
    early_stopping_threshold: Annotated[
        float | None,
        Field(ge=0, le=1e6),
        Meaning("How much lower the loss must be to count as lower.", _NOT_NEGATIVE),
    ] = None
    report_to: Annotated[
        Annotated[
            tuple[str, ...],
            BeforeValidator(parse_trackers),
            WithJsonSchema(
                {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]}
            ),
        ]
        | None,
        Meaning("Experiment trackers that get the metrics.", _TRACKERS),
    ] = None
    run_name: Annotated[
        str | None,
        Field(min_length=1, max_length=200),
        Meaning("Name of the run in the trackers; without it, the name of the job.", "a name"),
    ] = None
    project: Annotated[
        str | None,
        Field(min_length=1, max_length=200),
        Meaning("Project or experiment of the run in the trackers.", "a name"),
    ] = None
    reproducible: Annotated[
        bool | None,
        Meaning("Results are the same to the last bit, at a cost in speed.", _YES_NO),
    ] = None
    max_tokens_per_microbatch: Annotated[
        int | None,
        Field(ge=1, le=10**9),
        Meaning(
            "Most tokens of one forward pass; without it, `per_device_train_batch_size` x "
            "`max_length`.",
            _WHOLE,
        ),
    ] = None
    use_liger_kernel: Annotated[
        bool | None,
        Meaning("Use Liger's fused kernels; without it, wherever they can be used.", _YES_NO),
    ] = None

    @model_validator(mode="after")
    def _agree(self) -> Self:
        self._check_precision()
        self._check_schedule()
        if self.warmup_steps is not None and self.warmup_ratio is not None:
            allowed = "no value, because warmup_steps is given: only one can be"
            raise refusal(allowed, "warmup_ratio")
        if self.eval_dataset is not None and self.eval_fraction is not None:
            allowed = "no value, because eval_dataset is given: only one can be"
            raise refusal(allowed, "eval_fraction")
        if self.eval_steps is not None and self.eval_strategy != "steps":
            raise refusal("no value without eval_strategy: steps", "eval_steps")
        if self.eval_strategy in {None, "no"}:
            for field in ("load_best_model_at_end", "early_stopping_patience"):
                if getattr(self, field):
                    raise refusal("no value without eval_strategy: steps or epoch", field)
        return self

    def _check_precision(self) -> None:
        if self.bf16 and self.fp16:
            raise refusal("false, because bf16 is true: only one can be", "fp16")
        for field in ("bf16", "fp16"):
            if self.precision is not None and getattr(self, field) is not None:
                allowed = "no value, because precision is given: it says the same"
                raise refusal(allowed, field)

    def _check_schedule(self) -> None:
        if self.lr_scheduler_kwargs is None and self.lr_scheduler_type is None:
            return
        schedule = Schedule(self.lr_scheduler_type or Schedule.LINEAR)
        try:
            options = msgspec.convert(self.lr_scheduler_kwargs or {}, ScheduleOptions)
            check_schedule(schedule, options, self.learning_rate)
        except msgspec.ValidationError as error:
            names = ", ".join(ScheduleOptions.__struct_fields__)
            raise refusal(f"options named {names} ({error})", "lr_scheduler_kwargs") from None
        except InvalidInput as error:
            raise refusal(error.allowed, error.field) from None

    @property
    def given(self) -> dict[str, object]:
        """The fields that were given, by name, as JSON values."""
        return self.model_dump(mode="json", exclude_none=True)
