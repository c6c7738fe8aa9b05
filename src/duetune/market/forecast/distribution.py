"""What a forecaster believes of one series: a whole distribution for every slot ahead.

Prices are quantiles at the levels of ``GRID``; counts are cumulative probabilities of 0, 1, ...,
the most seen. Both are arrays with one row per slot ahead.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, runtime_checkable

import msgspec
import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from collections.abc import Sequence

    from duetune.core.decision import Forecast, Paths
    from duetune.core.market import Slot

LEVELS = (0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95)
"""The quantiles that a forecast tells."""

_LOWER = (0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.45)
GRID = np.array([*_LOWER, 0.5, *(1 - level for level in reversed(_LOWER))])
"""The quantiles that a forecaster works with."""

PLACES = np.array([int(np.argmin(np.abs(GRID - level))) for level in LEVELS])
"""Where ``LEVELS`` are in ``GRID``."""

ANCHORS = np.array([1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48])
"""Slots ahead at which errors are kept; what lies between goes by the next longer one."""

REACH = int(ANCHORS[-1])


class Distribution(msgspec.Struct, frozen=True, eq=False):
    """Both series: ``prices`` are quantiles at ``GRID``, ``counts`` cumulative probabilities."""

    prices: NDArray[np.float64]
    counts: NDArray[np.float64]


@runtime_checkable
class SeriesModel(Protocol):
    """One series. ``sisters`` are the same moment's values of related series, in a fixed order."""

    def observe(self, value: float, sisters: Sequence[float] = ()) -> None: ...

    def predict(self, horizon: int) -> NDArray[np.float64]: ...


@runtime_checkable
class PointModel(Protocol):
    """One series, a single number for each slot ahead."""

    def observe(self, value: float) -> None: ...

    def point(self, horizon: int) -> NDArray[np.float64]: ...


@runtime_checkable
class DistributionForecaster(Protocol):
    """A ``Forecaster`` that also tells its distribution and draws futures from it."""

    def observe(self, slot: Slot, sisters: Sequence[Slot] = ()) -> None: ...

    def forecast(self, horizon: int) -> Forecast: ...

    def distribution(self, horizon: int) -> Distribution: ...

    def draw(self, horizon: int, count: int, random: np.random.Generator) -> Paths: ...


def anchor_of(horizon: int) -> NDArray[np.int64]:
    """The place in ``ANCHORS`` that each of the next ``horizon`` slots goes by."""
    places = np.searchsorted(ANCHORS, np.arange(1, horizon + 1))
    return np.minimum(places, ANCHORS.size - 1)


def widened(cumulative: NDArray[np.float64], top: int) -> NDArray[np.float64]:
    """The same distribution of counts, on 0, ..., ``top``."""
    missing = top + 1 - cumulative.shape[-1]
    if missing <= 0:
        return cumulative
    padding = [(0, 0)] * (cumulative.ndim - 1) + [(0, missing)]
    wide: NDArray[np.float64] = np.pad(cumulative, padding, constant_values=1.0)
    return wide


def count_quantiles(
    cumulative: NDArray[np.float64], levels: Sequence[float] | NDArray[np.float64]
) -> NDArray[np.float64]:
    """The least count that reaches each level: one row per level."""
    # Rounding must not make a certain count one more.
    short = cumulative < np.asarray(levels, dtype=np.float64)[:, np.newaxis, np.newaxis] - 1e-12
    most = cumulative.shape[1] - 1
    found: NDArray[np.float64] = np.minimum(short.sum(axis=2), most).astype(np.float64)
    return found


def count_means(cumulative: NDArray[np.float64]) -> NDArray[np.float64]:
    mean: NDArray[np.float64] = (1 - cumulative[:, :-1]).sum(axis=1)
    return mean


def price_at(quantiles: NDArray[np.float64], levels: NDArray[np.float64]) -> NDArray[np.float64]:
    """Quantiles at other levels, row by row; beyond the grid's ends the tails go on."""
    inside = np.clip(levels, GRID[0], GRID[-1])
    right = np.clip(np.searchsorted(GRID, inside, side="right"), 1, GRID.size - 1)
    left = right - 1
    share = (inside - GRID[left]) / (GRID[right] - GRID[left])
    below = np.take_along_axis(quantiles, left, axis=1)
    above = np.take_along_axis(quantiles, right, axis=1)
    middle = quantiles[:, GRID.size // 2, np.newaxis]
    found = below + share * (above - below)
    # A level as far outside again as the grid's last level is from the end: as wide again.
    beyond = np.abs(levels - inside) / GRID[0]
    stretched: NDArray[np.float64] = found + beyond * (found - middle)
    return stretched
