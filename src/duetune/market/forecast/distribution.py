"""Probability forecasts: a distribution for every slot ahead, and futures drawn from it.

Prices are quantiles at the levels of ``GRID``. Counts are cumulative probabilities of 0, 1, ...,
the largest count observed. Both are arrays with one row per slot ahead.

A distribution describes each slot separately. ``draw_paths`` takes the dependence between slots
from the past: it picks as many past stretches as futures are wanted, begun when the market was as
it is now, and gives their ranks in every slot to values drawn for that slot (the Schaake shuffle:
Clark et al., 2004).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, runtime_checkable

import msgspec
import numpy as np
from numpy.typing import NDArray

from duetune.core.decision import Paths

if TYPE_CHECKING:
    from collections.abc import Sequence

    from duetune.core.decision import Forecast
    from duetune.core.market import Slot


LEVELS = (0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95)
"""The levels of the quantiles in a forecast."""

_LOWER = (0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.45)
GRID = np.array([*_LOWER, 0.5, *(1 - level for level in reversed(_LOWER))])
"""The levels of the quantiles that forecasters compute with."""

PLACES = np.array([int(np.argmin(np.abs(GRID - level))) for level in LEVELS])
"""The indices of ``LEVELS`` in ``GRID``."""

ANCHORS = np.array([1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48])
"""Slots ahead at which errors are kept; other distances use the next longer one."""

REACH = int(ANCHORS[-1])


class Distribution(msgspec.Struct, frozen=True, eq=False):
    """The distributions of both series: ``prices`` at ``GRID``, ``counts`` cumulative."""

    prices: NDArray[np.float64]
    counts: NDArray[np.float64]


@runtime_checkable
class SeriesModel(Protocol):
    """A model of one series.

    ``sisters`` are the values of related series at the same time, in a fixed order.
    """

    def observe(self, value: float, sisters: Sequence[float] = ()) -> None:
        """Learn from the value of a slot; called once per slot."""

    def predict(self, horizon: int) -> NDArray[np.float64]:
        """Return a distribution for each of the next ``horizon`` slots."""


@runtime_checkable
class PointModel(Protocol):
    """A model of one series that predicts a single number for each slot ahead."""

    def observe(self, value: float) -> None:
        """Learn from the value of a slot; called once per slot."""

    def point(self, horizon: int) -> NDArray[np.float64]:
        """Return one number for each of the next ``horizon`` slots."""


@runtime_checkable
class DistributionForecaster(Protocol):
    """A ``Forecaster`` that also gives its distribution and draws futures from it."""

    def observe(self, slot: Slot, sisters: Sequence[Slot] = ()) -> None:
        """Learn from a slot and from other pools at the same time; called once per slot."""

    def forecast(self, horizon: int) -> Forecast:
        """Return the next ``horizon`` slots with quantiles."""

    def distribution(self, horizon: int) -> Distribution:
        """Return the distribution of each of the next ``horizon`` slots."""

    def draw(self, horizon: int, count: int, random: np.random.Generator) -> Paths:
        """Return ``count`` random futures of ``horizon`` slots."""


def anchor_of(horizon: int) -> NDArray[np.int64]:
    """Return the index in ``ANCHORS`` that each of the next ``horizon`` slots uses."""
    places = np.searchsorted(ANCHORS, np.arange(1, horizon + 1))
    return np.minimum(places, ANCHORS.size - 1)


def widened(cumulative: NDArray[np.float64], top: int) -> NDArray[np.float64]:
    """Return the same distribution of counts, on 0, ..., ``top``."""
    missing = top + 1 - cumulative.shape[-1]
    if missing <= 0:
        return cumulative
    padding = [(0, 0)] * (cumulative.ndim - 1) + [(0, missing)]
    wide: NDArray[np.float64] = np.pad(cumulative, padding, constant_values=1.0)
    return wide


def count_quantiles(
    cumulative: NDArray[np.float64], levels: Sequence[float] | NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return the smallest count that reaches each level: one row per level."""
    # With tolerance, so that rounding does not raise a certain count by one.
    short = cumulative < np.asarray(levels, dtype=np.float64)[:, np.newaxis, np.newaxis] - 1e-12
    most = cumulative.shape[1] - 1
    found: NDArray[np.float64] = np.minimum(short.sum(axis=2), most).astype(np.float64)
    return found


