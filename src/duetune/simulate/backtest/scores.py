"""Scores of forecasts: loss, calibration, and whether a difference is more than chance.

Arrays of quantiles have one row per level and one column per forecast.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import msgspec
import numpy as np
from numpy.typing import NDArray

from duetune.errors import InvalidInput
from duetune.market.forecast.distribution import LEVELS

if TYPE_CHECKING:
    from collections.abc import Sequence


class Atoms(msgspec.Struct, frozen=True, eq=False):
    """For each actual value, the forecast probability of less (``lower``) and of at most it
    (``upper``).
    """

    lower: NDArray[np.float64]
    upper: NDArray[np.float64]


def at_levels(
    levels: Sequence[float],
    quantiles: NDArray[np.float64],
    wanted: Sequence[float] = LEVELS,
) -> NDArray[np.float64]:
    """Return the quantiles at the levels ``wanted``.

    They are interpolated between the known levels and constant beyond the outermost ones.
    """
    known = np.asarray(levels)
    upper = np.clip(np.searchsorted(known, np.asarray(wanted) - 1e-9), 0, len(known) - 1)
    lower = np.maximum(upper - 1, 0)
    gap = known[upper] - known[lower]
    share = np.where(gap > 0, (np.asarray(wanted) - known[lower]) / np.where(gap > 0, gap, 1.0), 1)
    share = np.clip(share, 0.0, 1.0)[:, np.newaxis]
    result: NDArray[np.float64] = (1 - share) * quantiles[lower] + share * quantiles[upper]
    return result


def pinball(quantiles: NDArray[np.float64], actual: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return each forecast's quantile loss, the mean over ``LEVELS``.

    For a point forecast this is half its absolute error.
    """
    level = np.asarray(LEVELS)[:, np.newaxis]
    error = actual - quantiles
    loss: NDArray[np.float64] = np.maximum(level * error, (level - 1) * error).mean(axis=0)
    return loss


def share_below(
    levels: Sequence[float],
    quantiles: NDArray[np.float64],
    actual: NDArray[np.float64],
    atoms: Atoms,
) -> NDArray[np.float64]:
    """Return in row i the probability with which each value counts as below its LEVELS[i] quantile.

    That is 0 or 1, unless the value has a probability of its own (an atom), as every count has. If
    the forecast puts the atom at cumulative probabilities F- to F and the level is in between, the
    value counts with the share (level - F-) / (F - F-). Correct forecasts are then below the 5%
    quantile in 5% of cases, and between the 5% and 95% quantiles in 90%, however coarse the counts
    are. Without it, ranges of counts would cover too much.
    """
    width = atoms.upper - atoms.lower
    level = np.asarray(LEVELS)[:, np.newaxis]
    cut = np.clip((level - atoms.lower) / np.where(width > 0, width, 1.0), 0.0, 1.0)
    # Without an atom a value is either below or not; the quantiles decide that.
    plain = (actual <= at_levels(levels, np.sort(quantiles, axis=0))).astype(np.float64)
    return np.where(width > 1e-12, cut, plain)


def atoms_read(
    levels: Sequence[float],
    quantiles: NDArray[np.float64],
    actual: NDArray[np.float64],
    *,
    certain: NDArray[np.bool_],
    step: float = 0.0,
    most: float = math.inf,
) -> Atoms:
    """Return the atoms of the actual values as far as the quantiles determine them.

    - Between two quantiles the distribution is linear.
    - Beyond the outermost levels it is unknown. A count gets half of the tail there; there is no
      probability below 0 or above ``most``.
    - A forecast that is ``certain`` has all its probability at its value.
    - ``step`` is 1 for counts. It is 0 for prices, which have atoms only where neighbouring
      quantiles are equal.
    """
    ordered = np.sort(quantiles, axis=0)
    upper = _cumulative(levels, ordered, actual, step / 2, below=False)
    lower = _cumulative(levels, ordered, actual, -step / 2, below=True)
    outside = 0.5 if step else 1.0
    known = np.asarray(levels)
    upper = np.where(np.isnan(upper), known[-1] + outside * (1 - known[-1]), upper)
    lower = np.where(np.isnan(lower), (1 - outside) * known[0], lower)
    # If a value is beyond all quantiles, both ends of its atom are in the same tail.
    upper = np.where(actual < ordered[0], lower, np.where(actual >= most, 1.0, upper))
    lower = np.where(actual > ordered[-1], upper, np.where(actual <= 0, 0.0, lower))
    exact = certain & (ordered[0] == actual) & (ordered[-1] == actual)
    return Atoms(lower=np.where(exact, 0.0, lower), upper=np.where(exact, 1.0, upper))


def _cumulative(
    levels: Sequence[float],
    ordered: NDArray[np.float64],
    actual: NDArray[np.float64],
    shift: float,
    *,
    below: bool,
) -> NDArray[np.float64]:
    """Return the forecast probability of at most (``below``: of less than) the actual values.

    It is NaN beyond the outermost level.
    """
    passed = ((ordered < actual) if below else (ordered <= actual)).sum(axis=0)
    inside = (passed > 0) & (passed < len(levels))
    column = np.arange(actual.size)
    after = np.clip(passed, 1, len(levels) - 1)
    left, right = ordered[after - 1, column], ordered[after, column]
    gap = np.where(right > left, right - left, 1.0)
    share = np.clip((actual + shift - left) / gap, 0.0, 1.0)
    known = np.asarray(levels)
    between = known[after - 1] + share * (known[after] - known[after - 1])
    return np.where(inside, between, np.nan)


def better_by_chance(
    differences: Sequence[NDArray[np.float64]], horizons: Sequence[int]
) -> float | None:
    """Return the two-sided p-value of the Diebold-Mariano test that two mean losses are equal.

    There is one series of loss differences per market, in order of time, and one number of slots
    ahead per series. Forecasts h slots ahead overlap, so their errors are correlated over h - 1
    slots. The variance of the mean includes those lags, with the small-sample correction and
    Student's t of Harvey, Leybourne and Newbold (1997). Markets are treated as independent. Returns
    None if all differences are zero.
    """
    from scipy.special import stdtr  # noqa: PLC0415 - takes a while to import

    count = sum(series.size for series in differences)
    total = sum(float(series.sum()) for series in differences)
    variance = 0.0
    for series, horizon in zip(differences, horizons, strict=True):
        size = series.size
        if size <= horizon:
            raise InvalidInput("forecasts", size, f"more forecasts than the {horizon} slots ahead")
        correction = (size - horizon) * (size - horizon + 1) / size**2
        variance += size * long_run_variance(series, horizon - 1) / correction
    if not any(series.any() for series in differences):
        return None
    if variance <= 0:
        return 0.0 if total else 1.0
    freedom = max(1, count - len(differences))
    return float(2 * stdtr(freedom, -abs(total) / math.sqrt(variance)))


def long_run_variance(series: NDArray[np.float64], lags: int) -> float:
    """Return the variance of the sum of a series per entry, with correlation over ``lags`` lags.

    The plain sum of covariances can be near or below zero by chance. So the result is at least the
    sum with Bartlett's weights and at least the variance without correlation.
    """
    centred = series - series.mean()
    size = series.size
    covariance = np.array([centred[: size - lag] @ centred[lag:] / size for lag in range(lags + 1)])
    weights = 1 - np.arange(1, lags + 1) / (lags + 1)
    plain = covariance[0] + 2 * covariance[1:].sum()
    return float(max(plain, covariance[0] + 2 * weights @ covariance[1:], covariance[0]))
