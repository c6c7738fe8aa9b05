"""The time of an optimiser step with 1, 2, ... GPUs.

The time comes from the best source there is: measured runs, the emulation, configuration knowledge,
or a rule of thumb. Examples are shared out as the trainer does it: one by one, the longest first,
to the GPU that would end first.
"""

from __future__ import annotations

import functools
from enum import StrEnum
from statistics import NormalDist, median
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import numpy as np

from duetune.jobs.prospects import known
from duetune.knowledge.configurations.configuration import SPREAD, Method
from duetune.knowledge.estimate import Interval

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from duetune.jobs.site import Site
    from duetune.knowledge.configurations.configuration import Configuration
    from duetune.knowledge.estimate import Estimate
    from duetune.knowledge.facts.model_facts import ModelFacts

UTILISATION = 0.35
"""Share of a GPU's data-sheet arithmetic that fine-tuning usually reaches."""

LAYER_S = 0.001
"""Least seconds of one layer, forward and backward, however small it is."""

STEP_S = 0.02
"""Seconds of the optimiser and the commit vote, per optimiser step."""

CPU_TFLOPS = 0.05
EVALUATED = 8
"""Batches of an evaluation: the trainer makes about so many, and GPUs share them."""


class Basis(StrEnum):
    """What a step time rests on, the surest first. PHYSICS is knowledge of GPUs on which nothing
    was measured; RULE is for GPUs without a data sheet.
    """

    MEASURED = "measured"
    EMULATED = "emulated"
    KNOWLEDGE = "configuration knowledge"
    PHYSICS = "physics"
    RULE = "rule of thumb"
    ASSUMED = "assumed"


class MeasuredPace(msgspec.Struct, frozen=True, kw_only=True):
    """An earlier run: ``step_s`` wall seconds per optimiser step of ``accumulation`` microbatches
    on ``gpus`` GPUs. ``subject`` is the model, or the text of the user's command.
    """

    subject: str
    accelerator: str
    gpus: int
    step_s: float
    method: str = ""
    microbatch: int = 1
    accumulation: int = 1
    max_length: int = 0
    gradient_checkpointing: bool = False


class Pace(NamedTuple):
    """Wall seconds per step with 0 (none: 0.0), 1, ... GPUs. ``quick_s`` and ``slow_s`` bound
    ``step_s`` with 90% probability; all are equal where no interval is known.
    """

    step_s: tuple[float, ...]
    quick_s: tuple[float, ...]
    slow_s: tuple[float, ...]
    basis: Basis


def trainable(model: ModelFacts, method: Method, lora_r: int) -> int:
    """Return how many parameters are trained; LoRA adapts all linear layers."""
    if method is Method.FULL:
        return model.parameters
    return lora_r * model.layers * model.linear_widths


def reduction_s(trained: int, gpus: int, network_gb_s: float) -> float:
    """Return the seconds to add up gradients over all GPUs, by a ring all-reduce."""
    if gpus == 1:
        return 0.0
    return 2 * (gpus - 1) / gpus * 4.0 * trained / (network_gb_s * 1e9)


