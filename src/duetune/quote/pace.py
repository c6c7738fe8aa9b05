"""How long an optimiser step takes with so many GPUs: measured, emulated, or by rule of thumb."""

from __future__ import annotations

from enum import StrEnum
from statistics import median
from typing import TYPE_CHECKING

import msgspec

from duetune.quote.memory import trainable
from duetune.training.task import EXACT_BYTES, Method

if TYPE_CHECKING:
    from collections.abc import Sequence

    from duetune.quote.memory import Recipe
    from duetune.quote.model import ModelFacts
    from duetune.quote.site import Site

UTILISATION = 0.35
"""Of a GPU's arithmetic by its data sheet, this share is usual in fine-tuning."""

FILL = 0.5
"""Examples are shorter than the longest allowed: by half, unless something was measured."""

LAYER_S = 0.001
"""A layer takes at least so long, forth and back, however small it is."""

STEP_S = 0.02
"""Per optimiser step, beside its microbatches: the optimiser and the vote to commit."""

CPU_TFLOPS = 0.05


class Basis(StrEnum):
    """What a pace is based on, the surest first."""

    MEASURED = "measured"
    EMULATED = "emulated"
    RULE = "rule of thumb"
    ASSUMED = "assumed"


class MeasuredPace(msgspec.Struct, frozen=True, kw_only=True):
    """An earlier run: ``step_s`` wall seconds per optimiser step of ``accumulation`` microbatches
    with ``gpus`` GPUs. ``subject`` is the model, or the text of the own command.
    """

    subject: str
    accelerator: str
    gpus: int
    step_s: float
    method: str = ""
    microbatch: int = 1
    accumulation: int = 1
    max_length: int = 0


def rounds(accumulation: int, gpus: int) -> int:
    """Microbatches one after the other in a step: the busiest GPU's share."""
    return -(-accumulation // gpus)


def reduction_s(trained: int, accumulation: int, gpus: int, network_gb_s: float) -> float:
    """To add up gradients over all GPUs: a ring, twice round."""
    if gpus == 1:
        return 0.0
    size = 4.0 * trained
    if size * accumulation <= EXACT_BYTES:
        size *= accumulation  # small enough that every microbatch's gradient travels by itself
    return 2 * (gpus - 1) / gpus * size / (network_gb_s * 1e9)


def rule_of_thumb_s(model: ModelFacts, recipe: Recipe, tflops: float) -> float:
    """Seconds per microbatch: arithmetic at the usual utilisation."""
    # Forth 2, back 2 for activations and 2 for weights that are trained, 2 more to recompute.
    per_token = 6 if recipe.method is Method.FULL else 4
    per_token += 2 if recipe.gradient_checkpointing else 0
    tokens = FILL * recipe.microbatch * recipe.max_length
    arithmetic = per_token * model.parameters * tokens / (UTILISATION * tflops * 1e12)
    return arithmetic + LAYER_S * model.layers


def step_seconds(
    site: Site,
    model: ModelFacts,
    recipe: Recipe,
    accumulation: int,
    max_gpus: int,
    measured: Sequence[MeasuredPace],
) -> tuple[tuple[float, ...], Basis]:
    """Wall seconds per step with 0 (none: 0.0), 1, ... GPUs, and what they are based on.

    ``measured`` are runs of the same model, method and length on the same GPU.
    """
    trained = trainable(model, recipe.method, recipe.lora_r)

    def beside(count: int, gpus: int) -> float:
        return STEP_S + reduction_s(trained, count, gpus, site.network_gb_s)

    basis = Basis.RULE
    one = rule_of_thumb_s(model, recipe, site.tflops or CPU_TFLOPS)
    if site.emulated_microbatch_s is not None:
        basis, one = Basis.EMULATED, site.emulated_microbatch_s
    if measured:
        basis = Basis.MEASURED
        one = median(
            max(run.step_s - beside(run.accumulation, run.gpus), 0.1 * run.step_s)
            / rounds(run.accumulation, run.gpus)
            * (recipe.microbatch / run.microbatch if site.emulated_microbatch_s is None else 1.0)
            for run in measured
        )
    steps = [0.0]
    for gpus in range(1, max_gpus + 1):
        same = [
            run.step_s
            for run in measured
            if (run.gpus, run.accumulation, run.microbatch)
            == (gpus, accumulation, recipe.microbatch)
        ]
        derived = rounds(accumulation, gpus) * one + beside(accumulation, gpus)
        steps.append(median(same) if same else derived)
    return tuple(steps), basis
