"""Which measurements to believe, and the flags that mark the others."""

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
"""Maximum share of a GPU's arithmetic that training can use; a higher value was measured or noted
wrongly.
"""

LIGHTEST = 0.9
"""Minimum peak as a share of the weights: no run needs less, except for differences in counting."""

SATURATED_SHARE = 0.99

IMPLAUSIBLE = "implausible"
"""Flag: more arithmetic than the GPU has. Such runs are not used for learning."""

TOO_LIGHT = "peak below the weights"
"""Reason: the peak is of another run, of another method or in another unit. Such runs are not used
for learning.
"""

MISDESCRIBED = "misdescribed"
"""Flag: something else was run than the configuration says. Such runs are not used for learning."""

SATURATED = "mem_saturated"
"""Flag: the run used all memory, and may have been slow because of that."""

ASSUMED_LENGTH = "assumed_length"
"""Flag: tokens were not counted. Throughput assumes the length to which samples were cut."""

STOPPED_EARLY = "stopped_early"
"""Flag: the run ended before its work was done. Throughput is that of the finished part."""


EMULATED, CPU = "emulated", "CPU"
"""The GPU names of a fleet without GPUs: its throughput is made up."""


def implied_mfu(
    configurations: Configurations, tokens_per_s: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return the share of the GPUs' 16-bit arithmetic that a throughput implies.

    Recomputed activations are not counted. The result is NaN if the model or the GPU is unknown.
    """
    active = configurations.gather("model", _active_parameters)
    peak = configurations.gather("gpu_model", _peak)
    full = configurations.is_("method", Method.FULL)
    flop = np.where(full, 6.0, 4.0) * active
    return tokens_per_s * flop / (peak * configurations.number("num_gpus"))


def lighter_than_weights(
    configurations: Configurations, peak_gb: NDArray[np.float64]
) -> NDArray[np.bool_]:
    """Return where the peak of a GPU is too small for its part of the weights; False for unknown
    models.
    """
    it = Described(configurations)
    weights = it.parameters / it.gpus * np.where(it.quantised, 0.5, 2.0)
    lighter: NDArray[np.bool_] = ~it.blind & (peak_gb * GB < LIGHTEST * weights)
    return lighter


def noted(observations: Sequence[Observation]) -> list[Observation]:
    """Return the observations with the flags that follow from their numbers; imports call this."""
    configurations = Configurations.of(each.configuration for each in observations)
    rates = [np.nan if each.tokens_per_s is None else each.tokens_per_s for each in observations]
    peaks = [
        np.nan if each.peak_memory_gb is None else each.peak_memory_gb for each in observations
    ]
    # Comparisons with NaN are False, which is what is wanted.
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
