"""Synthetic runs for tests of knowledge sources."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import numpy as np

from duetune.knowledge.configurations.configuration_rules import Constraint
from duetune.knowledge.configurations.space import Domain, Role, Space
from duetune.knowledge.configurations.space_sampling import sample
from duetune.knowledge.history import History
from duetune.knowledge.observation import Observation, RunOutcome

if TYPE_CHECKING:
    from duetune.knowledge.configurations.configuration import Configuration

_PEAK = {"A100-80GB": 312e12, "L40S": 362e12}
_MEMORY_GB = {"A100-80GB": 85.9, "L40S": 48.3}
_PARAMETERS = {"meta-llama/Llama-3.2-3B": 3.2e9, "meta-llama/Llama-3.1-8B": 8.0e9}


def small_space() -> Space:
    """Return a space with few models, methods and GPUs; the model must be given."""
    return Space(
        {
            "model": Domain((), Role.GIVEN),
            "method": Domain(("lora",), Role.GIVEN),
            "gpu_model": Domain(("A100-80GB", "L40S")),
            "num_gpus": Domain((1, 2, 4)),
            "batch_size": Domain((1, 2, 4, 8, 16, 32, 64)),
            "tokens_per_sample": Domain((1024,), Role.GIVEN),
            "sharding": Domain(("none", "fsdp"), Role.FIXED),
        },
        (Constraint('(num_gpus == 1) == (sharding == "none")', "one GPU shares nothing"),),
    )


def synthetic_run(
    configuration: Configuration, noise: float = 0.0, measured_at: float = 0.0
) -> Observation:
    """Return the run that simple formulas for time and memory predict.

    ``noise`` is added to the logarithm of the pace.
    """
    each = configuration
    size, gpus = _PARAMETERS[each.model], each.num_gpus
    tokens = each.batch_size / gpus * each.tokens_per_sample
    full = each.method == "full"
    memory_gb = (size * (16.0 if full else 2.0) / gpus + tokens * 1.5e6) / 1e9 + 3.0
    provenance = f"synthetic:{each.key}"
    if memory_gb > _MEMORY_GB[each.gpu_model]:
        return Observation(
            configuration=each,
            outcome=RunOutcome.OOM,
            measured_at=measured_at,
            provenance=provenance,
        )
    step_s = tokens * (8.0 if full else 6.0) * size / (0.45 * _PEAK[each.gpu_model])
    step_s += 0.15 + (0.05 * gpus if gpus > 1 else 0.0)
    return Observation(
        configuration=each,
        outcome=RunOutcome.VALID,
        tokens_per_s=tokens * gpus / step_s * float(np.exp(noise)),
        peak_memory_gb=memory_gb,
        measured_at=measured_at,
        provenance=provenance,
    )


@functools.cache
def synthetic_history(count: int = 150, seed: int = 1) -> History:
    """Return runs spread over ``small_space`` that break no rule, one per minute."""
    rng = np.random.default_rng(seed)
    whole = small_space()
    for field, values in (
        ("model", tuple(_PARAMETERS)),
        ("method", ("full", "lora")),
        ("tokens_per_sample", (512, 1024, 2048, 4096)),
    ):
        whole = whole.with_values(field, values)
    points = sample(whole, count, rng, "latin-hypercube")
    noise = rng.normal(0.0, 0.03, count).tolist()
    return History(
        synthetic_run(each, off, 60.0 * minute)
        for minute, (each, off) in enumerate(zip(points, noise, strict=True))
    )
