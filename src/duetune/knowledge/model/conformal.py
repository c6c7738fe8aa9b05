"""Intervals that cover as often as they claim (split conformal prediction).

The widths come from errors of models that had not seen the row, nor any other row of its campaign
where there are enough campaigns: runs of one day err together.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

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
FEWEST_CAMPAIGNS = 3
"""Fewest campaigns that are held out whole. The largest may have half of all rows."""

PSEUDO_ROWS = 5.0
"""In the quantile of one kind of run, all others together count as this many errors."""

UNCALIBRATED = 0.35
"""Half-width of the logarithm if there are too few measurements to calibrate."""

WIDEST = math.log(10.0)
"""Maximum half-width: a factor of ten; a wider interval says nothing."""

KIND = "gpu_model, software"
"""Runs that are equal in these fields have errors alike."""

_ENOUGH = 8
_ENOUGH_FOR_LINE = 40
"""Fewest errors from which a noise that depends on the exposure is estimated."""


class Width(msgspec.Struct, frozen=True, kw_only=True):
    """How wide the intervals of one kind of run are.

    - ``floor``: the minimum spread, for trees that agree by chance.
    - ``drift``: what is added to it for a row that is exposed altogether.
    - ``times``: the half-width as a multiple of the spread.
    """

    floor: float
    drift: float = 0.0
    times: float = 1.0


class Widths(msgspec.Struct, frozen=True, kw_only=True):
    """How wide intervals are.

    - ``usual``, ``by_kind``: the width for all runs, and for each ``KIND``; None if it was not
      calibrated.
    - ``least``: the minimum half-width, if no campaign could be held out: equal runs differ from
      day to day.
    """

    least: float = 0.0
    usual: Width | None = None
    by_kind: dict[str, Width] = {}

    def half_width(
        self, rows: Configurations, spread: Column | float, exposure: Column | float = 0.0
    ) -> Column:
        """Return the half-width of the logarithm for each row.

        ``spread`` is how far the trees are apart; 0 for a value that was measured. ``exposure``
        says from 0 to 1 how much a row depends on what differs from day to day.
        """
        if self.usual is None:
            return np.full(len(rows), UNCALIBRATED)
        (group,) = grouped(rows, {KIND: 0.0})
        found = [self.by_kind.get(key, self.usual) for key in group.keys]

        def column(values: list[float]) -> Column:
            return np.array(values)[group.codes]

        floor, drift, times = (
            column([each.floor for each in found]),
            column([each.drift for each in found]),
            column([each.times for each in found]),
        )
        half: Column = times * np.hypot(spread, floor + drift * exposure)
        return np.clip(half, self.least, WIDEST)


class HeldOut(NamedTuple):
    """Predictions of models that had not seen the row.

    - ``columns``: what was predicted, one number per row.
    - ``fair``: rows of which everything that ``EXTRAPOLATED`` names was in the other folds; the
      rest has wider intervals anyway.
    - ``other_days``: whether whole campaigns were held out.
    """

    columns: list[Column]
    fair: NDArray[np.bool_]
    other_days: bool


def held_out(
    rows: Configurations,
    seed: int,
    fit_predict: Callable[[NDArray[np.int64], NDArray[np.int64]], Sequence[Column]],
    campaign: NDArray[np.int64] | None = None,
) -> HeldOut:
    """Return predictions by models that had not seen the campaign of each row, or at least not its
    configuration.

    ``fit_predict(train, test)`` returns columns for the test rows; they are combined over the
    folds. Campaigns are held out if there are enough of them. Otherwise all runs of a configuration
    are held out together, because each would help to predict the others.
    """
    sizes = np.bincount(campaign) if campaign is not None and len(rows) else np.zeros(1, np.int64)
    other_days = len(sizes) >= FEWEST_CAMPAIGNS and 2 * int(sizes.max()) <= len(rows)
    group = campaign if campaign is not None and other_days else _kinds(rows)
    groups = int(group.max()) + 1
    order = np.random.default_rng(seed).permutation(groups)
    whole: list[Column] = []
    fair = np.ones(len(rows), np.bool_)
    for part in np.array_split(order, min(FOLDS, max(2, groups))):
        if not len(part):
            continue
        inside = np.isin(group, part)
        train, test = np.flatnonzero(~inside), np.flatnonzero(inside)
        predicted = fit_predict(train, test)
        if not whole:
            whole = [np.full(len(rows), math.nan) for _ in predicted]
        for column, values in zip(whole, predicted, strict=True):
            column[test] = values
        if other_days:
            known = seen_words(rows.take(train))
            fair[test] = ~unseen_in(rows.take(test), known).any(axis=1)
    return HeldOut(whole, fair, other_days)


def calibrated(
    rows: Configurations,
    error: Column,
    spread: Column,
    exposure: Column | None = None,
    *,
    least: float = 0.0,
) -> Widths:
    """Return widths from errors (of logarithms) on held-out rows and the spread of the trees there.

    ``exposure`` is that of ``Widths.half_width``, and ``least`` the minimum half-width.
    """
    if len(error) < _ENOUGH:
        return Widths()
    size = np.abs(error)
    exposure = np.zeros(len(size)) if exposure is None else exposure
    line = _noise(size, exposure)
    score = size / np.hypot(spread, line.floor + line.drift * exposure)
    usual = msgspec.structs.replace(line, times=_quantile(score, np.ones(len(score))))
    by_kind = {}
    (group,) = grouped(rows, {KIND: 0.0})
    for code, key in enumerate(group.keys):
        mine = group.codes == code
        own = _noise(size[mine], exposure[mine]) if mine.sum() >= _ENOUGH_FOR_LINE else line
        score = size / np.hypot(spread, own.floor + own.drift * exposure)
        weight = np.where(mine, 1.0, PSEUDO_ROWS / max(int(np.count_nonzero(~mine)), 1))
        by_kind[key] = msgspec.structs.replace(own, times=_quantile(score, weight))
    return Widths(usual=usual, by_kind=by_kind, least=least)


def _noise(size: Column, exposure: Column) -> Width:
    """Return the usual error as a line over the exposure, through the medians of its two halves."""
    high = exposure > 0.5
    counts = np.count_nonzero(high), np.count_nonzero(~high)
    if min(counts) < _ENOUGH_FOR_LINE / 2:
        return Width(floor=max(1e-3, 0.5 * float(np.median(size))))
    low, top = float(np.median(size[~high])), float(np.median(size[high]))
    left, right = float(exposure[~high].mean()), float(exposure[high].mean())
    drift = max(0.0, (top - low) / (right - left))
    return Width(floor=max(1e-3, 0.25 * low, low - drift * left), drift=drift)


def _quantile(score: Column, weight: Column) -> float:
    """Return the conformal quantile, in which a new score counts as larger than all others."""
    order = np.argsort(score, kind="stable")
    total = np.cumsum(weight[order])
    return float(np.interp(COVERAGE * (total[-1] + 1.0), total, score[order]))


def _kinds(rows: Configurations) -> NDArray[np.int64]:
    """Return a number for each row, the same for equal configurations, in the order of
    appearance.
    """
    (alike,) = grouped(rows, {", ".join(FIELDS): 0.0})
    _, first, codes = np.unique(alike.codes, return_index=True, return_inverse=True)
    numbers: NDArray[np.int64] = np.argsort(np.argsort(first))[codes]
    return numbers
