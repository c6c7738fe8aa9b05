"""The uncertainty of a point forecast, from its own past errors at each distance ahead."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from duetune.market.forecast.distribution import ANCHORS, GRID, REACH, anchor_of
from duetune.market.forecast.simple import season_ago

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from duetune.market.forecast.distribution import PointModel

PRICE_ERRORS = 400
COUNT_MEMORY = 1000.0
MOST_MOMENTUM = 0.9
_COLUMNS = np.arange(ANCHORS.size)
_WHERE = 3  # at zero, in between, at the largest count


class Last:
    """The last value."""

    def __init__(self) -> None:
        self._last = 0.0

    def observe(self, value: float) -> None:
        """Remember the value; called once per slot."""
        self._last = value

    def point(self, horizon: int) -> NDArray[np.float64]:
        """Return the last value ``horizon`` times."""
        return np.full(horizon, self._last)


class Season:
    """The value one period ago, as in ``SeasonalNaive``."""

    def __init__(self, period_slots: int) -> None:
        self._ring = np.zeros(period_slots)
        self._seen = 0

    def observe(self, value: float) -> None:
        """Remember the value; called once per slot."""
        self._ring[self._seen % self._ring.size] = value
        self._seen += 1

    def point(self, horizon: int) -> NDArray[np.float64]:
        """Return the next ``horizon`` values as they were one period ago."""
        index = season_ago(np.array([self._seen - 1]), horizon, self._ring.size)[0]
        found: NDArray[np.float64] = self._ring[index % self._ring.size]
        return found


class SeasonStep:
    """The last value plus the steps that followed one period ago, so a cycle may drift."""

    def __init__(self, period_slots: int) -> None:
        self._ring = np.zeros(period_slots + 1)
        self._seen = 0

    def observe(self, value: float) -> None:
        """Remember the value; called once per slot."""
        self._ring[self._seen % self._ring.size] = value
        self._seen += 1

    def point(self, horizon: int) -> NDArray[np.float64]:
        """Return the last value plus what the next ``horizon`` slots added one period ago."""
        now, size = self._seen - 1, self._ring.size
        last = self._ring[now % size]
        if now < size - 1:
            return np.full(horizon, last)
        index = season_ago(np.array([now]), horizon, size - 1)[0]
        found: NDArray[np.float64] = last + self._ring[index % size] - self._ring[(now + 1) % size]
        return found


class Momentum:
    """The last value plus the rest of its last step, because steps often keep their sign.

    Each step is expected to be a share of the previous one. The share is learned from the last
    ``memory`` slots and is never negative.
    """

    def __init__(self, *, memory: float = 200.0) -> None:
        self._keep = 1 - 1 / memory
        self._together, self._alone = 0.0, 0.0
        self._last: float | None = None
        self._step = 0.0

    def observe(self, value: float) -> None:
        """Learn from the value of a slot; called once per slot."""
        if self._last is not None:
            step = value - self._last
            self._together = self._keep * self._together + step * self._step
            self._alone = self._keep * self._alone + self._step**2
            self._step = step
        self._last = value

    def point(self, horizon: int) -> NDArray[np.float64]:
        """Return the expected next ``horizon`` values."""
        share = self._together / self._alone if self._alone > 0 else 0.0
        share = min(max(share, 0.0), MOST_MOMENTUM)
        return (self._last or 0.0) + self._step * np.cumsum(share ** np.arange(1, horizon + 1))


class Pending:
    """The predictions made at each anchor, kept until the slot they are about is observed."""

    def __init__(self, shape: tuple[int, ...] = ()) -> None:
        self._ring = np.full((REACH + 1, ANCHORS.size, *shape), np.nan)
        self._now = 0

    def keep(self, predicted: NDArray[np.float64]) -> None:
        """Keep the predictions made now, one row per anchor; called once per slot."""
        if predicted.shape != self._ring.shape[1:]:
            # New, larger counts make rows longer. Earlier predictions had no probability
            # above the largest count of their time.
            padding = [
                (0, 0),
                *((0, b - a) for a, b in zip(self._ring.shape[1:], predicted.shape, strict=True)),
            ]
            self._ring = np.pad(self._ring, padding, constant_values=1.0)
        self._ring[self._now % (REACH + 1)] = predicted
        self._now += 1

    def due(self) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """Return the predictions about the slot that is being observed, and their anchors."""
        due = _COLUMNS[self._now >= ANCHORS]
        made = (self._now - ANCHORS[due]) % (REACH + 1)
        return self._ring[made, due], due


class PriceErrors:
    """A point model of prices with the quantiles of its last errors.

    ``scaled`` errors are in units of the recent step size: intervals are narrow in calm times and
    wide in others.
    """

    def __init__(self, model: PointModel, *, scaled: bool = False) -> None:
        self._model, self._scaled = model, scaled
        self._errors = np.full((PRICE_ERRORS, ANCHORS.size), np.nan)
        self._pending, self._scales = Pending(), Pending()
        self._last: float | None = None
        self._step = 0.0
        self._seen = 0
        self._offsets: NDArray[np.float64] | None = None

    def observe(self, value: float, sisters: Sequence[float] = ()) -> None:  # noqa: ARG002
        """Learn from the price of a slot; called once per slot."""
        if self._last is not None:
            rate = max(1 / 40, 1 / (self._seen + 1))
            self._step += rate * (abs(value - self._last) - self._step)
        predicted, due = self._pending.due()
        scale, _ = self._scales.due()
        row = self._errors[self._seen % PRICE_ERRORS]
        row[due] = (value - predicted) / scale
        self._model.observe(value)
        self._last = value
        self._seen += 1
        self._pending.keep(self._model.point(REACH)[ANCHORS - 1])
        self._scales.keep(np.full(ANCHORS.size, self._scale()))
        self._offsets = None

    def predict(self, horizon: int) -> NDArray[np.float64]:
        """Return price quantiles for each of the next ``horizon`` slots."""
        if self._offsets is None:
            self._offsets = _quantiles(self._errors, self._seen) * self._scale()
        return self._model.point(horizon)[:, np.newaxis] + self._offsets[anchor_of(horizon)]

    def _scale(self) -> float:
        # Never zero: a price that was constant may move again.
        return max(self._step, 1e-4 * abs(self._last or 0.0), 1e-9) if self._scaled else 1.0


class CountErrors:
    """A point model of counts with the shares of its past errors; old errors fade.

    With ``split``, errors made at zero, at the largest count, and in between are kept apart,
    because at either end they go one way only. With little data the shares of all three are used.
    """

    def __init__(
        self,
        model: PointModel,
        *,
        memory: float = COUNT_MEMORY,
        split: bool = False,
        smoothing: float = 5.0,
    ) -> None:
        self._model = model
        self._keep = 1 - 1 / memory
        self._split, self._smoothing = split, smoothing
        self._top = 1
        self._weight = np.zeros((_WHERE if split else 1, ANCHORS.size, 3))
        self._pending, self._where = Pending(), Pending()
        self._last = 0

    def observe(self, value: float, sisters: Sequence[float] = ()) -> None:  # noqa: ARG002
        """Learn from the count of a slot; called once per slot."""
        count = round(value)
        if count > self._top:
            more = count - self._top
            self._weight = np.pad(self._weight, [(0, 0), (0, 0), (more, more)])
            self._top = count
        predicted, due = self._pending.due()
        where, _ = self._where.due()
        error = np.rint(count - predicted).astype(np.int64)
        self._weight[:, due] *= self._keep
        self._weight[where.astype(np.int64), due, error + self._top] += 1
        self._model.observe(value)
        self._last = count
        self._pending.keep(self._points(REACH)[ANCHORS - 1])
        self._where.keep(np.full(ANCHORS.size, float(self._now())))

    def predict(self, horizon: int) -> NDArray[np.float64]:
        """Return cumulative probabilities of the counts in each of the next ``horizon`` slots."""
        overall = self._weight.sum(axis=0)
        overall[:, self._top] += 1e-6  # before the first error, predict none
        overall /= overall.sum(axis=1, keepdims=True)
        weight = self._weight[self._now()] + self._smoothing * overall
        total = np.cumsum(weight if self._split else overall, axis=1)
        share = (total / total[:, -1:])[anchor_of(horizon)]
        point = self._points(horizon).astype(np.int64)
        place = np.arange(self._top + 1) - point[:, np.newaxis] + self._top
        cumulative = np.take_along_axis(share, place, axis=1)
        cumulative[:, -1] = 1.0
        return cumulative

    def _now(self) -> int:
        """Return which of the three places the last count is in; 0 without ``split``."""
        if not self._split:
            return 0
        return int(self._last > 0) + int(self._last >= self._top)

    def _points(self, horizon: int) -> NDArray[np.float64]:
        return np.clip(np.rint(self._model.point(horizon)), 0, self._top)


def _quantiles(errors: NDArray[np.float64], seen: int) -> NDArray[np.float64]:
    """Return the quantiles of each column at the levels of the grid; zero without errors."""
    ordered = np.sort(errors, axis=0)  # missing errors are last
    known = np.clip(seen - ANCHORS, 0, errors.shape[0])[:, np.newaxis]
    place = np.clip(GRID * (known + 1) - 1, 0, np.maximum(known - 1, 0))
    left = np.floor(place).astype(np.int64)
    right = np.minimum(left + 1, np.maximum(known - 1, 0))
    column = _COLUMNS[:, np.newaxis]
    low, high = ordered[left, column], ordered[right, column]
    return np.where(known > 0, low + (place - left) * (high - low), 0.0)
