"""How many GPUs there usually are, whatever there is now: at this hour, and lately."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

HOURS = 24


class UsualCounts:
    """Shares of the counts by hour of the day, shrunk to those of all hours, old ones fading.

    ``slots_per_day`` 0: no hours, only what was usual in the last ``memory`` slots.
    """

    def __init__(
        self, slots_per_day: int, *, memory: float = 1000.0, smoothing: float = 12.0
    ) -> None:
        self._day = slots_per_day
        buckets = min(HOURS, max(1, slots_per_day))
        self._keep = 1 - 1 / memory
        self._smoothing = smoothing
        self._weight = np.zeros((buckets, 2))
        self._seen = 0

    def observe(self, value: float, sisters: Sequence[float] = ()) -> None:  # noqa: ARG002
        count = round(value)
        more = count + 1 - self._weight.shape[1]
        if more > 0:
            self._weight = np.pad(self._weight, [(0, 0), (0, more)])
        self._weight *= self._keep
        self._weight[self._bucket(np.array(self._seen)), count] += 1
        self._seen += 1

    def predict(self, horizon: int) -> NDArray[np.float64]:
        overall = self._weight.sum(axis=0)
        weight = self._weight + self._smoothing * overall / overall.sum()
        cumulative = np.cumsum(weight, axis=1)
        cumulative /= cumulative[:, -1:]
        bucket = self._bucket(self._seen + np.arange(horizon))
        found: NDArray[np.float64] = cumulative[bucket]
        return found

    def _bucket(self, slot: NDArray[np.int64]) -> NDArray[np.int64]:
        if self._day == 0:
            return np.zeros_like(slot)
        return slot % self._day * self._weight.shape[0] // self._day
