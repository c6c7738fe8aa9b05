"""Whether a configuration fits: the memory margin corrected by measurements, and a classifier."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from duetune.knowledge.estimate import EXTRAPOLATED, seen_words, unseen_in
from duetune.knowledge.model.conformal import Widths, calibrated, held_out
from duetune.knowledge.model.extrapolation import MEMORY, foreign, transfers
from duetune.knowledge.model.features import Physics, Reckoned, feature_matrix
from duetune.knowledge.model.forest import (
    Forest,
    constant_forest,
    grow_classification,
    grow_regression,
    sortable,
)
from duetune.knowledge.model.memory_model import FACTORS, fit_memory
from duetune.knowledge.model.quality import LIGHTEST

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from duetune.knowledge.configurations.configuration import Configurations
    from duetune.knowledge.configurations.configuration_table import Described
    from duetune.knowledge.model.features import Labels
    from duetune.knowledge.model.memory_model import MemoryModel

    Column = NDArray[np.float64]

TREES = 48
FOLD_TREES = 16
FEWEST = 20
FEWEST_FOR_WIDTHS = 10
MARGIN = 0
"""Index of the feature column that holds the margin."""

SLOPE = 20.0
"""Log-odds per unit of margin without measurements. It matches an error of about 8% in the peak."""

FAR = 0.4
"""Above this margin memory is certainly enough: the computed peak is never wrong by half."""

HALF_TRUST = 10.0
"""With this many runs of the rarer outcome, the classifier counts as much as physics."""

DRIFT = 0.04
"""Least half-width of the peak (a logarithm) while no campaign can be held out."""

SUREST = 0.995
_STEEPEST = 1.645 * 1.702
"""Log-odds per half-width of a 90% interval, by the logistic curve nearest to the normal one."""


FEWEST_OF_SOFTWARE = 40
"""Minimum number of runs for odds of one software; a quarter of them must have the rarer outcome.
With fewer runs, the odds of all software are used.
"""


class Odds(msgspec.Struct, frozen=True, kw_only=True):
    """How a margin becomes a probability.

    - ``slope``, ``shift``: log-odds as a linear function of the margin.
    - ``other``: share of runs that fail although memory is left.
    - ``trust``: weight of the classifier, by how much it helped on held-out runs.
    """

    trust: float = 0.0
    slope: float = SLOPE
    shift: float = 0.0
    other: float = 0.0


class Validity(msgspec.Struct, frozen=True, kw_only=True):
    """The fitted model of validity.

    - ``memory``: correction of the logarithm of the peak.
    - ``odds``: turn the remaining margin into a probability.
    - ``classifier``: trees that see the margin and all other features.
    - ``seen``, ``transfer``: measured labels by field, and the extra width for others.
    - ``reserve``: by how much (a logarithm) the memory that the allocator of a software reserves
      exceeds what is used; ``""`` is that of unknown software.
    - ``by_software``: odds for software with enough runs, because failures and the accuracy of
      peaks depend on the software and on who measured.
    """

    memory: Forest
    widths: Widths
    classifier: Forest
    seen: dict[str, frozenset[str]]
    transfer: dict[str, float]
    reserve: dict[str, float] = {}
    odds: Odds = Odds()
    by_software: dict[str, Odds] = {}

    def peak(self, reckoned: Reckoned, keys: NDArray[np.int32]) -> tuple[Column, Column]:
        """Return the logarithm of the peak in bytes, and the half-width around it."""
        correction, spread = self.memory.predict(keys)
        half = self.widths.half_width(reckoned.it.configurations, spread)
        half = np.hypot(half, self._foreign(reckoned.it.configurations))
        # The peak is never below the loaded weights, whatever the trees learned.
        floor = np.log(np.maximum(LIGHTEST * reckoned.memory["weights"], 1.0))
        return np.maximum(np.log(reckoned.peak) + correction, floor), half

    def reserved(self, rows: Configurations) -> Column:
        """Return the logarithm of reserved over used memory at the peak, for each row."""
        usual = self.reserve.get("", 0.0)
        return rows.gather("software", lambda word: self.reserve.get(word, usual))

    def _foreign(self, rows: Configurations) -> Column:
        """Return the extra half-width of each row for what was never measured."""
        return foreign(unseen_in(rows, self.seen), self.transfer)

    def p_valid(
        self, reckoned: Reckoned, keys: NDArray[np.int32], peak: Column, half: Column
    ) -> Column:
        """Return the probability to fit; ``peak`` and ``half`` come from ``Validity.peak``.

        Rules are not checked here.
        """
        rows = reckoned.it.configurations
        # Odds that were fitted to a software's own failures contain what its allocator wastes.
        fitted = rows.gather("software", self.by_software.__contains__) > 0
        wasted = np.where(fitted, 0.0, self.reserved(rows))
        margin = np.log(reckoned.it.capacity) - peak - wasted

        def odds(field: str) -> Column:
            return rows.gather(
                "software", lambda word: getattr(self.by_software.get(word, self.odds), field)
            )

        # The slope is limited to what the interval around the peak allows. For what was measured,
        # it is at least that of physics alone.
        slope = odds("slope")
        strange = self._foreign(rows) > 0
        allowed = _STEEPEST / np.maximum(half, 1e-3)
        allowed = np.where(strange, np.minimum(allowed, SLOPE), np.maximum(allowed, SLOPE))
        flat = np.minimum(1.0, allowed / slope)
        p_valid = (1.0 - odds("other")) * _logistic(
            flat * (slope * np.clip(margin, -5.0, 5.0) + odds("shift"))
        )
        # Trees know nothing about what was never measured.
        trust = np.where(strange, 0.0, odds("trust"))
        if trust.any():
            seen = keys.copy()
            seen[:, MARGIN] = sortable(_bounded(margin))
            classified, _ = self.classifier.predict(seen)
            p_valid = trust * classified + (1.0 - trust) * p_valid
            # Trees may be wrong about new kinds: what clearly needs too much memory does not fit.
            bound = _logistic(SLOPE * (margin + 0.5 * np.minimum(half, FAR)))
            p_valid = np.where(trust > 0, np.minimum(p_valid, bound), p_valid)
        never = reckoned.memory["weights"] > reckoned.it.capacity
        return np.where(never, 1.0 - SUREST, np.clip(p_valid, 1.0 - SUREST, SUREST))


def fit_validity(
    it: Described,
    physics: Physics,
    labels: Labels,
    peak_bytes: Column,
    fitted: NDArray[np.bool_],
    weight: Column,
    campaign: NDArray[np.int64],
    *,
    seed: int,
) -> Validity:
    """Return the model for rows to which ``physics`` was fitted.

    ``peak_bytes`` is NaN if it was not measured, or if all memory was used. Each row's
    margin comes from models fitted without that row and, if there are enough of them, without its
    ``campaign``, because later questions are about runs of another day.
    """
    rows = it.configurations
    known = np.isfinite(peak_bytes)
    target = np.log(peak_bytes)
    few = np.count_nonzero(known) < FEWEST

    def corrected(
        memory: MemoryModel, train: NDArray[np.bool_], trees: int
    ) -> tuple[Reckoned, NDArray[np.float32], Forest]:
        reckoned = Reckoned(it, msgspec.structs.replace(physics, memory=memory))
        matrix = feature_matrix(reckoned, labels)
        if few:
            return reckoned, matrix, constant_forest(0.0)
        off = target - np.log(reckoned.peak)
        use = known & train
        forest = grow_regression(matrix[use], off[use], weight[use], trees=trees, seed=seed)
        return reckoned, matrix, forest

    def of_others(train: NDArray[np.int64], test: NDArray[np.int64]) -> tuple[Column, Column]:
        kept = np.zeros(len(it), np.bool_)
        kept[train] = True
        memory = fit_memory(
            it, peak_bytes, fitted, np.where(kept, weight, 0.0), start=physics.memory
        )
        reckoned, matrix, forest = corrected(memory, kept, FOLD_TREES)
        correction, spread = forest.predict(sortable(matrix[test]))
        return np.log(reckoned.peak[test]) + correction, spread

    _, matrix, memory = corrected(physics.memory, np.ones(len(it), np.bool_), TREES)
    seen_here = seen_words(rows)
    # Without any run, the width of an uncalibrated interval covers what is new.
    wider = dict.fromkeys(EXTRAPOLATED, 0.0)
    if len(it):
        wider = transfers(
            rows, physics.memory, FACTORS, lambda model: target - np.log(model.peak(it)), MEMORY
        )
    widths = Widths()
    rarer = float(min(np.count_nonzero(fitted), np.count_nonzero(~fitted)))
    if len(it) < FEWEST_FOR_WIDTHS or (rarer < 2 and not known.any()):
        return Validity(
            memory=memory,
            widths=widths,
            classifier=constant_forest(0.5),
            seen=seen_here,
            transfer=wider,
        )
    (peak, spread), fair, other_days = held_out(rows, seed, of_others, campaign)
    use = known & fair
    widths = calibrated(
        rows.take(use),
        (target - peak)[use],
        spread[use],
        least=0.0 if other_days else DRIFT,
    )
    if rarer < 2:
        return Validity(
            memory=memory,
            widths=widths,
            classifier=constant_forest(0.5),
            seen=seen_here,
            transfer=wider,
        )
    seen = matrix.copy()
    seen[:, MARGIN] = _bounded(np.log(it.capacity) - peak)

    def judged(train: NDArray[np.int64], test: NDArray[np.int64]) -> tuple[Column]:
        grown = grow_classification(
            seen[train], fitted[train], weight[train], rising=(MARGIN,), trees=FOLD_TREES, seed=seed
        )
        return (grown.predict(sortable(seen[test]))[0],)

    (classified,), _, _ = held_out(rows, seed + 1, judged)
    margin = np.clip(np.log(it.capacity) - peak, -5.0, 5.0)
    by_software = {}
    codes = rows.columns["software"]
    for code in np.unique(codes).tolist():
        mine = codes == code
        enough = min(np.count_nonzero(mine & fitted), np.count_nonzero(mine & ~fitted))
        if mine.sum() >= FEWEST_OF_SOFTWARE and enough >= FEWEST_OF_SOFTWARE / 4:
            by_software[rows.labels["software"][code]] = _odds(
                margin[mine], classified[mine], fitted[mine], weight[mine]
            )
    return Validity(
        memory=memory,
        widths=widths,
        classifier=grow_classification(
            seen, fitted, weight, rising=(MARGIN,), trees=TREES, seed=seed
        ),
        seen=seen_here,
        transfer=wider,
        odds=_odds(margin, classified, fitted, weight),
        by_software=by_software,
    )


def _odds(margin: Column, classified: Column, fitted: NDArray[np.bool_], weight: Column) -> Odds:
    """Return the odds from held-out margins and held-out answers of the classifier."""
    rarer = float(min(np.count_nonzero(fitted), np.count_nonzero(~fitted)))
    spare = margin > FAR
    unexplained = spare & ~fitted
    other = float((np.count_nonzero(unexplained) + 0.5) / (np.count_nonzero(spare) + 50.0))
    slope, shift = _logistic_fit(margin, fitted, np.where(unexplained, 0.0, weight))
    alone = (1.0 - other) * _logistic(slope * margin + shift)
    trust = _best_share(classified, alone, fitted, weight)
    return Odds(trust=trust * rarer / (rarer + HALF_TRUST), slope=slope, shift=shift, other=other)


def _bounded(margin: Column) -> NDArray[np.float32]:
    """Return the margin as a feature, limited to the range of training."""
    return np.clip(margin, -5.0, 5.0).astype(np.float32)


def _logistic(odds: Column) -> Column:
    return 1.0 / (1.0 + np.exp(-np.clip(odds, -50.0, 50.0)))


def _best_share(
    classified: Column, alone: Column, fitted: NDArray[np.bool_], weight: Column
) -> float:
    """Return the share of the classifier with the least log-loss on held-out runs."""

    def loss(share: float) -> float:
        mixed = np.clip(share * classified + (1.0 - share) * alone, 1.0 - SUREST, SUREST)
        return float(-np.dot(weight, np.log(np.where(fitted, mixed, 1.0 - mixed))))

    return min((step / 20 for step in range(21)), key=loss)


def _logistic_fit(margin: Column, fitted: NDArray[np.bool_], weight: Column) -> tuple[float, float]:
    """Return slope and shift of the log-odds by Newton's method, pulled towards physics alone."""
    slope, shift = SLOPE, 0.0
    target = fitted.astype(np.float64)
    for _ in range(100):
        classified = _logistic(slope * margin + shift)
        gap = weight * (classified - target)
        curve = weight * classified * (1.0 - classified)
        gradient = np.array(
            [np.dot(gap, margin) + (slope - SLOPE) / SLOPE**2, gap.sum() + 0.1 * shift]
        )
        hessian = np.array(
            [
                [np.dot(curve, margin**2) + 1.0 / SLOPE**2, np.dot(curve, margin)],
                [np.dot(curve, margin), curve.sum() + 0.1],
            ]
        )
        move = np.linalg.solve(hessian, gradient)
        size = float(np.abs(move).max())
        move = move * min(1.0, 5.0 / max(size, 1e-12))  # far away, Newton overshoots
        slope, shift = slope - float(move[0]), shift - float(move[1])
        if size < 1e-9:
            break
    if not (math.isfinite(slope) and math.isfinite(shift)):
        return SLOPE, 0.0
    return max(slope, 0.1 * SLOPE), shift


def reserve_of(rows: Configurations, used: Column, peak: Column) -> dict[str, float]:
    """Return the usual logarithm of reserved over used memory for each software that told both, and
    under ``""`` the largest of them.
    """
    known = np.isfinite(used) & np.isfinite(peak) & (used > 0)
    apart = np.log(peak[known] / used[known])
    if not len(apart):
        return {}
    codes = rows.columns["software"][known]
    found = {"": 0.0}
    for code in np.unique(codes).tolist():
        mine = apart[codes == code]
        usual = max(0.0, float(np.median(mine)))
        found[rows.labels["software"][code]] = usual
        found[""] = max(found[""], usual)
    return found
