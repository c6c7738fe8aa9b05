"""How to train, by the names of Hugging Face's ``TrainingArguments``, TRL and PEFT."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainValidator,
    WithJsonSchema,
    model_validator,
)

from duetune.jobs.spec.places import DATASET, DatasetPlace
from duetune.jobs.spec.problems import Meaning, refusal

MODULES = "all-linear, a name, a regular expression, or a list of names such as [q_proj, v_proj]"
SCHEDULES = ("linear", "cosine", "constant", "constant_with_warmup")


def parse_modules(value: object) -> str | tuple[str, ...]:
    if isinstance(value, str) and value.strip():
        return value
    if (
        isinstance(value, (list, tuple))
        and value
        and all(isinstance(name, str) and name.strip() for name in value)
    ):
        return tuple(value)
    raise refusal(MODULES)


def parse_warmup(value: object) -> int:
    if isinstance(value, float) and 0 < value < 1:
        raise refusal("a whole number, 0 or more; a share of the steps is warmup_ratio")
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= 10**9:
        raise refusal("a whole number, 0 or more")
    return value


_WHOLE = "a whole number, 1 or more"
_NOT_NEGATIVE = "a number, 0 or more"
_YES_NO = "true or false"
_BETA = "a number from 0 to below 1"


class Training(BaseModel):
    """What is left out is chosen by the planner, or is the trainer's default."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    num_train_epochs: Annotated[
        float | None,
        Field(gt=0, le=10_000),
        Meaning("Passes over the data; `max_steps` overrides it.", "a number above 0"),
    ] = None
    max_steps: Annotated[
        int | None,
        Field(ge=1, le=10**9),
        Meaning("Optimiser steps in all.", f"{_WHOLE}; leave it out to count epochs"),
    ] = None
    per_device_train_batch_size: Annotated[
        int | None,
        Field(ge=1, le=100_000),
        Meaning("Examples that go through a GPU at once.", _WHOLE),
    ] = None
    gradient_accumulation_steps: Annotated[
        int | None,
        Field(ge=1, le=100_000),
        Meaning(
            "Such batches per optimiser step, over all GPUs: the global batch is the same on any "
            "number of GPUs.",
            _WHOLE,
        ),
    ] = None
    learning_rate: Annotated[
        float | None, Field(gt=0, le=100), Meaning("The peak.", "a number above 0, such as 2e-4")
    ] = None
    lr_scheduler_type: Annotated[
        Literal["linear", "cosine", "constant", "constant_with_warmup"] | None,
        Meaning("How the learning rate goes on.", f"one of {', '.join(SCHEDULES)}"),
    ] = None
    warmup_steps: Annotated[
        Annotated[int, PlainValidator(parse_warmup), WithJsonSchema({"type": "integer"})] | None,
        Meaning("Steps until the peak.", "a whole number, 0 or more"),
    ] = None
    warmup_ratio: Annotated[
        float | None,
        Field(ge=0, le=1),
        Meaning("The same as a share of all steps.", "a number from 0 to 1"),
    ] = None
    weight_decay: Annotated[
        float | None, Field(ge=0, le=100), Meaning("Of AdamW.", _NOT_NEGATIVE)
    ] = None
    max_grad_norm: Annotated[
        float | None,
        Field(ge=0, le=1e9),
        Meaning("Gradients are clipped to this norm; 0: they are not.", _NOT_NEGATIVE),
    ] = None
    adam_beta1: Annotated[float | None, Field(ge=0, lt=1), Meaning("Of AdamW.", _BETA)] = None
    adam_beta2: Annotated[float | None, Field(ge=0, lt=1), Meaning("Of AdamW.", _BETA)] = None
    adam_epsilon: Annotated[
        float | None, Field(gt=0, le=1), Meaning("Of AdamW.", "a number above 0, at most 1")
    ] = None
    seed: Annotated[
        int | None,
        Field(ge=0, lt=2**32),
        Meaning("Of order, dropout and new weights.", "a whole number from 0 to 4294967295"),
    ] = None
    bf16: Annotated[bool | None, Meaning("Compute in bfloat16.", _YES_NO)] = None
    fp16: Annotated[bool | None, Meaning("Compute in float16.", _YES_NO)] = None
    gradient_checkpointing: Annotated[
        bool | None, Meaning("Less memory for more computing.", _YES_NO)
    ] = None
    logging_steps: Annotated[
        int | None, Field(ge=1, le=10**9), Meaning("Log the loss every so many steps.", _WHOLE)
    ] = None
    max_length: Annotated[
        int | None,
        Field(ge=2, le=10_000_000),
        Meaning("Tokens of an example; longer ones are cut.", "a whole number, 2 or more"),
    ] = None
    lora_r: Annotated[int | None, Field(ge=1, le=65_536), Meaning("The rank of LoRA.", _WHOLE)] = (
        None
    )
    lora_alpha: Annotated[
        float | None, Field(gt=0, le=1e6), Meaning("The scale of LoRA.", "a number above 0")
    ] = None
    lora_dropout: Annotated[
        float | None, Field(ge=0, lt=1), Meaning("The dropout of LoRA.", _BETA)
    ] = None
    lora_target_modules: Annotated[
        Annotated[
            str | tuple[str, ...],
            BeforeValidator(parse_modules),
            WithJsonSchema(
                {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]}
            ),
        ]
        | None,
        Meaning("Which layers LoRA adapts.", MODULES),
    ] = None
    eval_dataset: Annotated[
        DatasetPlace | None, Meaning("Data to measure the loss on, never trained on.", DATASET)
    ] = None
    eval_fraction: Annotated[
        float | None,
        Field(ge=0, lt=1),
        Meaning("Or the share of the dataset to set aside for it; 0: none.", _BETA),
    ] = None

    @model_validator(mode="after")
    def _agree(self) -> Self:
        if self.bf16 and self.fp16:
            raise refusal("false, or bf16 false: one of the two", "fp16")
        if self.warmup_steps is not None and self.warmup_ratio is not None:
            raise refusal("left out, or warmup_steps left out: one of the two", "warmup_ratio")
        if self.eval_dataset is not None and self.eval_fraction is not None:
            raise refusal("left out, or eval_dataset left out: one of the two", "eval_fraction")
        return self

    @property
    def given(self) -> dict[str, object]:
        """What was said, by name, in the forms of JSON."""
        return self.model_dump(mode="json", exclude_none=True)
