"""The source of physics alone, with constants of data sheets and experience."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from duetune.knowledge.arithmetic import GB
from duetune.knowledge.configurations.configuration import Configurations
from duetune.knowledge.configurations.configuration_table import Described
from duetune.knowledge.estimate import EXTRAPOLATED, MEMORY, NONE, Estimates, around
from duetune.knowledge.model.features import Physics, Reckoned
from duetune.knowledge.sources.estimating import Source
from duetune.knowledge.sources.knowledge_source import Term

if TYPE_CHECKING:
    from duetune.knowledge.configurations.configuration import Configuration
    from duetune.knowledge.history import History

PACE_DEVIATION = 0.25
MEMORY_DEVIATION = 0.08
"""Standard deviations of logarithms: how far off physics is before anything was measured."""

_STEEPNESS = 1.702  # slope at which a logistic curve is nearest to the normal one
_SUREST = 0.995


def reckoned_estimates(configurations: Configurations, physics: Physics, source: str) -> Estimates:
    """Return the estimates of physics with these constants."""
    reckoned = Reckoned(Described(configurations), physics)
    size = len(configurations)
    log_odds = np.clip(_STEEPNESS * reckoned.margin / MEMORY_DEVIATION, -50.0, 50.0)
    p_valid = np.clip(1.0 / (1.0 + np.exp(-log_odds)), 1.0 - _SUREST, _SUREST)
    p_valid[reckoned.it.blind] = 0.5
    return Estimates(
        p_valid=p_valid,
        cause=np.where(p_valid < 0.5, MEMORY, NONE),
        tokens_per_s=around(reckoned.tokens_per_s, PACE_DEVIATION),
        memory_gb=around(reckoned.peak / GB, MEMORY_DEVIATION),
        support=np.zeros(size, np.int64),
        extrapolated=np.ones((size, len(EXTRAPOLATED)), np.bool_),
        measured=np.zeros(size, np.bool_),
        source=source,
    )


def reckoned_terms(
    configuration: Configuration, physics: Physics
) -> tuple[tuple[Term, ...], tuple[Term, ...]]:
    """Return the terms of memory in GB and of time in seconds, without those that are zero."""
    reckoned = Reckoned(Described(Configurations.of([configuration])), physics)
    memory, time = (
        tuple(
            Term(name=name, value=float(column[0]) / unit)
            for name, column in terms.items()
            if column[0] > 0
        )
        for terms, unit in ((reckoned.memory, GB), (reckoned.time, 1.0))
    )
    return memory, time


class AnalyticSource(Source):
    """Knows a little about every model and GPU, and does not learn."""

    name = "analytic"
    learns = False

    def __init__(self, history: History | None = None, *, physics: Physics | None = None) -> None:
        super().__init__(history)
        self.physics = Physics() if physics is None else physics

    def estimate(self, configurations: Configurations) -> Estimates:
        """Return the estimates of physics."""
        return reckoned_estimates(configurations, self.physics, self.name)

    def terms(self, configuration: Configuration) -> tuple[tuple[Term, ...], tuple[Term, ...]]:
        """Return the terms of memory and time."""
        return reckoned_terms(configuration, self.physics)
