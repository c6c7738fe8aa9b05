"""Sources that know what was run, and nothing else."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import numpy as np

from duetune.knowledge.configurations.configuration import Configurations
from duetune.knowledge.estimate import EXTRAPOLATED, Estimates
from duetune.knowledge.sources.estimating import Source
from duetune.knowledge.sources.knowledge_source import Neighbour
from duetune.knowledge.sources.measured import Measured
from duetune.knowledge.sources.merge import MEMORY, NONE, OTHER, around, put

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from duetune.knowledge.configurations.configuration import Configuration

SURE = 0.99
"""Of a configuration that always fitted: the next run may be on another machine."""

MEMORY_NOISE = 0.02


def remembered(
    measured: Measured, rows: NDArray[np.int64], source: str, *, certain: bool = False
) -> Estimates:
    """Of measured configurations, by their rows; ``certain``: as if there were no noise."""
    share = measured.valid[rows] / measured.count[rows]
    fitted = share >= 0.5
    ran_out = measured.ran_out[rows] > 0
    return Estimates(
        p_valid=fitted.astype(np.float64) if certain else np.clip(share, 1.0 - SURE, SURE),
        cause=np.where(fitted, NONE, np.where(ran_out, MEMORY, OTHER)),
        tokens_per_s=around(measured.tokens_per_s[rows], 0.0 if certain else measured.noise),
        memory_gb=around(measured.memory_gb[rows], 0.0 if certain else MEMORY_NOISE),
        support=measured.count[rows].astype(np.int64),
        extrapolated=np.zeros((len(rows), len(EXTRAPOLATED)), np.bool_),
        measured=np.ones(len(rows), np.bool_),
        source=source,
    )


class Remembering(Source):
    """Keeps at hand what was measured."""

    @functools.cached_property
    def measured(self) -> Measured:
        return Measured(self.history.plausible)

    def changed(self) -> None:
        self.__dict__.pop("measured", None)

    def neighbours(self, configuration: Configuration) -> tuple[Neighbour, ...]:
        row = int(self.measured.find(Configurations.of([configuration]))[0])
        if row < 0:
            return ()
        return (Neighbour(observation=self.measured.latest[row], distance=0.0, differs=()),)


class HistorySource(Remembering):
    """Medians of the very configuration that is asked for; nothing of any other."""

    name = "history"
    certain = False

    def estimate(self, configurations: Configurations) -> Estimates:
        found = self.measured.find(configurations)
        result = Estimates.unknown(len(configurations), self.name)
        result.extrapolated[:] = self.measured.unseen(configurations)
        known = np.flatnonzero(found >= 0)
        put(result, known, remembered(self.measured, found[known], self.name, certain=self.certain))
        return result


class OracleSource(HistorySource):
    """The truth, where history is what a simulation plays: for comparison only."""

    name = "oracle"
    certain = True
