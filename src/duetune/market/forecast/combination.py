"""Several models of one series as one, weighted by how well each has done lately.

The first member is the control, persistence. If no other is better, it has all the weight.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from duetune.core.compiled import compiled
from duetune.market.forecast.distribution import ANCHORS, GRID, REACH, anchor_of, widened
from duetune.market.forecast.empirical import Pending

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from duetune.market.forecast.distribution import SeriesModel

COUNT_MEMORY = 1000.0
PRICE_MEMORY = 2000.0
PRIOR = 30.0
"""Slots of evidence that move the weight half-way away from persistence."""
MOST_LOSS = 2.0
"""A model of prices takes part while its recent loss is at most this many times the least one."""


class CombinedCounts:
    """A mixture whose weights minimise the recent squared distance between mixture and truth.

    Summed over all counts, that distance is twice the pinball loss averaged over all levels. It is
    quadratic in the weights, so the best weights for the faded past are found exactly, at each
    anchor, from a matrix with one row per member.
    """

    def __init__(
        self,
        members: Sequence[SeriesModel],
        *,
        memory: float = COUNT_MEMORY,
        prior: float = PRIOR,
    ) -> None:
        self._members = tuple(members)
        self._keep = 1 - 1 / memory
        self._prior = prior
        size = len(self._members)
        self._pending = Pending((size, 1))
        self._loss = np.zeros((ANCHORS.size, size, size))
        self._slots = np.full(ANCHORS.size, 1e-9)
        self._preferred = np.zeros(size)
        self._preferred[0] = 1.0
        self.weights = np.tile(self._preferred, (ANCHORS.size, 1))

    def observe(self, value: float, sisters: Sequence[float] = ()) -> None:
        """Update the weights and show the count to all members; called once per slot."""
        count = round(value)
        predicted, due = self._pending.due()
        if due.size:
            predicted = widened(predicted, count)
            miss = predicted - (np.arange(predicted.shape[-1]) >= count)
            self._loss[due] *= self._keep
            self._loss[due] += miss @ miss.transpose(0, 2, 1)
            self._slots[due] = self._keep * self._slots[due] + 1
            usual = np.trace(self._loss, axis1=1, axis2=2) / len(self._members) / self._slots
            settle(self._loss, self.weights, self._preferred, self._prior * usual + 1e-9)
        for member in self._members:
            member.observe(value, sisters)
        self._pending.keep(_every(self._members, REACH)[ANCHORS - 1])

    def predict(self, horizon: int) -> NDArray[np.float64]:
        """Return cumulative probabilities of the counts in each of the next ``horizon`` slots."""
        weights, members = self.weights[anchor_of(horizon)], _every(self._members, horizon)
        mixture: NDArray[np.float64] = np.einsum("hm,hmk->hk", weights, members)
        return mixture


class CombinedPrices:
    """An average of quantiles, weighted by ML-Poly (Gaillard, Stoltz and van Erven, 2014).

    A member's weight is its positive regret: by how much lower the recent pinball loss would have
    been with more of it. There is no learning rate. A member with more than ``MOST_LOSS`` times the
    loss of the best has no weight: regret alone would mix a poor one in. If no regret is positive,
    the control has all the weight, or the best member if the control is poor itself.
    """

    def __init__(self, members: Sequence[SeriesModel], *, memory: float = PRICE_MEMORY) -> None:
        self._members = tuple(members)
        self._keep = 1 - 1 / memory
        size = len(self._members)
        self._pending = Pending((size, GRID.size))
        self._loss = np.zeros((ANCHORS.size, size))
        self._regret = np.zeros((ANCHORS.size, size))
        self._squares = np.zeros((ANCHORS.size, size))
        self.weights = np.zeros((ANCHORS.size, size))
        self.weights[:, 0] = 1.0

    def observe(self, value: float, sisters: Sequence[float] = ()) -> None:
        """Update the weights and show the price to all members; called once per slot."""
        predicted, due = self._pending.due()
        if due.size:
            weights = self.weights[due]
            ours = np.einsum("am,amg->ag", weights, predicted)
            slope = (value < ours) - GRID
            linear = np.einsum("ag,amg->am", slope, predicted) / GRID.size
            regret = (weights * linear).sum(axis=1, keepdims=True) - linear
            off = value - predicted
            loss = np.maximum(GRID * off, (GRID - 1) * off).mean(axis=2)
            self._loss[due] = self._keep * self._loss[due] + loss
            self._regret[due] = self._keep * self._regret[due] + regret
            self._squares[due] = self._keep * self._squares[due] + regret**2
            self._settle()
        for member in self._members:
            member.observe(value, sisters)
        self._pending.keep(_every(self._members, REACH)[ANCHORS - 1])

    def predict(self, horizon: int) -> NDArray[np.float64]:
        """Return price quantiles for each of the next ``horizon`` slots."""
        weights, members = self.weights[anchor_of(horizon)], _every(self._members, horizon)
        average: NDArray[np.float64] = np.einsum("hm,hmg->hg", weights, members)
        return average

    def _settle(self) -> None:
        """Set the weights in proportion to the positive regrets of the members that take part."""
        good = self._loss <= MOST_LOSS * self._loss.min(axis=1, keepdims=True)
        largest = np.where(good, self._squares, 0.0).max(axis=1, keepdims=True)
        positive = np.maximum(self._regret, 0) / (self._squares + largest + 1e-300) * good
        total = positive.sum(axis=1, keepdims=True)
        alone = np.eye(good.shape[1])[np.where(good[:, 0], 0, self._loss.argmin(axis=1))]
        self.weights = np.where(total > 0, positive / np.where(total > 0, total, 1.0), alone)


def _every(members: Sequence[SeriesModel], horizon: int) -> NDArray[np.float64]:
    """Return the predictions of all members: slot ahead, member, count or quantile."""
    return np.stack([member.predict(horizon) for member in members], axis=1)


@compiled
def settle(
    loss: NDArray[np.float64],
    weights: NDArray[np.float64],
    preferred: NDArray[np.float64],
    ridge: NDArray[np.float64],
) -> None:
    """Move each row of ``weights`` to the minimum of w'Lw + ridge |w - preferred|^2.

    The weights stay positive and sum to 1. Pair by pair, weight goes from one member to another as
    far as that helps. It starts from the last weights, so a few rounds are enough.
    """
    anchors, size = weights.shape
    for a in range(anchors):
        for _ in range(20):
            moved = 0.0
            for i in range(size):
                for j in range(size):
                    if i == j or weights[a, j] <= 0.0:
                        continue
                    slope = 0.0
                    for m in range(size):
                        slope += weights[a, m] * (loss[a, i, m] - loss[a, j, m])
                    gap = (weights[a, i] - preferred[i]) - (weights[a, j] - preferred[j])
                    slope += ridge[a] * gap
                    if slope >= 0.0:
                        continue
                    curve = loss[a, i, i] + loss[a, j, j] - 2.0 * loss[a, i, j] + 2.0 * ridge[a]
                    step = min(weights[a, j], -slope / curve)
                    weights[a, i] += step
                    weights[a, j] -= step
                    moved = max(moved, step)
            if moved < 1e-4:
                break
