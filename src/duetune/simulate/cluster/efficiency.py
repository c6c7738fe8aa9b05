"""Statistical efficiency: what share of a pace counts as progress, by batch size and progress.

A large batch processes more samples in a second, but each sample teaches less, above all early in
training. The table comes with a user's paces (``pace_tables``); worlds of measured runs have none.
"""

from __future__ import annotations

import bisect
import functools
import itertools
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from duetune.knowledge.configurations.configuration import Configuration


class EfficiencyTable(msgspec.Struct, frozen=True, dict=True):
    """What share of a pace counts, by application, batch size and progress.

    ``steps`` has pairs of progress and the efficiency from there on, the smallest progress first.
    What is not listed has an efficiency of 1.
    """

    steps: dict[tuple[str, int], tuple[tuple[float, float], ...]]

    def at(self, configuration: Configuration, progress: float) -> float:
        """Return the efficiency of a configuration after this share of the work."""
        steps = self.steps.get((configuration.model, configuration.batch_size), ())
        passed = bisect.bisect_right(steps, progress, key=lambda step: step[0])
        return steps[passed - 1][1] if passed else 1.0

    def mean(self, configuration: Configuration) -> float:
        """Return the efficiency over the whole job: work divided by the time it takes at pace 1."""
        steps = self.steps.get((configuration.model, configuration.batch_size), ())
        borders = [0.0, *(each for each, _ in steps if each > 0), 1.0]
        return 1.0 / sum(
            (end - begin) / self.at(configuration, begin)
            for begin, end in itertools.pairwise(borders)
        )

    def stage(self, progress: float) -> int:
        """Return how many steps of any row are passed: between two, no efficiency changes."""
        return bisect.bisect_right(self._borders, progress)

    @functools.cached_property
    def _borders(self) -> list[float]:
        return sorted({each for steps in self.steps.values() for each, _ in steps})
