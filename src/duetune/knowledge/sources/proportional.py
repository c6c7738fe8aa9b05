"""Twice the GPUs, twice the throughput: the knowledge of a scheduler with a minimal profile.

Sia works like this. It measures one GPU of each type (or the minimum that the model needs), assumes
that more of them are proportionally faster, and estimates other types by the ratio of types that
were both measured. Batch sizes are those of one GPU.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from duetune.knowledge.configurations.configuration import (
    FIELDS,
    Configurations,
    Interconnect,
    Sharding,
)
from duetune.knowledge.configurations.expressions import DERIVED
from duetune.knowledge.estimate import MEMORY, Estimates, around
from duetune.knowledge.sources.knowledge_source import Capability
from duetune.knowledge.sources.past_runs import SURE, Encoder, Remembering

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from duetune.knowledge.sources.past_runs import Measured

    Column = NDArray[np.float64]
    Index = NDArray[np.int64]

_FIELDS = tuple(field for field in FIELDS if field != "gpu_model")


class ProportionalSource(Remembering):
    """Scales the run with the fewest GPUs, among runs that differ only in the number of GPUs.

    A GPU type without such a run counts as fitting if it has the memory of a type that fitted.
    """

    name = "proportional"
    capabilities: ClassVar[frozenset[Capability]] = frozenset(
        (Capability.VALIDITY, Capability.THROUGHPUT)
    )

    @functools.cached_property
    def _profiles(self) -> _Profiles:
        return _Profiles(self.measured)

    def changed(self) -> None:
        """Drop what was derived from the old history."""
        super().changed()
        self.__dict__.pop("_profiles", None)

    def estimate(self, configurations: Configurations) -> Estimates:
        """Return the scaled throughputs."""
        result = Estimates.unknown(len(configurations), self.name)
        result.extrapolated[:] = self.measured.unseen(configurations)
        if not len(self.measured) or not len(configurations):
            return result
        each, ran_out = self._profiles.answer(configurations)
        known = np.isfinite(each) & ~ran_out
        result.p_valid[known] = SURE
        result.p_valid[ran_out] = 1.0 - SURE
        result.cause[ran_out] = MEMORY
        pace = np.where(known, each * configurations.number("num_gpus"), np.nan)
        result.tokens_per_s = around(pace, 0.0)
        result.support = known.astype(np.int64)
        result.measured = self.measured.find(configurations) >= 0
        return result


class _Profiles:
    """A table with one row per kind of run and one column per GPU type.

    It holds the throughput of one GPU (NaN if unknown), the fewest GPUs that fitted, and the most
    with which the run ran out of memory.
    """

    def __init__(self, measured: Measured) -> None:
        rows = measured.rows
        alike = _on_one(rows)
        self._encoder = Encoder(alike, _FIELDS)
        self._gpus = {word: code for code, word in enumerate(rows.labels["gpu_model"])}
        size = (len(self._encoder), len(self._gpus))
        kind, gpu = self._encoder.find(alike), rows.columns["gpu_model"].astype(np.int64)
        count = rows.number("num_gpus")
        fitted = (2 * measured.valid >= measured.count) & (measured.tokens_per_s > 0)
        self._fewest = np.full(size, np.inf)
        np.minimum.at(self._fewest, (kind[fitted], gpu[fitted]), count[fitted])
        self._ran_out = np.zeros(size)
        out = (measured.ran_out > 0) & ~fitted
        np.maximum.at(self._ran_out, (kind[out], gpu[out]), count[out])
        base = fitted & (count == self._fewest[kind, gpu])
        self._each = np.full(size, np.nan)
        self._each[kind[base], gpu[base]] = measured.tokens_per_s[base] / count[base]
        self._memory = np.zeros(len(self._gpus))
        self._memory[gpu] = np.nan_to_num(DERIVED["gpu_memory_gb"](rows))
        first = np.zeros(len(self._encoder), np.int64)
        first[kind] = np.arange(len(kind))
        self._job = Encoder(rows.take(first), ("model", "method"))
        self._jobs = self._job.find(rows.take(first))

    def answer(self, configurations: Configurations) -> tuple[Column, NDArray[np.bool_]]:
        """Return the throughput of one GPU, NaN if unknown, and whether the run runs out of
        memory.
        """
        kind = self._encoder.find(_on_one(configurations))
        codes = [self._gpus.get(word, -1) for word in configurations.labels["gpu_model"]]
        gpu = np.array(codes, np.int64)[configurations.columns["gpu_model"]]
        count = configurations.number("num_gpus")
        mine, theirs = np.maximum(kind, 0), np.maximum(gpu, 0)
        known = (kind >= 0) & (gpu >= 0)
        ran_out = known & (count <= self._ran_out[mine, theirs])
        each = np.where(known, self._each[mine, theirs], np.nan)
        each[count < self._fewest[mine, theirs]] = np.nan
        asked = known & ~ran_out & np.isnan(self._each[mine, theirs])
        for row in np.flatnonzero(asked).tolist():
            each[row] = self._elsewhere(int(kind[row]), int(gpu[row]), float(count[row]))
        return each, ran_out

    def _elsewhere(self, kind: int, gpu: int, count: float) -> float:
        """Return the throughput from measured types that have no more memory."""
        fits = (count >= self._fewest[kind]) & (self._memory <= self._memory[gpu])
        found = [
            self._each[kind, other] * ratio
            for other in np.flatnonzero(fits & np.isfinite(self._each[kind])).tolist()
            if (ratio := self._ratio(gpu, other, int(self._jobs[kind]))) > 0
        ]
        return float(np.exp(np.mean(np.log(found)))) if found else float("nan")

    @functools.cache  # noqa: B019 - it lives as long as its history
    def _ratio(self, gpu: int, other: int, job: int) -> float:
        """Return how much faster one type is than another, preferably for jobs like this one."""
        ratios = self._each[:, gpu] / self._each[:, other]
        for those in (self._jobs == job, np.ones(len(ratios), np.bool_)):
            known = ratios[those & np.isfinite(ratios)]
            if known.size:
                return float(np.median(known))
        return 0.0


def _on_one(rows: Configurations) -> Configurations:
    """Return the rows as one of their GPUs sees them."""
    columns, labels = dict(rows.columns), dict(rows.labels)
    columns["batch_size"] = rows.per_gpu_batch
    for field in ("num_gpus", "num_nodes"):
        columns[field] = np.ones(len(rows))
    for field, word in (("sharding", Sharding.NONE), ("interconnect", Interconnect.AUTO)):
        labels[field] = (word.value,)
        columns[field] = np.zeros(len(rows), np.int64)
    return Configurations(columns, labels)
