"""What a trial and a worker's start are expected to take."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from duetune.knowledge.configurations.configuration import Configurations
    from duetune.knowledge.measure.worker_messages import Timing

    Column = NDArray[np.float64]

START_S = 3.0
"""Until a worker that has imported all it needs runs its first trial, of a small model."""
_START_S_PER_PARAMETER = 2e-10
_BETWEEN_S = 0.2
_ADAPTER_S = 0.3
_FIRST_STEP = 1.5
"""A first step is slower than the rest: memory is asked for, kernels are loaded."""


def start_seconds(parameters: float) -> float:
    return START_S + _START_S_PER_PARAMETER * parameters


def trial_seconds(configurations: Configurations, tokens_per_s: Column, timing: Timing) -> Column:
    """By the protocol, if the pace is ``tokens_per_s``. One that runs out of memory takes less."""
    step = configurations.per_gpu_tokens / np.maximum(tokens_per_s, 1e-9)
    capped = configurations.number("memory_cap_gb") > 0
    enough = np.where(capped, timing.capped_steps, timing.min_steps)
    long = np.where(capped, timing.min_s / 2, timing.min_s)
    first = _FIRST_STEP * step
    warm = first + (timing.warm_up_steps - 1) * step
    measured = np.maximum(enough * step, long)
    # Whoever is over time ends with the step that is running.
    steps = np.minimum(warm + measured, np.maximum(timing.max_s, warm) + step)
    steps = np.where(first > timing.max_s / 2, np.minimum(steps, first + enough * step), steps)
    steps = np.where(first > timing.slow_step_s, first, steps)
    adapter = np.where(configurations.is_("method", "full"), 0.0, _ADAPTER_S)
    seconds: Column = _BETWEEN_S + adapter + steps
    return seconds