def busiest_share(lengths: NDArray[np.float64], gpus: int) -> float:
    """Return the share of a step's tokens that the busiest of ``gpus`` GPUs computes.

    It is the bound for any way to share rows: of the k * gpus + 1 longest ones, k + 1 are on one
    GPU. The trainer's way (``packed_rows.shares``) exceeds it by a few percent at most.
    """
    longest_first = np.sort(lengths)[::-1]
    before = np.concatenate(([0.0], np.cumsum(longest_first)))
    rounds = range((len(lengths) - 1) // gpus + 1)
    most = max(float(before[k * gpus + 1] - before[k * gpus - k]) for k in rounds)
    return max(most / float(before[-1]), 1 / gpus)


@functools.cache
def _quantiles(rows: int) -> NDArray[np.float64]:
    """Return the lengths of the rows of a usual step, relative to their mean."""
    normal = NormalDist(-(SPREAD**2) / 2, SPREAD)
    return np.exp([normal.inv_cdf((row + 0.5) / rows) for row in range(rows)])


def usual_rows(rows: int, length: int, longest: int) -> NDArray[np.float64]:
    """Return the tokens of each of ``rows`` rows with ``length`` tokens in the mean, cut at the
    longest; lengths are usually log-normal.
    """
    return np.minimum(_quantiles(rows) * length, longest) if length < longest else np.ones(rows)


def _arithmetic(one: Configuration) -> float:
    """Return the arithmetic per token and parameter: forward 2, backward 2 for activations and 2
    for trained weights; 2 more to recompute.
    """
    return (6.0 if one.method is Method.FULL else 4.0) + 2.0 * one.grad_checkpoint


def rule_of_thumb_s(model: ModelFacts, one: Configuration, length: int, tflops: float) -> float:
    """Return the seconds of a microbatch by its arithmetic at the usual utilisation."""
    tokens = one.batch_size * length
    arithmetic = _arithmetic(one) * model.parameters * tokens / (UTILISATION * tflops * 1e12)
    return arithmetic + LAYER_S * model.layers


def step_seconds(
    site: Site,
    model: ModelFacts,
    one: Configuration,
    length: int,
    max_gpus: int,
    measured: Sequence[MeasuredPace],
    prospect: Estimate | None = None,
    *,
    evaluated: float = 0.0,
    reproducible: bool = False,
) -> Pace:
    """Return the step times with up to ``max_gpus`` GPUs; ``configure`` calls it.

    - ``measured`` are runs of the same model, method and length on the same GPU. Their steps
      contain their own evaluations.
    - ``prospect`` is the estimate for the configuration; it is used if nothing was measured here.
    - ``evaluated`` is the number of rows that are evaluated, per step. An emulated GPU evaluates in
      no time.
    - ``reproducible`` steps are shared out in whole microbatches.
    """
    trained = trainable(model, one.method, one.lora_rank)
    emulated, longest = site.emulated_microbatch_s is not None, one.tokens_per_sample
    accumulation, microbatch = one.grad_accum, one.batch_size

    def overhead(gpus: int) -> float:
        return STEP_S + reduction_s(trained, gpus, site.network_gb_s)

    def rounds(accumulation: int, microbatch: int, gpus: int) -> float:
        """Return the microbatches of a step that the busiest GPU computes."""
        rows = accumulation * microbatch
        whole = accumulation if reproducible else rows
        equal = emulated or reproducible
        lengths = np.ones(whole) if equal else usual_rows(rows, length, longest)
        return busiest_share(lengths, gpus) * accumulation

    def steps(microbatch_s: float, evaluated: float = 0.0) -> tuple[float, ...]:
        found = [0.0]
        evaluation_s = evaluated * microbatch_s / microbatch * 2.0 / _arithmetic(one)
        for gpus in range(1, max_gpus + 1):
            same = [
                run.step_s
                for run in measured
                if (run.gpus, run.accumulation, run.microbatch) == (gpus, accumulation, microbatch)
            ]
            derived = rounds(accumulation, microbatch, gpus) * microbatch_s + overhead(gpus)
            derived += evaluation_s * busiest_share(np.ones(EVALUATED), gpus)
            found.append(median(same) if same else derived)
        return tuple(found)

    if measured:
        microbatch_s = median(
            max(run.step_s - overhead(run.gpus), 0.1 * run.step_s)
            / rounds(run.accumulation, run.microbatch, run.gpus)
            * (1.0 if emulated else microbatch / run.microbatch)
            for run in measured
        )
        return _exact(steps(microbatch_s), Basis.MEASURED)
    if site.emulated_microbatch_s is not None:
        return _exact(steps(site.emulated_microbatch_s), Basis.EMULATED)
    if prospect is not None and known(prospect.tokens_per_s):
        quick, middle, slow = microbatch_seconds(microbatch * length, prospect)
        basis = Basis.PHYSICS if "gpu_model" in prospect.extrapolated else Basis.KNOWLEDGE
        expected, quickest, slowest = (steps(each, evaluated) for each in (middle, quick, slow))
        return Pace(expected, quickest, slowest, basis)
    tflops = CPU_TFLOPS if site.gpu is None else site.gpu.tflops
    return _exact(steps(rule_of_thumb_s(model, one, length, tflops), evaluated), Basis.RULE)


def microbatch_seconds(tokens: int, prospect: Estimate) -> Interval:
    """Return the seconds of a microbatch of ``tokens`` tokens on one GPU."""
    slow, middle, quick = prospect.tokens_per_s
    return Interval(tokens / quick, tokens / middle, tokens / slow)


def _exact(step_s: tuple[float, ...], basis: Basis) -> Pace:
    """Return a pace without an interval."""
    return Pace(step_s, step_s, step_s, basis)
