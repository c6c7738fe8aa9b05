"""How fast: physics fitted to history, and what trees learnt of its errors."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import numpy as np

from duetune.knowledge.estimate import EXTRAPOLATED
from duetune.knowledge.model.conformal import Widths, calibrated, held_out
from duetune.knowledge.model.features import Physics, Reckoned, feature_matrix
from duetune.knowledge.model.forest import Forest, constant_forest, grow_regression, sortable
from duetune.knowledge.model.least_squares import APART, grouped
from duetune.knowledge.model.pace_model import FACTORS, LAUNCH_FACTORS, LINK_FACTORS, fit_pace

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from duetune.knowledge.configurations.configuration import Configurations
    from duetune.knowledge.configurations.configuration_table import Described
    from duetune.knowledge.model.features import Labels
    from duetune.knowledge.model.pace_model import PaceModel

    Column = NDArray[np.float64]

TREES = 64
FOLD_TREES = 40
FEWEST = 20
"""With fewer rows the trees would learn noise: physics alone answers."""

FEWEST_FOR_WIDTHS = 10

TRANSFER = {"model": 0.25, "gpu_model": 0.5, "method": 0.3, "software": 0.2}
"""How far off (a logarithm, nine times of ten) a pace may be where a label was never seen, until
history has two labels to tell from.
"""


class Performance(msgspec.Struct, frozen=True, kw_only=True):
    """``labels`` are those seen, by field; ``transfer`` what to add where one was not."""

    forest: Forest
    widths: Widths
    seen: dict[str, frozenset[str]]
    transfer: dict[str, float]

    def unseen(self, rows: Configurations) -> NDArray[np.bool_]:
        """For each of ``EXTRAPOLATED``, where the row's label was never measured."""
        known = (rows.gather(field, self.seen[field].__contains__) for field in EXTRAPOLATED)
        return np.stack([column == 0 for column in known], axis=1)

    def tokens_per_s(
        self, reckoned: Reckoned, keys: NDArray[np.int32], unseen: NDArray[np.bool_]
    ) -> Column:
        """Low, middle and high for each row."""
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
    """Of rows that ``physics`` was fitted to. For the intervals it is fitted again without each
    fold, so that no row has helped to predict itself.
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
        told, spread = held_out(rows, seed, of_others)
        widths = calibrated(rows, target - told, spread)
    _, _, forest = grown(physics, np.arange(len(it)), TREES)
    return Performance(
        forest=forest,
        widths=widths,
        seen=seen,
        transfer=_transfer(it, tokens_per_s, physics.pace),
    )


def _transfer(it: Described, tokens_per_s: Column, pace: PaceModel) -> dict[str, float]:
    """How far off physics is for each label once all that was learnt of that label is forgotten."""
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
    def kept(learnt: Mapping[str, float], fields: Mapping[str, float]) -> dict[str, float]:
        result = {}
        for key, value in learnt.items():
            names, _, words = key.partition("=")
            told = dict(zip(names.split(", "), words.split(APART), strict=True))
            if names in fields and told.get(field) != label:
                result[key] = value
        return result

    return msgspec.structs.replace(
        pace,
        factors=kept(pace.factors, FACTORS),
        launch=kept(pace.launch, LAUNCH_FACTORS),
        link=kept(pace.link, LINK_FACTORS),
    )
