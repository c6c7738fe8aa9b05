"""Histories of a world whose constants are known, for tests of what learns from them."""

from __future__ import annotations

import numpy as np

from duetune.knowledge.arithmetic import MemoryConstants, TimeConstants
from duetune.knowledge.configurations.configuration import Configuration, Configurations
from duetune.knowledge.configurations.configuration_table import Described
from duetune.knowledge.history import History
from duetune.knowledge.model.features import Physics
from duetune.knowledge.model.memory_model import MemoryModel
from duetune.knowledge.model.pace_model import PaceModel
from duetune.knowledge.observation import Observation, RunOutcome

TRUTH = Physics(
    pace=PaceModel(
        constants=TimeConstants(launch_s=0.009, exchange_s=0.006, overlap=0.55, eager=3.0),
        factors={"gpu_model=A100-80GB": 1.25, "gpu_model=L40S": 0.8, "method=lora": 0.9},
        link={"gpu_model=L40S": 0.6},
    ),
    memory=MemoryModel(
        constants=MemoryConstants(logits=10.5, context=3.2e9, slack=1.0, block=0.8, shard=4.0)
    ),
)
MODELS = (
    "HuggingFaceTB/SmolLM2-135M",
    "Qwen/Qwen2.5-0.5B",
    "meta-llama/Llama-3.2-1B",
    "meta-llama/Llama-3.2-3B",
    "meta-llama/Llama-3.1-8B",
)


def drawn(size, seed, **domains):
    """Configurations that keep the rules; a field in ``domains`` takes one of those values."""
    random = np.random.default_rng(seed)
    usual = {
        "model": MODELS,
        "method": ("full", "lora"),
        "gpu_model": ("A100-80GB", "L40S"),
        "num_gpus": (1, 1, 2, 4),
        "batch_size": (1, 2, 4, 8, 16, 32),  # of each GPU
        "tokens_per_sample": (256, 512, 1024, 2048, 4096),
        "grad_checkpoint": (True, False),
    }
    choices = usual | domains
    rows = []
    for _ in range(size):
        row = {field: values[random.integers(len(values))] for field, values in choices.items()}
        row["batch_size"] *= row["num_gpus"]
        row.setdefault("sharding", "none" if row["num_gpus"] == 1 else "fsdp")
        rows.append(Configuration(**row).replace())
    return Configurations.of(rows)


def measured(rows, seed, *, noise=0.03, memory_noise=0.01, bound=1.0, slower=None, peaks=True):
    """What the world says of ``rows``: out of memory above ``bound`` of the capacity (one for all
    or one for each row). ``slower`` is a factor of the pace, that physics knows nothing of.
    """
    random = np.random.default_rng(seed)
    it = Described(rows)
    pace = TRUTH.pace.tokens_per_s(it) * np.exp(noise * random.standard_normal(len(rows)))
    pace *= 1.0 if slower is None else slower
    needed = TRUTH.memory.peak(it)
    shown = needed * np.exp(memory_noise * random.standard_normal(len(rows)))
    fits = needed <= bound * it.capacity
    return History(
        Observation(
            configuration=row,
            outcome=RunOutcome.VALID if fits[index] else RunOutcome.OOM,
            tokens_per_s=float(pace[index]) if fits[index] else None,
            peak_memory_gb=float(shown[index]) / 1e9 if fits[index] and peaks else None,
            provenance=f"row {index}",
        )
        for index, row in enumerate(rows)
    )
