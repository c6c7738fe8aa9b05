"""Which measurements to believe."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import numpy as np

from duetune.knowledge.arithmetic import GB
from duetune.knowledge.configurations.configuration import Configurations, Method
from duetune.knowledge.configurations.configuration_table import Described
from duetune.knowledge.facts.gpus import gpu_named
from duetune.knowledge.facts.model_facts import model_facts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from duetune.knowledge.observation import Observation

MFU_BOUND = 0.85
"""No training uses more of a GPU's arithmetic; what seems to was measured or noted wrongly."""

LIGHTEST = 0.9
"""Of the weights: no run's peak is below them, give or take how they are counted."""

SATURATED_SHARE = 0.99

IMPLAUSIBLE = "implausible"
"""More arithmetic than the GPU has: not to be learnt from."""

TOO_LIGHT = "peak below the weights"
"""Of another run, of another method, or in another unit: not to be learnt from."""

SATURATED = "mem_saturated"
"""Ran, but with all of the memory taken: it may have been slow for that."""

ASSUMED_LENGTH = "assumed_length"
"""Tokens were not counted: throughput rests on the length that samples were cut to."""

STOPPED_EARLY = "stopped_early"
"""The run ended before its work was done: throughput is of the part that was."""


EMULATED, CPU = "emulated", "CPU"
"""The GPU of a fleet that has none: how fast it is was made up."""


def implied_mfu(
    configurations: Configurations, tokens_per_s: NDArray[np.float64]
) -> NDArray[np.float64]:
    """The share of the GPUs' 16-bit arithmetic that the throughput stands for, without what is
    computed twice to save memory. NaN where the model or the GPU is not known.
    """
    active = configurations.gather("model", _active_parameters)
    peak = configurations.gather("gpu_model", _peak)
    full = configurations.is_("method", Method.FULL)
    flop = np.where(full, 6.0, 4.0) * active
    return tokens_per_s * flop / (peak * configurations.number("num_gpus"))


def lighter_than_weights(
    configurations: Configurations, peak_gb: NDArray[np.float64]
) -> NDArray[np.bool_]:
    """Where the peak of a GPU has no room even for its part of the weights. False where the model
    is not known.
    """
    it = Described(configurations)
    weights = it.parameters / it.gpus * np.where(it.quantised, 0.5, 2.0)
    lighter: NDArray[np.bool_] = ~it.blind & (peak_gb * GB < LIGHTEST * weights)
    return lighter


def noted(observations: Sequence[Observation]) -> list[Observation]:
    """The same, each with the flags that follow from its numbers."""
    configurations = Configurations.of(each.configuration for each in observations)
    rates = [np.nan if each.tokens_per_s is None else each.tokens_per_s for each in observations]
    peaks = [
        np.nan if each.peak_memory_gb is None else each.peak_memory_gb for each in observations
    ]
    # Of NaN nothing is true.
    with np.errstate(invalid="ignore"):
        implausible = implied_mfu(configurations, np.array(rates, np.float64)) > MFU_BOUND
        share = np.array(peaks, np.float64) * GB / Described(configurations).capacity
        saturated = share >= SATURATED_SHARE
    return [
        _with(each, *([IMPLAUSIBLE] if odd else []), *([SATURATED] if tight else []))
        for each, odd, tight in zip(observations, implausible, saturated, strict=True)
    ]


def _with(observation: Observation, *flags: str) -> Observation:
    new = tuple(flag for flag in flags if flag not in observation.flags)
    if not new:
        return observation
    return msgspec.structs.replace(observation, flags=(*observation.flags, *new))


def _active_parameters(model: str) -> float:
    facts = model_facts(model)
    return np.nan if facts is None else float(facts.active_parameters)


def _peak(gpu_model: str) -> float:
    gpu = gpu_named(gpu_model)
    return np.nan if gpu is None else gpu.tflops * 1e12
