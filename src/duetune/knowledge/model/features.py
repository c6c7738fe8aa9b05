"""The features that the trees see: sizes, the terms of physics, and labels."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import numpy as np

from duetune.knowledge.arithmetic import peak_bytes, step_seconds
from duetune.knowledge.model.memory_model import MemoryModel
from duetune.knowledge.model.pace_model import PaceModel

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from duetune.knowledge.configurations.configuration import Configurations
    from duetune.knowledge.configurations.configuration_table import Described

    Column = NDArray[np.float64]
    Labels = Mapping[str, tuple[str, ...]]

LABELLED = (
    *("model", "method", "gpu_model", "precision", "optimiser", "attention", "sharding"),
    *("software", "lora_targets", "interconnect"),
)
BASE_FEATURES = 32
"""Number of features that are not labels."""

_TINY = 1e-5


class Physics(msgspec.Struct, frozen=True, kw_only=True):
    """Both fitted parts of the formulas: throughput and memory."""

    pace: PaceModel = PaceModel()
    memory: MemoryModel = MemoryModel()


class Reckoned:
    """The results of physics for a table, computed once.

    - ``time``, ``memory``: the terms by name; ``step_s`` and ``peak`` combine them.
    - ``tokens_per_s``: throughput of all GPUs together.
    - ``launched``: from 0 to 1, how much the time of a step depends on the launching of kernels,
      which differs between machines.
    - ``margin``: logarithm of capacity over peak; below zero the configuration does not fit.
    """

    def __init__(self, it: Described, physics: Physics) -> None:
        self.it = it
        self.time = physics.pace.terms(it)
        self.step_s = step_seconds(self.time, physics.pace.constants.overlap)
        self.tokens_per_s = it.tokens * it.gpus / self.step_s
        launch, arithmetic = self.time["launch"] ** 2, self.time["arithmetic"] ** 2
        self.launched = launch / (launch + arithmetic)
        self.memory = physics.memory.terms(it)
        self.peak = peak_bytes(it, self.memory)
        self.margin = np.log(it.capacity / self.peak)


def seen_labels(rows: Configurations) -> dict[str, tuple[str, ...]]:
    """Return the words that occur in each word field with more than one word."""
    found = {}
    for field in LABELLED:
        words = rows.labels[field]
        used = sorted({words[code] for code in np.unique(rows.columns[field]).tolist()})
        if len(used) > 1:
            found[field] = tuple(used)
    return found


def feature_matrix(reckoned: Reckoned, labels: Labels) -> NDArray[np.float32]:
    """Return one row of features per configuration; the first column is the memory margin."""
    it, time, memory = reckoned.it, reckoned.time, reckoned.memory
    rows = it.configurations
    arithmetic = time["arithmetic"]
    columns = [
        np.clip(reckoned.margin, -5.0, 5.0),
        np.log2(it.gpus),
        it.nodes,
        np.log2(it.batch),
        np.log2(it.sequence),
        np.log2(it.tokens),
        np.log2(it.tokens * it.gpus),
        np.log2(it.accumulation),
        it.layers,
        it.hidden / 1024.0,
        it.vocabulary / 1e4,
        np.log(it.parameters),
        np.log(it.active),
        np.log(it.trained),
        it.experts,
        it.checkpointing,
        it.fast,
        it.expert_parallel,
        it.peak / 1e12,
        it.bandwidth / 1e9,
        it.link / 1e9,
        np.log(it.capacity),
        np.log(arithmetic),
        np.log(time["communication"] + _TINY),
        np.log((time["communication"] + _TINY) / arithmetic),
        np.log(time["launch"] / arithmetic),
        np.log((time["optimiser"] + _TINY) / arithmetic),
        np.log(reckoned.step_s),
        memory["logits"] / reckoned.peak,
        memory["activations"] / reckoned.peak,
        (memory["weights"] + memory["optimiser"]) / reckoned.peak,
        it.paged.astype(np.float64),
    ]
    for field, words in labels.items():
        columns.extend(rows.is_(field, word).astype(np.float64) for word in words)
    return np.ascontiguousarray(np.stack(columns, axis=1), np.float32)
