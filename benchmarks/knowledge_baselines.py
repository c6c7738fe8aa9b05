"""The predictors that are judged: duetune's model, its physics alone, and plain learners."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import numpy as np
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.neighbors import KNeighborsRegressor

from duetune.knowledge.configurations.configuration import CATEGORIES
from duetune.knowledge.configurations.configuration_rules import broken
from duetune.knowledge.estimate import Estimates
from duetune.knowledge.model.learned_model import KnowledgeModel
from duetune.knowledge.observation import RunOutcome
from duetune.knowledge.sources.analytic import AnalyticSource
from duetune.knowledge.sources.learned import HybridSource

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from duetune.knowledge.configurations.configuration import Configurations
    from duetune.knowledge.history import History

    Estimator = Callable[[Configurations], Estimates]

FIELDS = (
    *("model", "method", "gpu_model", "precision", "num_gpus", "num_nodes", "batch_size"),
    *("tokens_per_sample", "grad_checkpoint", "attention", "optimiser", "lora_rank"),
    *("fast_moe", "fast_kernels", "memory_cap_gb", "software"),
)
NEIGHBOURS = 3


class Columns:
    """Configurations as plain learners see them: words as numbers, numbers as they are."""

    def __init__(self, rows: Configurations) -> None:
        self._words = {
            field: {word: number for number, word in enumerate(sorted(set(rows.words(field))))}
            for field in FIELDS
            if field in CATEGORIES
        }

    def matrix(self, rows: Configurations) -> NDArray[np.float64]:
        """Return the rows as numbers, -1 for a word that was not seen."""
        return np.stack(
            [
                rows.gather(field, lambda word, known=self._words[field]: known.get(word, -1))
                if field in CATEGORIES
                else rows.number(field)
                for field in FIELDS
            ],
            axis=1,
        )

    def spread(self, rows: Configurations) -> NDArray[np.float64]:
        """Return columns for distances: one per word, and logarithms of numbers."""
        columns = []
        for field in FIELDS:
            if field in CATEGORIES:
                columns.extend(2.0 * rows.is_(field, word) for word in self._words[field])
            else:
                columns.append(np.log2(1.0 + rows.number(field)))
        return np.stack(columns, axis=1)


def boosting(history: History, *, logarithm: bool) -> Estimator:
    """Fit gradient boosting on the plain fields: a regression without physics."""
    columns = Columns(history.configurations)
    matrix = columns.matrix(history.configurations)
    pace, known, labelled, valid = _targets(history)
    words = [field in CATEGORIES for field in FIELDS]
    settings = {"categorical_features": words, "min_samples_leaf": 2, "random_state": 0}
    regression = classification = None
    if known.sum() > 1:
        target = np.log(pace[known]) if logarithm else pace[known]
        regression = HistGradientBoostingRegressor(max_iter=300, **settings)
        regression.fit(_unseen(matrix[known]), target)
    if len(np.unique(valid[labelled])) > 1:
        classification = HistGradientBoostingClassifier(**settings)
        classification.fit(_unseen(matrix[labelled]), valid[labelled])

    def estimate(rows: Configurations) -> Estimates:
        seen = _unseen(columns.matrix(rows))
        middle = np.full(len(rows), np.nan)
        if regression is not None:
            said = regression.predict(seen)
            middle = np.exp(said) if logarithm else np.maximum(said, 1.0)
        likely = np.ones(len(rows))
        if classification is not None:
            likely = classification.predict_proba(seen)[:, 1]
        return _estimates(rows, middle, likely)

    return estimate


def nearest(history: History) -> Estimator:
    """Fit nearest neighbours: the mean pace per GPU of the nearest runs, weighted by distance."""

    columns = Columns(history.configurations)
    matrix = columns.spread(history.configurations)
    pace, known, labelled, valid = _targets(history)
    each = np.log(pace / history.configurations.number("num_gpus"))
    parts = []
    for mask, target in ((known, each), (labelled, valid.astype(np.float64))):
        count = min(NEIGHBOURS, int(mask.sum()))
        learner = KNeighborsRegressor(count, weights="distance") if count else None
        parts.append(learner and learner.fit(matrix[mask], target[mask]))

    def estimate(rows: Configurations) -> Estimates:
        place = columns.spread(rows)
        middle = np.full(len(rows), np.nan)
        if parts[0]:
            middle = np.exp(parts[0].predict(place)) * rows.number("num_gpus")
        likely = parts[1].predict(place) if parts[1] else np.full(len(rows), 0.5)
        return _estimates(rows, middle, likely)

    return estimate


def rules_only(_history: History) -> Estimator:
    """Call everything valid that breaks no rule."""
    return lambda rows: _estimates(rows, np.full(len(rows), np.nan), np.ones(len(rows)))


@functools.lru_cache(maxsize=2)
def _model(history: History, *, quarantine: bool) -> KnowledgeModel:
    return KnowledgeModel.fit(history, quarantine=quarantine)


def hybrid(history: History) -> Estimator:
    """Fit the source that duetune answers with."""
    return HybridSource(history, model=_model(history, quarantine=True)).query


def unfiltered(history: History) -> Estimator:
    """Fit the model on all rows, also those that imply more arithmetic than the GPU has.

    This is fair where such rows are judged. No source of duetune does it.
    """
    return _model(history, quarantine=False).estimate


def model_alone(history: History) -> Estimator:
    """Fit the model without the rungs of the ladder that look a configuration up."""
    return _model(history, quarantine=True).estimate


def physics(history: History) -> Estimator:
    """Fit the constants of physics to the rows, without a learner."""
    return AnalyticSource(physics=_model(history, quarantine=True).physics).query


def experience(_history: History) -> Estimator:
    """Return physics with its usual constants, fitted to none of these rows."""
    return AnalyticSource().query


OURS, OURS_UNFILTERED, ALONE = "duetune", "duetune, no quarantine", "duetune, model alone"
PHYSICS, EXPERIENCE = "physics, fitted", "physics, as it comes"
RAW, LOG, NEAREST = "gradient boosting, raw", "gradient boosting, log", "nearest neighbour"
RULES = "rules only"
SUBJECTS: dict[str, Callable[[History], Estimator]] = {
    OURS: hybrid,
    OURS_UNFILTERED: unfiltered,
    ALONE: model_alone,
    PHYSICS: physics,
    EXPERIENCE: experience,
    RAW: lambda history: boosting(history, logarithm=False),
    LOG: lambda history: boosting(history, logarithm=True),
    NEAREST: nearest,
    RULES: rules_only,
}


def _targets(
    history: History,
) -> tuple[NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_], NDArray[np.bool_]]:
    """Return pace and where it is known, and where validity is known, and validity.

    Rows that a rule rejects are left out, since all subjects apply the rules first.
    """
    pace = np.where(np.isfinite(history.tokens_per_s), history.tokens_per_s, 1.0)
    valid = history.outcome == RunOutcome.VALID
    known = valid & np.isfinite(history.tokens_per_s)
    labelled = (valid | (history.outcome == RunOutcome.OOM)) & (broken(history.configurations) < 0)
    return pace, known, labelled, valid


def _unseen(matrix: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return NaN where a word was never seen; boosting takes it as a missing value."""
    return np.where(matrix == -1, np.nan, matrix)


def _estimates(
    rows: Configurations, middle: NDArray[np.float64], likely: NDArray[np.float64]
) -> Estimates:
    found = Estimates.unknown(len(rows), "baseline")
    found.tokens_per_s[:, 1] = middle
    found.p_valid[:] = np.where(broken(rows) < 0, likely, 0.0)
    return found
