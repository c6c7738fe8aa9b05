"""Intervals that cover as often as they claim (split conformal prediction).

The widths come from errors of models that had not seen the row.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from duetune.knowledge.configurations.configuration import FIELDS
from duetune.knowledge.estimate import seen_words, unseen_in
from duetune.knowledge.model.least_squares import grouped

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from duetune.knowledge.configurations.configuration import Configurations

    Column = NDArray[np.float64]

FOLDS = 8
COVERAGE = 0.9
PSEUDO_ROWS = 5.0
"""In the quantile of one GPU, all other GPUs together count as this many errors."""

UNCALIBRATED = 0.35
"""Half-width of the logarithm if there are too few measurements to calibrate."""

WIDEST = math.log(10.0)
"""Maximum half-width: a factor of ten; a wider interval says nothing."""

_ENOUGH = 8
CAMPAIGN_FOLDS = 4
ENOUGH_OF_CAMPAIGNS = 30
"""Fewest rows of held-out campaigns from which widths are corrected."""


class Widths(msgspec.Struct, frozen=True, kw_only=True):
    """How wide intervals are.

    - ``overall``, ``by_gpu``: the half-width as a multiple of the trees' spread, for all GPUs and
      for
    each one; None if it was not calibrated.
    - ``floor``: the minimum spread, for trees that agree by chance.
    - ``least``: the minimum half-width, because equal runs differ from day to day.
    """

    floor: float = 0.0
    least: float = 0.0
    overall: float | None = None
    by_gpu: dict[str, float] = {}

    def half_width(self, rows: Configurations, spread: Column) -> Column:
        """Return the half-width of the logarithm for each row."""
        usual = self.overall
        if usual is None:
            return np.full(len(rows), UNCALIBRATED)
        times = rows.gather("gpu_model", lambda word: self.by_gpu.get(word, usual))
        return np.clip(times * np.hypot(spread, self.floor), self.least, WIDEST)


def calibrated(rows: Configurations, error: Column, spread: Column) -> Widths:
    """Return widths from errors (of logarithms) on held-out rows and the spread of the trees
    there.
    """
    if len(error) < _ENOUGH:
        return Widths()
    floor = max(1e-3, 0.5 * float(np.median(np.abs(error))))
    score = np.abs(error) / np.hypot(spread, floor)
    overall = _quantile(score, np.ones(len(score)))
    by_gpu = {}
    codes = rows.columns["gpu_model"]
    for code in np.unique(codes).tolist():
        mine = codes == code
        others = int(np.count_nonzero(~mine))
        weight = np.where(mine, 1.0, PSEUDO_ROWS / max(others, 1))
        by_gpu[rows.labels["gpu_model"][code]] = _quantile(score, weight)
    return Widths(floor=floor, overall=overall, by_gpu=by_gpu)


def _quantile(score: Column, weight: Column) -> float:
    """Return the conformal quantile, in which a new score counts as larger than all others."""
    order = np.argsort(score, kind="stable")
    total = np.cumsum(weight[order])
    return float(np.interp(COVERAGE * (total[-1] + 1.0), total, score[order]))


def held_out(
    rows: Configurations,
    seed: int,
    fit_predict: Callable[[NDArray[np.int64], NDArray[np.int64]], Sequence[Column]],
) -> list[Column]:
    """Return the predictions of models that had not seen the configuration of each row.

    ``fit_predict(train, test)`` returns columns for the test rows; they are combined over the
    folds. All runs of a configuration are held out together, because each would help to predict the
    others.
    """
    kind = _kinds(rows)
    kinds = int(kind.max()) + 1
    order = np.random.default_rng(seed).permutation(kinds)
    whole: list[Column] = []
    for part in np.array_split(order, min(FOLDS, max(2, kinds))):
        if not len(part):
            continue
        inside = np.isin(kind, part)
        test = np.flatnonzero(inside)
        predicted = fit_predict(np.flatnonzero(~inside), test)
        if not whole:
            whole = [np.full(len(rows), math.nan) for _ in predicted]
        for column, values in zip(whole, predicted, strict=True):
            column[test] = values
    return whole


def widened(
    widths: Widths,
    rows: Configurations,
    target: Column,
    campaign: NDArray[np.int64],
    fit_predict: Callable[[NDArray[np.int64], NDArray[np.int64]], Sequence[Column]],
    drift: float,
) -> Widths:
    """Return widths that also cover runs of another day as often as they claim.

    Whole campaigns are held out. Their rows count if all that ``EXTRAPOLATED`` names was measured
    in other campaigns too; the rest has wider intervals anyway. Without such rows the half-width is
    at least ``drift``. Rows whose ``target`` is NaN were not measured.
    """
    if widths.overall is None:
        return widths
    least = _repeated(rows, target, campaign)
    known = np.isfinite(target)
    numbers = np.unique(campaign[known])
    scores: list[Column] = []
    folds = np.array_split(numbers, min(CAMPAIGN_FOLDS, len(numbers))) if len(numbers) > 1 else []
    for part in folds:
        inside = np.isin(campaign, part)
        train = np.flatnonzero(~inside)
        test = np.flatnonzero(inside & known)
        strange = unseen_in(rows.take(test), seen_words(rows.take(train))).any(axis=1)
        test = test[~strange]
        if len(test) < _ENOUGH or np.count_nonzero(known[train]) < _ENOUGH:
            continue
        predicted, spread = fit_predict(train, test)
        half = widths.half_width(rows.take(test), spread)
        scores.append(np.abs(target[test] - predicted) / half)
    found = np.concatenate(scores) if scores else np.zeros(0)
    if len(found) < ENOUGH_OF_CAMPAIGNS:
        return msgspec.structs.replace(widths, least=drift if least is None else least)
    times = max(1.0, _quantile(found, np.ones(len(found))))
    return msgspec.structs.replace(
        widths,
        least=least or 0.0,
        overall=times * widths.overall,
        by_gpu={name: times * each for name, each in widths.by_gpu.items()},
    )


def _repeated(rows: Configurations, target: Column, campaign: NDArray[np.int64]) -> float | None:
    """Return how far apart equal configurations of two campaigns are in 9 of 10 cases, as the
    half-width around either; None if too few were measured twice.
    """
    kind = _kinds(rows)
    order = np.lexsort((campaign, kind))
    order = order[np.isfinite(target[order])]
    first, second = order[:-1], order[1:]
    again = (kind[first] == kind[second]) & (campaign[first] != campaign[second])
    apart = np.abs(target[first[again]] - target[second[again]])
    return float(np.quantile(apart, COVERAGE)) if len(apart) >= _ENOUGH else None


def _kinds(rows: Configurations) -> NDArray[np.int64]:
    """Return a number for each row, the same for equal configurations, in the order of
    appearance.
    """
    (alike,) = grouped(rows, {", ".join(FIELDS): 0.0})
    _, first, codes = np.unique(alike.codes, return_index=True, return_inverse=True)
    numbers: NDArray[np.int64] = np.argsort(np.argsort(first))[codes]
    return numbers
