"""The sections ``resources`` and ``checkpoint`` of the job spec.

The section ``training`` is in ``training_fields``.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema

from duetune.jobs.spec.problems import Meaning, refusal
from duetune.jobs.spec.values import (
    ACCELERATORS,
    INTERVAL,
    PATH,
    AcceleratorChoice,
    Accelerators,
    Interval,
    PathText,
)

AUTO = "auto"


class Spot(StrEnum):
    """Whether spot GPUs are used. AUTO mixes spot and on-demand; ONLY cannot promise a deadline."""

    AUTO = "auto"
    ONLY = "only"
    NEVER = "never"


def _spot(value: object) -> Spot:
    if isinstance(value, bool):
        return Spot.ONLY if value else Spot.NEVER
    if isinstance(value, str) and value in set(Spot):
        return Spot(value)
    raise refusal("auto, only (or true), never (or false)")


class Resources(BaseModel):
    """The section ``resources``: which GPUs, and whether they may be spot."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    accelerators: Annotated[
        AcceleratorChoice,
        Meaning("Which GPU, and how many of them the job can use.", ACCELERATORS),
    ] = Field(default_factory=Accelerators, json_schema_extra={"default": AUTO})
    gpus_per_member: Annotated[
        Annotated[int, Field(ge=1, le=64)] | None,
        Meaning(
            "GPUs of one node that share one copy of the model; by default as few as the model "
            "needs.",
            "a whole number from 1 to 64",
        ),
    ] = None
    spot: Annotated[
        Annotated[
            Spot,
            BeforeValidator(_spot),
            WithJsonSchema({"enum": ["auto", "only", "never", True, False]}),
        ],
        Meaning(
            "Whether to use spot GPUs; `auto` mixes spot and on-demand.",
            "auto, only (or true), never (or false)",
        ),
    ] = Spot.AUTO


class CheckpointSpec(BaseModel):
    """The section ``checkpoint``: where, how often and how many checkpoints are saved."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    dir: Annotated[
        PathText | None,
        Meaning("The folder for checkpoints; by default the job's own folder.", PATH),
    ] = None
    every: Annotated[
        Interval,
        Meaning("How often to save; `auto` follows the measured rate of preemptions.", INTERVAL),
    ] = "auto"
    keep: Annotated[
        int,
        Field(ge=1, le=10_000),
        Meaning("How many checkpoints to keep.", "a whole number from 1 to 10000"),
    ] = 2
