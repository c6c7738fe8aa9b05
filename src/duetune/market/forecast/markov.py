"""Models of how many GPUs are available: a semi-Markov model, and the usual counts.

In ``SemiMarkov`` a spell is a run of slots with one count. It ends with a hazard that depends on
the count and on the spell's age, and then jumps to another count. Both are learned from counts that
fade with time and are smoothed: a rare count uses what is known of the others. ``UsualCounts``
ignores the present count.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from duetune.core.compiled import compiled

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray


AGE_EDGES = np.array([1, 2, 4, 8, 16, 32])
OLDEST = int(AGE_EDGES[-1])
_BUCKETS = np.searchsorted(AGE_EDGES, np.arange(OLDEST + 1), side="right") - 1


class SemiMarkov:
    """The semi-Markov model of one series.

    ``memory`` is in slots. ``smoothing`` is the weight of the pooled estimate, in observed slots.
    """

    def __init__(self, *, memory: float = 1000.0, smoothing: float = 3.0) -> None:
        self._keep = 1 - 1 / memory
        self._smoothing = smoothing
        self._top = 1
        self._stayed = np.zeros((2, AGE_EDGES.size))
        self._left = np.zeros((2, AGE_EDGES.size))
        self._jumps = np.zeros((2, 2))
        self._last = -1
        self._age = 0
        self._rates: tuple[NDArray[np.float64], NDArray[np.float64]] | None = None

    def observe(self, value: float, sisters: Sequence[float] = ()) -> None:  # noqa: ARG002
        """Learn from the count of a slot; called once per slot."""
        count = round(value)
        if count > self._top:
            self._grow(count)
        if self._last >= 0:
            self._stayed *= self._keep
            self._left *= self._keep
            self._jumps *= self._keep
            bucket = _BUCKETS[self._age]
            if count == self._last:
                self._stayed[count, bucket] += 1
            else:
                self._left[self._last, bucket] += 1
                self._jumps[self._last, count] += 1
        self._age = min(self._age + 1, OLDEST) if count == self._last else 1
        self._last = count
        self._rates = None

    def predict(self, horizon: int) -> NDArray[np.float64]:
        """Return cumulative probabilities of the counts in each of the next ``horizon`` slots."""
        if self._rates is None:
            self._rates = (self._hazards(), self._destinations())
        hazard, destination = self._rates
        return propagate(hazard, destination, self._last, self._age, horizon)

    def _hazards(self) -> NDArray[np.float64]:
        """Return the hazard by count and age, shrunk to that of all counts and all ages."""
        left, seen = self._left, self._left + self._stayed
        strength = self._smoothing
        overall = (left.sum() + 0.5) / (seen.sum() + 1)
        by_age = (left.sum(axis=0) + strength * overall) / (seen.sum(axis=0) + strength)
        by_count = (left.sum(axis=1) + strength * overall) / (seen.sum(axis=1) + strength)
        prior = np.sqrt(by_count[:, np.newaxis] * by_age)
        hazard = (left + strength * prior) / (seen + strength)
        return np.ascontiguousarray(np.minimum(hazard, 1.0)[:, _BUCKETS])

    def _destinations(self) -> NDArray[np.float64]:
        """Return where a spell goes when it ends; a count without data uses the others."""
        size = self._top + 1
        elsewhere = self._jumps.sum(axis=0) + 0.5 / size
        base = np.tile(elsewhere, (size, 1))
        np.fill_diagonal(base, 0.0)
        base /= base.sum(axis=1, keepdims=True)
        pooled = self._jumps + self._smoothing * base
        share: NDArray[np.float64] = pooled / pooled.sum(axis=1, keepdims=True)
        return share

    def _grow(self, top: int) -> None:
        """Make room for counts up to ``top``."""
        more = top - self._top
        self._stayed = np.pad(self._stayed, [(0, more), (0, 0)])
        self._left = np.pad(self._left, [(0, more), (0, 0)])
        self._jumps = np.pad(self._jumps, [(0, more), (0, more)])
        self._top = top


@compiled
def propagate(
    hazard: NDArray[np.float64],
    destination: NDArray[np.float64],
    count: int,
    age: int,
    horizon: int,
) -> NDArray[np.float64]:
    """Return cumulative probabilities of the counts, one row per slot ahead."""
    counts, oldest = hazard.shape[0], hazard.shape[1] - 1
    now = np.zeros((counts, oldest + 1))
    now[count, age] = 1.0
    result = np.empty((horizon, counts))
    ending = np.empty(counts)
    for ahead in range(horizon):
        for i in range(counts):
            ended = 0.0
            staying = 0.0
            for a in range(oldest, 0, -1):
                mass = now[i, a]
                lost = mass * hazard[i, a]
                ended += lost
                if a == oldest:
                    staying = mass - lost
                else:
                    now[i, a + 1] = mass - lost
            now[i, oldest] += staying
            now[i, 1] = 0.0
            ending[i] = ended
        for i in range(counts):
            if ending[i] > 0.0:
                for j in range(counts):
                    now[j, 1] += ending[i] * destination[i, j]
        total = 0.0
        for i in range(counts):
            for a in range(1, oldest + 1):
                total += now[i, a]
            result[ahead, i] = min(total, 1.0)
        result[ahead, counts - 1] = 1.0
    return result


HOURS = 24


class UsualCounts:
    """Shares of the counts by hour of the day, shrunk to those of all hours; old ones fade.

    With ``slots_per_day`` 0 there are no hours, only the usual counts of the last ``memory`` slots.
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
        """Learn from the count of a slot; called once per slot."""
        count = round(value)
        more = count + 1 - self._weight.shape[1]
        if more > 0:
            self._weight = np.pad(self._weight, [(0, 0), (0, more)])
        self._weight *= self._keep
        self._weight[self._bucket(np.array(self._seen)), count] += 1
        self._seen += 1

    def predict(self, horizon: int) -> NDArray[np.float64]:
        """Return cumulative probabilities of the counts in each of the next ``horizon`` slots."""
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
