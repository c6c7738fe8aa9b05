"""Throughput: physics fitted to history, plus corrections that trees learn from its errors."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import numpy as np

from duetune.knowledge.estimate import EXTRAPOLATED
from duetune.knowledge.model.conformal import Widths, calibrated, held_out
from duetune.knowledge.model.features import Physics, Reckoned, feature_matrix
from duetune.knowledge.model.forest import Forest, constant_forest, grow_regression, sortable
from duetune.knowledge.model.least_squares import APART, grouped
from duetune.knowledge.model.pace_model import FACTORS, fit_pace

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from duetune.knowledge.configurations.configuration import Configurations
    from duetune.knowledge.configurations.configuration_table import Described
    from duetune.knowledge.model.features import Labels
    from duetune.knowledge.model.pace_model import PaceModel

    Column = NDArray[np.float64]

TREES = 64
FOLD_TREES = 40
FEWEST = 20
"""With fewer rows the trees would learn noise, so physics answers alone."""

FEWEST_FOR_WIDTHS = 10

TRANSFER = {"model": 0.25, "gpu_model": 0.5, "method": 0.3, "software": 0.2}
"""How far off (a logarithm, in 9 of 10 cases) a throughput may be for a label that was never seen.
Used until history has two labels to compare.
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
        known = (rows.gather(field, self.seen[field].__contains__) for field in EXTRAPOLATED)
        return np.stack([column == 0 for column in known], axis=1)

    def tokens_per_s(
        self, reckoned: Reckoned, keys: NDArray[np.int32], unseen: NDArray[np.bool_]
    ) -> Column:
        """Return low, middle and high throughput for each row."""
        correction, spread = self.forest.predict(keys)
        middle = np.log(reckoned.tokens_per_s) + correction
        half = self.widths.half_width(reckoned.it.configurations, spread)
        foreign = unseen @ np.array([self.transfer[field] for field in EXTRAPOLATED]) ** 2
        half = np.sqrt(half**2 + foreign)
        interval: Column = np.exp(np.stack([middle - half, middle, middle + half], axis=1))
        return interval


def fit_performance(
    it: Described,
    physics: Physics,
    labels: Labels,
    tokens_per_s: Column,
    weight: Column,
    *,
    seed: int,
) -> Performance:
    """Return the model for rows to which ``physics`` was fitted.

    For the intervals, physics is fitted again without each fold, so that no row helps to predict
    itself.
    """
    rows = it.configurations
    target = np.log(tokens_per_s)
    seen = {
        field: frozenset(
            rows.labels[field][code] for code in np.unique(rows.columns[field]).tolist()
        )
        for field in EXTRAPOLATED
    }
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

    def of_others(train: NDArray[np.int64], test: NDArray[np.int64]) -> tuple[Column, Column]:
        kept = np.zeros(len(it))
        kept[train] = weight[train]
        pace = fit_pace(it, tokens_per_s, kept, start=physics.pace)
        known = msgspec.structs.replace(physics, pace=pace)
        reckoned, matrix, forest = grown(known, train, FOLD_TREES)
        correction, spread = forest.predict(sortable(matrix[test]))
        return np.log(reckoned.tokens_per_s[test]) + correction, spread

    widths = Widths()
    if len(it) >= FEWEST_FOR_WIDTHS:
        predicted, spread = held_out(rows, seed, of_others)
        widths = calibrated(rows, target - predicted, spread)
    _, _, forest = grown(physics, np.arange(len(it)), TREES)
    return Performance(
        forest=forest,
        widths=widths,
        seen=seen,
        transfer=_transfer(it, tokens_per_s, physics.pace),
    )


def _transfer(it: Described, tokens_per_s: Column, pace: PaceModel) -> dict[str, float]:
    """Return how far off physics is for each label if everything learned about that label is
    removed.
    """
    found = dict(TRANSFER)
    for field in EXTRAPOLATED:
        rows = it.configurations
        (group,) = grouped(rows, {field: 0.0})
        if len(group.keys) < 2:
            continue
        errors = []
        for code, key in enumerate(group.keys):
            forgetful = _forgetting(pace, field, key.removeprefix(f"{field}="))
            mine = group.codes == code
            apart = np.log(tokens_per_s[mine]) - np.log(forgetful.tokens_per_s(it)[mine])
            errors.append(float(np.quantile(np.abs(apart), 0.9)))
        found[field] = max(0.05, float(np.median(errors)))
    return found


def _forgetting(pace: PaceModel, field: str, label: str) -> PaceModel:
    """Return the model without the factors of one label."""

    def kept(key: str) -> bool:
        names, _, words = key.partition("=")
        return dict(zip(names.split(", "), words.split(APART), strict=True)).get(field) != label

    learnt = {name: getattr(pace, name) for name in FACTORS}
    remaining = {
        name: {key: value for key, value in factors.items() if kept(key)}
        for name, factors in learnt.items()
    }
    return msgspec.structs.replace(pace, **remaining)
