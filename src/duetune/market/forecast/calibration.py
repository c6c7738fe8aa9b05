"""Adaptive conformal calibration: intervals that cover what they say, on drifting series too.

A model says at which level of its own distribution a value falls. Where its 5% quantile is missed
more often than in one slot of twenty, the level that stands for 5% moves down by a small step after
each miss, and up by a smaller one after each hit (Gibbs and Candes, 2021): whatever the series
does, hits and misses come into balance. Every level has its own step, at each anchor.
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
"""What no model may rule out: this share of the distribution is even over all counts."""
DOUBT, DOUBT_HOURS, DOUBT_FULL_HOURS = 0.15, 150.0, 12.0
"""The doubt of a calibrated distribution at the start, the hours of watching after which half of it
is left, and the distance ahead from which on all of it counts.
"""
_LEVELS = np.array(LEVELS)
_LOWER = _LEVELS < 0.5
_UPPER = _LEVELS > 0.5
_EDGES = np.array([0.0, *LEVELS, 1.0])
_FAR = 0.01
"""How far beyond 0 and 1 a level may go; there a distribution's tails are stretched."""


class CalibratedCounts:
    """Counts have atoms: an interval of whole numbers can hardly ever cover exactly 90%.

    The share of an atom that lies below a level counts as a miss, so that coverage is exact when an
    interval's edge counts with the probability that makes it so (randomised coverage).

    What was learnt in a few days rules out what these days did not have. So a ``doubt`` that fades
    is mixed in last, growing with the distance: half even over all counts, half at either end.
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
        self._said = Pending((2,))
        self._seen = 0

    def observe(self, value: float, sisters: Sequence[float] = ()) -> None:
        count = round(value)
        said, heard = self._said.due()
        if heard.size:
            said = widened(said, count)
            above = said[:, count, np.newaxis]
            below = said[:, count - 1, np.newaxis] if count else np.zeros_like(above)
            mass = np.maximum(above - below, 1e-9)
            missed = np.clip((_LEVELS - below) / mass, 0.0, 1.0)
            moved = self.levels[heard] + self._rate * (_LEVELS - missed)
            self.levels[heard] = np.sort(np.clip(moved, 0.0, 1.0), axis=1)
        self._model.observe(value, sisters)
        self._seen += 1
        self._said.keep(self._calibrated(REACH)[ANCHORS - 1])

    def predict(self, horizon: int) -> NDArray[np.float64]:
        calibrated = self._calibrated(horizon)
        ahead = np.arange(1, horizon + 1) * self._hours
        left = DOUBT_HOURS / (DOUBT_HOURS + self._seen * self._hours)
        share = self._doubt * left * np.sqrt(np.minimum(1.0, ahead / DOUBT_FULL_HOURS))
        return _mixed(calibrated, share[:, np.newaxis], ends=0.5)

    def _calibrated(self, horizon: int) -> NDArray[np.float64]:
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
    """With a ``share`` of something that knows nothing, of which ``ends`` is at both ends."""
    size = cumulative.shape[1]
    ignorant = (1 - ends) * np.arange(1, size + 1) / size + ends / 2
    ignorant[-1] = 1.0
    mixed: NDArray[np.float64] = cumulative + share * (ignorant - cumulative)
    return mixed


class CalibratedPrices:
    """As for counts, by plain coverage: a price at the edge of an interval is inside."""

    def __init__(self, model: SeriesModel, *, rate: float = RATE) -> None:
        self._model, self._rate = model, rate
        self.levels = np.tile(_LEVELS, (ANCHORS.size, 1))
        self._said = Pending((GRID.size,))

    def observe(self, value: float, sisters: Sequence[float] = ()) -> None:
        said, heard = self._said.due()
        if heard.size:
            quantiles = said[:, PLACES]
            below = np.where(_UPPER, value <= quantiles, value < quantiles)
            step = np.where(_LOWER | _UPPER, _LEVELS - below, 0.0)
            moved = self.levels[heard] + self._rate * step
            low = np.where(_UPPER, 0.5, -_FAR)
            high = np.where(_LOWER, 0.5, 1 + _FAR)
            self.levels[heard] = np.sort(np.clip(moved, low, high), axis=1)
        self._model.observe(value, sisters)
        self._said.keep(self.predict(REACH)[ANCHORS - 1])

    def predict(self, horizon: int) -> NDArray[np.float64]:
        raw = self._model.predict(horizon)
        levels = np.empty((ANCHORS.size, GRID.size))
        for place, knots in enumerate(self.levels):
            ends = (min(0.0, knots[0]), max(1.0, knots[-1]))
            levels[place] = np.interp(GRID, _EDGES, np.concatenate((ends[:1], knots, ends[1:])))
        return price_at(raw, levels[anchor_of(horizon)])
