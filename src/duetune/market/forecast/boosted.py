"""Gradient-boosted trees (LightGBM), one set per quantile, over lags, calendar and sister pools.

One row of the training table is a past slot seen from one distance: what was known then, and how
far the series moved from then on. One set of trees therefore serves all distances, and other series
can add their past. Trees are trained once in many slots, in seconds; a prediction takes
milliseconds.
"""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING

import numpy as np

from duetune.errors import MissingExtra
from duetune.market.forecast.distribution import ANCHORS, GRID, LEVELS, anchor_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lightgbm import Booster
    from numpy.typing import NDArray

WINDOW_SLOTS = 1500
REFIT_SLOTS = 672
FIRST_FIT_SLOTS = 192
STRIDE = 3
"""Every third slot of the past is a row, because neighbours are nearly the same."""
TREES = 40
_LAGS = (1, 2, 3, 6, 12)
_MEANS = (6, 24, 48)
_HOURS_PER_WEEK = 168


def require_lightgbm() -> None:
    """Raise MissingExtra if lightgbm is not installed; called when a model is made."""
    if importlib.util.find_spec("lightgbm") is None:
        raise MissingExtra("forecasting with boosted trees", "forecast")


class BoostedQuantiles:
    """Quantiles at ``LEVELS`` for one series; the last value before the first training.

    ``others`` are whole past series, oldest value first, to learn from as well. They must be of the
    same kind and slot length, and end before the first observed slot.
    """

    def __init__(
        self, slots_per_day: int, *, others: Sequence[NDArray[np.float64]] = (), seed: int = 0
    ) -> None:
        require_lightgbm()
        self._day, self._seed = max(1, slots_per_day), seed
        self._ring = np.zeros((WINDOW_SLOTS, 2))
        self._seen = 0
        self._trees: list[Booster] = []
        self._lent = [_table(np.column_stack((one, one)), 0, self._day) for one in others]
        self._answer: NDArray[np.float64] | None = None
        if self._lent:
            self._grow()

    def observe(self, value: float, sisters: Sequence[float] = ()) -> None:
        """Take the value of a slot, and train again if it is time; called once per slot."""
        beside = float(np.mean(sisters)) if len(sisters) else value
        self._ring[self._seen % WINDOW_SLOTS] = value, beside
        self._seen += 1
        self._answer = None
        since = self._seen - FIRST_FIT_SLOTS
        if since >= 0 and since % REFIT_SLOTS == 0:
            self._grow()

    def quantiles(self, horizon: int) -> NDArray[np.float64]:
        """Return quantiles at ``LEVELS``, one row per slot ahead."""
        last = self._ring[(self._seen - 1) % WINDOW_SLOTS, 0]
        if not self._trees:
            return np.full((horizon, len(LEVELS)), last)
        if self._answer is None:
            now = self._past()
            rows = _features(now, np.array([len(now) - 1]), self._seen - len(now), self._day)
            table = _seen_from(rows, ANCHORS, self._day)
            steps = [trees.predict(table, num_threads=1) for trees in self._trees]
            self._answer = last + np.sort(np.array(steps).T, axis=1)
        return self._answer[anchor_of(horizon)]

    def _past(self) -> NDArray[np.float64]:
        """Return the observed values in the window, oldest first."""
        if self._seen <= WINDOW_SLOTS:
            return self._ring[: self._seen]
        return np.roll(self._ring, -(self._seen % WINDOW_SLOTS), axis=0)

    def _grow(self) -> None:
        """Train one set of trees for each level."""
        import lightgbm  # noqa: PLC0415 - takes a second

        tables = list(self._lent)
        if self._seen >= FIRST_FIT_SLOTS:
            past = self._past()
            tables.append(_table(past, self._seen - len(past), self._day))
        rows = np.concatenate([rows for rows, _ in tables])
        steps = np.concatenate([steps for _, steps in tables])
        if np.ptp(steps) == 0:
            return
        data = lightgbm.Dataset(rows, steps, params={"verbose": -1}, free_raw_data=False)
        self._trees = [
            lightgbm.train(
                {
                    "objective": "quantile",
                    "alpha": level,
                    "num_leaves": 15,
                    "learning_rate": 0.1,
                    "min_data_in_leaf": 40,
                    "verbose": -1,
                    "num_threads": 1,
                    "deterministic": True,
                    "force_row_wise": True,
                    "seed": self._seed,
                },
                data,
                TREES,
            )
            for level in LEVELS
        ]


