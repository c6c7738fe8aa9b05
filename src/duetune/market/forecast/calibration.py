"""Adaptive conformal calibration: intervals that cover as often as they claim.

A model gives the level of its own distribution at which a value falls. If its 5% quantile is missed
more often than in one slot of twenty, the level that stands for 5% moves down by a small step after
each miss, and up by a smaller one after each hit (Gibbs and Candes, 2021). Hits and misses then
balance on any series. Every level has its own step, at each anchor.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from duetune.market.forecast.distribution import (
    ANCHORS,
    GRID,
    LEVELS,
    PLACES,
    REACH,
    anchor_of,
    price_at,
    widened,
)
from duetune.market.forecast.empirical import Pending

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from duetune.market.forecast.distribution import SeriesModel

RATE = 0.01
EVEN = 0.01
"""The share of every distribution that is even over all counts, so that none is ruled out."""
DOUBT, DOUBT_HOURS, DOUBT_FULL_HOURS = 0.15, 150.0, 12.0
"""The initial doubt, the observed hours after which half of it is left, and the hours ahead from
which all of it applies.
"""
_LEVELS = np.array(LEVELS)
_LOWER = _LEVELS < 0.5
_UPPER = _LEVELS > 0.5
_EDGES = np.array([0.0, *LEVELS, 1.0])
_FAR = 0.01
"""How far a level may go beyond 0 and 1, where the tails of a distribution are extended."""


class CalibratedCounts:
    """A calibrated model of counts.

    Counts have atoms: an interval of whole numbers can hardly ever cover exactly 90%. So a
    value on the edge of an interval counts partly as inside. The part is chosen so that the
    coverage is exactly the nominal one (randomised coverage).

    A few days of data cannot show everything that may happen. A ``doubt`` that fades with time and
    grows with the distance ahead is therefore mixed in last: half even over all counts, half at
    both ends.
    """

    def __init__(
        self,
        model: SeriesModel,
        *,
        rate: float = RATE,
        doubt: float = DOUBT,
        slot_hours: float = 0.5,
    ) -> None:
        self._model, self._rate = model, rate
        self._doubt, self._hours = doubt, slot_hours
        self.levels = np.tile(_LEVELS, (ANCHORS.size, 1))
        self._pending = Pending((2,))
        self._seen = 0

    def observe(self, value: float, sisters: Sequence[float] = ()) -> None:
        """Adjust the levels and show the count to the model; called once per slot."""
        count = round(value)
        predicted, due = self._pending.due()
        if due.size:
            predicted = widened(predicted, count)
            above = predicted[:, count, np.newaxis]
            below = predicted[:, count - 1, np.newaxis] if count else np.zeros_like(above)
            mass = np.maximum(above - below, 1e-9)
            missed = np.clip((_LEVELS - below) / mass, 0.0, 1.0)
            moved = self.levels[due] + self._rate * (_LEVELS - missed)
            self.levels[due] = np.sort(np.clip(moved, 0.0, 1.0), axis=1)
        self._model.observe(value, sisters)
        self._seen += 1
        self._pending.keep(self._calibrated(REACH)[ANCHORS - 1])

    def predict(self, horizon: int) -> NDArray[np.float64]:
        """Return cumulative probabilities of the counts in each of the next ``horizon`` slots."""
        calibrated = self._calibrated(horizon)
        ahead = np.arange(1, horizon + 1) * self._hours
        left = DOUBT_HOURS / (DOUBT_HOURS + self._seen * self._hours)
        share = self._doubt * left * np.sqrt(np.minimum(1.0, ahead / DOUBT_FULL_HOURS))
        return _mixed(calibrated, share[:, np.newaxis], ends=0.5)

    def _calibrated(self, horizon: int) -> NDArray[np.float64]:
        """Return the model's distribution with its levels corrected, without the doubt."""
        raw = _mixed(self._model.predict(horizon), EVEN, ends=0.0)
        places = anchor_of(horizon)
        result = np.empty_like(raw)
        for place in np.unique(places):
            rows = places == place
            knots = np.concatenate(([0.0], self.levels[place], [1.0]))
            result[rows] = np.interp(raw[rows], knots, _EDGES)
        result[:, -1] = 1.0
        return result


def _mixed(
    cumulative: NDArray[np.float64], share: float | NDArray[np.float64], *, ends: float
) -> NDArray[np.float64]:
    """Return a mixture with a ``share`` of ignorance, of which ``ends`` is at both ends."""
    size = cumulative.shape[1]
    ignorant = (1 - ends) * np.arange(1, size + 1) / size + ends / 2
    ignorant[-1] = 1.0
    mixed: NDArray[np.float64] = cumulative + share * (ignorant - cumulative)
    return mixed


class CalibratedPrices:
    """A calibrated model of prices; a price at the edge of an interval is covered."""

    def __init__(self, model: SeriesModel, *, rate: float = RATE) -> None:
        self._model, self._rate = model, rate
        self.levels = np.tile(_LEVELS, (ANCHORS.size, 1))
        self._pending = Pending((GRID.size,))

    def observe(self, value: float, sisters: Sequence[float] = ()) -> None:
        """Adjust the levels and show the price to the model; called once per slot."""
        predicted, due = self._pending.due()
        if due.size:
            quantiles = predicted[:, PLACES]
            below = np.where(_UPPER, value <= quantiles, value < quantiles)
            step = np.where(_LOWER | _UPPER, _LEVELS - below, 0.0)
            moved = self.levels[due] + self._rate * step
            low = np.where(_UPPER, 0.5, -_FAR)
            high = np.where(_LOWER, 0.5, 1 + _FAR)
            self.levels[due] = np.sort(np.clip(moved, low, high), axis=1)
        self._model.observe(value, sisters)
        self._pending.keep(self.predict(REACH)[ANCHORS - 1])

    def predict(self, horizon: int) -> NDArray[np.float64]:
        """Return price quantiles for each of the next ``horizon`` slots."""
        raw = self._model.predict(horizon)
        levels = np.empty((ANCHORS.size, GRID.size))
        for place, knots in enumerate(self.levels):
            ends = (min(0.0, knots[0]), max(1.0, knots[-1]))
            levels[place] = np.interp(GRID, _EDGES, np.concatenate((ends[:1], knots, ends[1:])))
        return price_at(raw, levels[anchor_of(horizon)])
