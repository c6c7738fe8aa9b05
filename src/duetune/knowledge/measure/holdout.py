"""When to stop: once more runs hardly make predictions better."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from duetune.knowledge.configurations.configuration import Configurations
from duetune.knowledge.observation import RunOutcome

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from duetune.knowledge.measure.surrogate import Surrogate
    from duetune.knowledge.observation import Observation

RUNS = 50
POINTS = 0.2
_HELD_OUT = 5
_LEAST = 10


class HoldOut:
    """Every fifth configuration is kept from learning, and told by its key. What was learnt
    ``RUNS`` runs ago is compared with what is learnt now on all that is held out now.
    """

    def __init__(self, fit: Callable[[Sequence[Observation]], Surrogate]) -> None:
        self._fit = fit
        self._earlier: list[tuple[int, Surrogate]] = []

    def satisfied(self, observations: Sequence[Observation]) -> bool:
        """Whether the last ``RUNS`` runs made predictions better by less than ``POINTS`` points."""
        count = len(observations)
        if self._earlier and count - self._earlier[-1][0] < RUNS:
            return False
        held = [
            each
            for each in observations
            if _held_out(each) and each.outcome is RunOutcome.VALID and each.tokens_per_s
        ]
        now = self._fit([each for each in observations if not _held_out(each)])
        before = self._earlier[-1][1] if self._earlier else None
        self._earlier.append((count, now))
        if before is None or len(held) < _LEAST:
            return False
        return percent_error(before, held) - percent_error(now, held) < POINTS


def percent_error(surrogate: Surrogate, observations: Sequence[Observation]) -> float:
    """The median, of the pace."""
    table = Configurations.of(each.configuration for each in observations)
    predicted = surrogate.estimate(table).tokens_per_s[:, 1]
    measured = np.array([each.tokens_per_s for each in observations], np.float64)
    return float(100 * np.nanmedian(np.abs(predicted / measured - 1)))


def _held_out(observation: Observation) -> bool:
    return int(observation.configuration.key, 16) % _HELD_OUT == 0
