"""Scores of a forecaster on a family: each series is forecast slot by slot (rolling origin)."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import msgspec
import numpy as np
from numpy.typing import NDArray

from duetune.market.forecast.distribution import LEVELS, PLACES, count_quantiles, widened

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from duetune.market.forecast.distribution import SeriesModel
    from forecast_data import Family

_LEVELS = np.array(LEVELS)
LOW, HIGH = 0.05, 0.95
CONTROL, PLAIN, OURS = "persistence", "persistence, not calibrated", "combined"


class Scores(msgspec.Struct, frozen=True, eq=False):
    """The scores of one model on one family: one row per horizon, one entry per forecast.

    ``when`` is how far into the scored part of its series a forecast was made, from 0 to 1.
    """

    pinball: list[NDArray[np.float64]]
    covered: list[NDArray[np.float64]]
    width: list[NDArray[np.float64]]
    point_error: list[NDArray[np.float64]]
    when: list[NDArray[np.float64]]
    milliseconds: float

    def mean_pinball(self) -> NDArray[np.float64]:
        return np.array([each.mean() for each in self.pinball])

    def coverage(self) -> NDArray[np.float64]:
        return np.array([each.mean() for each in self.covered])


def score(family: Family, make: Callable[[], SeriesModel], *, most: int | None = None) -> Scores:
    """Score a model on all series of a family, or on the first ``most``."""
    horizons = family.horizons
    parts: list[list[tuple[NDArray[np.float64], ...]]] = [[] for _ in horizons]
    spent, steps = 0.0, 0
    for row, sisters in list(_series(family))[:most]:
        model = make()
        said: list[NDArray[np.float64]] = []
        begin = time.perf_counter()
        for slot, value in enumerate(row):
            model.observe(float(value), sisters[:, slot].tolist())
            said.append(model.predict(horizons[-1]))
        spent += time.perf_counter() - begin
        steps += row.size
        for place, ahead in enumerate(horizons):
            made = np.arange(family.warm_up, row.size - ahead)
            truth = row[made + ahead]
            chosen = [said[slot][ahead - 1] for slot in made]
            judged = _counts(chosen, truth) if family.counts else _prices(chosen, truth)
            last = np.abs(truth - row[made]) / 2  # a single number's pinball loss, over all levels
            parts[place].append((*judged, last, np.linspace(0, 1, made.size, endpoint=False)))
    columns = [
        [np.concatenate([part[column] for part in group]) for group in parts] for column in range(5)
    ]
    return Scores(*columns, milliseconds=1e3 * spent / steps)


def _series(family: Family) -> Iterator[tuple[NDArray[np.float64], NDArray[np.float64]]]:
    """Yield every series with its sister series."""
    for group in family.groups:
        for place, row in enumerate(group):
            yield row, np.delete(group, place, axis=0)


def _counts(
    said: list[NDArray[np.float64]], truth: NDArray[np.float64]
) -> tuple[NDArray[np.float64], ...]:
    top = int(max(truth.max(), max(row.size for row in said) - 1))
    cumulative = np.array([widened(row, top) for row in said])
    counts = truth.astype(np.int64)
    every = np.arange(counts.size)
    to = cumulative[every, counts]
    below = np.where(counts > 0, cumulative[every, np.maximum(counts - 1, 0)], 0.0)
    # Randomised coverage without the dice: the share of the atom that lies within.
    mass = to - below
    within = np.minimum(to, HIGH) - np.maximum(below, LOW)
    inside = (to >= LOW) & (to <= HIGH)
    share = np.clip(within / np.maximum(mass, 1e-12), 0.0, 1.0)
    quantiles = count_quantiles(cumulative, LEVELS).T
    return _pinball(quantiles, truth), np.where(mass > 1e-12, share, inside), _width(quantiles)


def _prices(
    said: list[NDArray[np.float64]], truth: NDArray[np.float64]
) -> tuple[NDArray[np.float64], ...]:
    quantiles = np.array(said)[:, PLACES]
    inside = (quantiles[:, 0] <= truth) & (truth <= quantiles[:, -1])
    return _pinball(quantiles, truth), inside.astype(np.float64), _width(quantiles)


def _pinball(quantiles: NDArray[np.float64], truth: NDArray[np.float64]) -> NDArray[np.float64]:
    off = truth[:, np.newaxis] - quantiles
    loss: NDArray[np.float64] = np.maximum(_LEVELS * off, (_LEVELS - 1) * off).mean(axis=1)
    return loss


def _width(quantiles: NDArray[np.float64]) -> NDArray[np.float64]:
    return quantiles[:, -1] - quantiles[:, 0]
