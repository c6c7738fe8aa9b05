"""Throughput: physics fitted to history, plus corrections that trees learn from its errors."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import numpy as np

from duetune.knowledge.estimate import seen_words, unseen_in
from duetune.knowledge.model import extrapolation
from duetune.knowledge.model.conformal import Widths, calibrated, held_out
from duetune.knowledge.model.extrapolation import foreign, transfers
from duetune.knowledge.model.features import Physics, Reckoned, feature_matrix
from duetune.knowledge.model.forest import Forest, constant_forest, grow_regression, sortable
from duetune.knowledge.model.pace_model import FACTORS, fit_pace

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from duetune.knowledge.configurations.configuration import Configurations
    from duetune.knowledge.configurations.configuration_table import Described
    from duetune.knowledge.model.features import Labels

    Column = NDArray[np.float64]

TREES = 64
FOLD_TREES = 16
FEWEST = 20
"""With fewer rows the trees would learn noise, so physics answers alone."""

FEWEST_FOR_WIDTHS = 10

DRIFT = 0.08
"""Least half-width (a logarithm) while no campaign can be held out: runs of another day differ by
more than runs of one process.
"""


class Performance(msgspec.Struct, frozen=True, kw_only=True):
    """The fitted throughput model.

    - ``forest``: correction of the logarithm of physics.
    - ``widths``: widths of the intervals.
    - ``seen``: measured labels by field.
    - ``transfer``: extra width if the label of a field was not measured.
    """

    forest: Forest
    widths: Widths
    seen: dict[str, frozenset[str]]
    transfer: dict[str, float]

    def unseen(self, rows: Configurations) -> NDArray[np.bool_]:
        """Return for each of ``EXTRAPOLATED`` where the row's label was never measured."""
        return unseen_in(rows, self.seen)

    def tokens_per_s(
        self, reckoned: Reckoned, keys: NDArray[np.int32], unseen: NDArray[np.bool_] | Column
    ) -> Column:
        """Return low, middle and high throughput for each row.

        ``unseen`` has a column for each of ``EXTRAPOLATED``; a share widens by that share.
        """
        correction, spread = self.forest.predict(keys)
        middle = np.log(reckoned.tokens_per_s) + correction
        half = self.widths.half_width(reckoned.it.configurations, spread, reckoned.launched)
        half = np.hypot(half, foreign(unseen, self.transfer))
        interval: Column = np.exp(np.stack([middle - half, middle, middle + half], axis=1))
        return interval


def fit_performance(
    it: Described,
    physics: Physics,
    labels: Labels,
    tokens_per_s: Column,
    weight: Column,
    campaign: NDArray[np.int64],
    *,
    seed: int,
) -> Performance:
    """Return the model for rows to which ``physics`` was fitted.

    For the intervals, physics is fitted again without each ``campaign``, because later questions
    are about runs of another day; with few campaigns, without each part of the configurations.
    """
    rows = it.configurations
    target = np.log(tokens_per_s)
    few = len(it) < FEWEST

    def grown(
        known: Physics, train: NDArray[np.int64], trees: int
    ) -> tuple[Reckoned, NDArray[np.float32], Forest]:
        reckoned = Reckoned(it, known)
        matrix = feature_matrix(reckoned, labels)
        if few:
            return reckoned, matrix, constant_forest(0.0)
        error = target - np.log(reckoned.tokens_per_s)
        forest = grow_regression(matrix[train], error[train], weight[train], trees=trees, seed=seed)
        return reckoned, matrix, forest

    def of_others(train: NDArray[np.int64], test: NDArray[np.int64]) -> tuple[Column, ...]:
        kept = np.zeros(len(it))
        kept[train] = weight[train]
        pace = fit_pace(it, tokens_per_s, kept, start=physics.pace)
        known = msgspec.structs.replace(physics, pace=pace)
        reckoned, matrix, forest = grown(known, train, FOLD_TREES)
        correction, spread = forest.predict(sortable(matrix[test]))
        return np.log(reckoned.tokens_per_s[test]) + correction, spread, reckoned.launched[test]

    widths = Widths()
    if len(it) >= FEWEST_FOR_WIDTHS:
        (predicted, spread, launched), fair, other_days = held_out(rows, seed, of_others, campaign)
        widths = calibrated(
            rows.take(fair),
            (target - predicted)[fair],
            spread[fair],
            launched[fair],
            least=0.0 if other_days else DRIFT,
        )
    _, _, forest = grown(physics, np.arange(len(it)), TREES)
    return Performance(
        forest=forest,
        widths=widths,
        seen=seen_words(rows),
        transfer=transfers(
            rows,
            physics.pace,
            FACTORS,
            lambda pace: target - np.log(pace.tokens_per_s(it)),
            extrapolation.PACE,
        ),
    )