def count_means(cumulative: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the mean count of each slot ahead."""
    mean: NDArray[np.float64] = (1 - cumulative[:, :-1]).sum(axis=1)
    return mean


def price_at(quantiles: NDArray[np.float64], levels: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return quantiles at other levels, row by row; tails extend beyond the grid."""
    inside = np.clip(levels, GRID[0], GRID[-1])
    right = np.clip(np.searchsorted(GRID, inside, side="right"), 1, GRID.size - 1)
    left = right - 1
    share = (inside - GRID[left]) / (GRID[right] - GRID[left])
    below = np.take_along_axis(quantiles, left, axis=1)
    above = np.take_along_axis(quantiles, right, axis=1)
    middle = quantiles[:, GRID.size // 2, np.newaxis]
    found = below + share * (above - below)
    # Beyond the grid, the tail grows in proportion to the distance from its last level.
    beyond = np.abs(levels - inside) / GRID[0]
    stretched: NDArray[np.float64] = found + beyond * (found - middle)
    return stretched


REMEMBERED = 2048


class PastSeries:
    """The last slots of both series."""

    def __init__(self) -> None:
        self._rows = np.zeros((2, REMEMBERED))
        self._seen = 0

    def observe(self, slot: Slot) -> None:
        """Remember a slot; called once per slot."""
        self._rows[:, self._seen % REMEMBERED] = slot.spot_price, slot.available
        self._seen += 1

    def rows(self) -> NDArray[np.float64]:
        """Return prices and counts, oldest first."""
        if self._seen <= REMEMBERED:
            return self._rows[:, : self._seen]
        return np.roll(self._rows, -(self._seen % REMEMBERED), axis=1)


def draw_paths(
    distribution: Distribution, past: PastSeries, count: int, random: np.random.Generator
) -> Paths:
    """Return ``count`` futures that are as long as the distribution."""
    horizon = distribution.prices.shape[0]
    price_ranks, count_ranks = _ranks(past.rows(), horizon, count, random)
    return Paths(
        spot_price=_prices(distribution.prices, _levels(price_ranks, random)),
        available=_counts(distribution.counts, _levels(count_ranks, random)),
    )


def _ranks(
    rows: NDArray[np.float64], horizon: int, count: int, random: np.random.Generator
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the rank of each future among all futures in each slot, for prices and for counts."""
    begins = rows.shape[1] - horizon
    if begins < 1 or not count or not horizon:
        # Too little past: each future keeps its rank in all slots.
        order = np.tile(random.permutation(count)[:, np.newaxis], (1, horizon))
        return order, order
    distance = np.abs(rows[1, :begins] - rows[1, -1])
    nearest = np.argsort(distance + random.random(begins) * 1e-6, kind="stable")
    alike = nearest[: max(1, min(begins, max(count, begins // 4)))]
    chosen = alike[random.permutation(max(count, alike.size))[:count] % alike.size]
    stretch = chosen[:, np.newaxis] + np.arange(1, horizon + 1)
    moves = rows[:, stretch] - rows[:, chosen][:, :, np.newaxis]
    moves[1] = rows[1][stretch]
    # Equal values get an order that each future keeps from slot to slot.
    luck = random.permutation(count)
    ranks = [
        np.argsort(np.lexsort((np.tile(luck[:, np.newaxis], (1, horizon)), move), axis=0), axis=0)
        for move in moves
    ]
    return ranks[0], ranks[1]


def _levels(ranks: NDArray[np.int64], random: np.random.Generator) -> NDArray[np.float64]:
    """Return a random level within the range of each rank."""
    count, horizon = ranks.shape
    spread: NDArray[np.float64] = (ranks + random.random((count, horizon))) / max(count, 1)
    return spread


def _prices(quantiles: NDArray[np.float64], levels: NDArray[np.float64]) -> NDArray[np.float64]:
    drawn = price_at(quantiles, np.ascontiguousarray(levels.T)).T
    # Clipped to the outermost quantiles, which also keeps prices from going below zero.
    return np.ascontiguousarray(np.clip(drawn, quantiles[:, 0], quantiles[:, -1]))


def _counts(cumulative: NDArray[np.float64], levels: NDArray[np.float64]) -> NDArray[np.int64]:
    drawn = np.empty(levels.shape, dtype=np.int64)
    for ahead in range(levels.shape[1]):
        row = cumulative[ahead : ahead + 1]
        drawn[:, ahead] = count_quantiles(row, levels[:, ahead])[:, 0].astype(np.int64)
    return drawn