class BoostedPrices:
    """A model of prices from ``BoostedQuantiles``."""

    def __init__(self, model: BoostedQuantiles) -> None:
        self._model = model

    def observe(self, value: float, sisters: Sequence[float] = ()) -> None:
        """Learn from the price of a slot; called once per slot."""
        self._model.observe(value, sisters)

    def predict(self, horizon: int) -> NDArray[np.float64]:
        """Return price quantiles for each of the next ``horizon`` slots."""
        known = self._model.quantiles(horizon)
        found = np.empty((horizon, GRID.size))
        for row, quantiles in enumerate(known):
            found[row] = np.interp(GRID, LEVELS, quantiles)
        return found


class BoostedCounts:
    """A model of counts from ``BoostedQuantiles``; probability is even between two quantiles."""

    def __init__(self, model: BoostedQuantiles) -> None:
        self._model = model
        self._top = 1

    def observe(self, value: float, sisters: Sequence[float] = ()) -> None:
        """Learn from the count of a slot; called once per slot."""
        self._top = max(self._top, round(value))
        self._model.observe(value, sisters)

    def predict(self, horizon: int) -> NDArray[np.float64]:
        """Return cumulative probabilities of the counts in each of the next ``horizon`` slots."""
        edges = np.arange(self._top + 1) + 0.5
        found = np.empty((horizon, self._top + 1))
        for row, quantiles in enumerate(self._model.quantiles(horizon)):
            # Spread slightly, because equal quantiles would make the slope infinite.
            places = quantiles + 1e-6 * np.arange(len(LEVELS))
            ends = (min(places[0], 0.0) - 0.5, max(places[-1], self._top) + 0.5)
            known = np.concatenate((ends[:1], places, ends[1:]))
            found[row] = np.interp(edges, known, (0.0, *LEVELS, 1.0))
        found[:, -1] = 1.0
        return found


def _table(
    past: NDArray[np.float64], first: int, day: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the training rows of a past, from every distance, and how far the series moved."""
    tables, steps = [], []
    for ahead in ANCHORS[len(past) // 2 > ANCHORS]:
        place = np.arange(len(past) - 1 - ahead, min(len(past) // 8, 48), -STRIDE)[::-1]
        tables.append(_seen_from(_features(past, place, first, day), np.array([ahead]), day))
        steps.append(past[place + ahead, 0] - past[place, 0])
    return np.concatenate(tables), np.concatenate(steps)


def _features(
    past: NDArray[np.float64], place: NDArray[np.int64], first: int, day: int
) -> NDArray[np.float64]:
    """Return the features of each ``place``: value, changes, means, age, sisters, slot."""
    value, beside = past[:, 0], past[:, 1]
    total = np.concatenate(([0.0], np.cumsum(value)))
    changed = np.flatnonzero(np.concatenate(([True], np.diff(value) != 0)))
    since = place - changed[np.searchsorted(changed, place, side="right") - 1]
    now = value[place]
    columns = [now, np.minimum(since, 96), beside[place] - now]
    columns += [now - value[np.maximum(place - lag, 0)] for lag in (*_LAGS, day)]
    for width in (*_MEANS, 7 * day):
        begin = np.maximum(place + 1 - width, 0)
        columns.append(now - (total[place + 1] - total[begin]) / (place + 1 - begin))
    columns.append((first + place).astype(np.float64))
    return np.column_stack(columns)


def _seen_from(
    rows: NDArray[np.float64], ahead: NDArray[np.int64], day: int
) -> NDArray[np.float64]:
    """Return the rows from each distance ahead, with the hour of the day and of the week then."""
    table = np.repeat(rows, ahead.size, axis=0)
    distance = np.tile(ahead, len(rows))
    then = table[:, -1] + distance
    hour = then % day * (24 / day)
    week = then % (7 * day) * (_HOURS_PER_WEEK / (7 * day))
    return np.column_stack((table[:, :-1], distance, hour, week))
