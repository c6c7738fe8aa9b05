"""Estimates for configurations that were not run yet, which guide a campaign, and when to stop
it.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Protocol

import numpy as np

from duetune.knowledge.configurations.configuration import Configurations
from duetune.knowledge.configurations.configuration_table import Described
from duetune.knowledge.estimate import EXTRAPOLATED, MEMORY, NONE, Estimates
from duetune.knowledge.measure.worker_messages import GB
from duetune.knowledge.model.memory_model import MemoryModel, fit_memory
from duetune.knowledge.model.pace_model import PaceModel, fit_pace
from duetune.knowledge.observation import RunOutcome

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from duetune.knowledge.observation import Observation

    Column = NDArray[np.float64]
    Matrix = NDArray[np.float64]


WORDS = ("model", "method", "precision", "optimiser", "attention", "lora_targets")
_MEMBERS = 16
_RIDGE = 1.0
_NINETY = 1.645
_LEAST_SPREAD = 0.03
_COLD_PACE, _COLD_MEMORY = 0.6, 0.25
"""Standard deviations of logarithms before anything was measured."""


class Surrogate(Protocol):
    """Anything that estimates configurations from the observations of a campaign."""

    def estimate(self, configurations: Configurations) -> Estimates:
        """Return the estimates for a table."""
        ...


class RidgeEnsemble:
    """Physics with linear corrections of its logarithms.

    Each member of the ensemble is fitted to other rows. It is good enough to choose what to
    measure, and needs neither scikit-learn nor compiled code. If scipy is installed, the constants
    of physics are fitted first.
    """

    def __init__(self, observations: Sequence[Observation], seed: int = 0) -> None:
        rows = [each for each in observations if each.outcome in {RunOutcome.VALID, RunOutcome.OOM}]
        self._rng = np.random.default_rng(seed)
        self._words: dict[str, tuple[str, ...]] = {}
        self._seen = {each.configuration.key for each in rows}
        self._physical_pace = PaceModel()
        self._physical_memory = MemoryModel()
        self._pace: Matrix | None = None
        self._memory: Matrix | None = None
        self._pace_spread, self._memory_spread = _COLD_PACE, _COLD_MEMORY
        if rows:
            self._fit(rows)

    def _fit(self, rows: Sequence[Observation]) -> None:
        table = Configurations.of(each.configuration for each in rows)
        self._words = {field: table.labels[field] for field in WORDS}
        it = Described(table)
        fitted = np.array([each.outcome is RunOutcome.VALID for each in rows])
        pace = np.array([each.tokens_per_s or np.nan for each in rows])
        peak = np.array([each.peak_memory_gb or np.nan for each in rows]) * GB
        self._fit_physics(table, pace, peak, fitted)
        features = self._features(it)
        target = np.log(pace) - np.log(self._physical_pace.tokens_per_s(it))
        known = np.isfinite(target)
        if known.any():
            self._pace, self._pace_spread = self._members(features[known], target[known])
        usual = np.log(self._physical_memory.peak(it))
        target = np.log(peak) - usual
        known = np.isfinite(target)
        # A run that ran out of memory needs more than the capacity; nothing else is known.
        floor = np.log(it.capacity) + _LEAST_SPREAD - usual
        expected = np.zeros(len(rows))
        if known.any():
            expected = features @ self._members(features[known], target[known])[0].mean(axis=0)
        target = np.where(fitted, target, np.maximum(floor, expected))
        known = np.isfinite(target)
        if known.any():
            self._memory, self._memory_spread = self._members(features[known], target[known])

    def _fit_physics(
        self, table: Configurations, pace: Column, peak: Column, fitted: NDArray[np.bool_]
    ) -> None:
        """Fit the constants of physics if scipy is installed."""
        with contextlib.suppress(ImportError):
            timed = np.isfinite(pace)
            ones = np.ones(len(pace))
            self._physical_pace = fit_pace(Described(table.take(timed)), pace[timed], ones[timed])
            self._physical_memory = fit_memory(Described(table), peak, fitted, ones)

    def _members(self, features: Matrix, target: Column) -> tuple[Matrix, float]:
        """Return the coefficients of each member, and their error on the rows it did not see."""
        count, width = features.shape
        found = np.zeros((_MEMBERS, width))
        missed: list[Column] = []
        penalty = _RIDGE * np.eye(width)
        for member in range(_MEMBERS):
            index = self._rng.integers(0, count, count)
            drawn, aim = features[index], target[index]
            found[member] = np.linalg.solve(drawn.T @ drawn + penalty, drawn.T @ aim)
            out = np.setdiff1d(np.arange(count), index)
            missed.append(target[out] - features[out] @ found[member])
        error = np.concatenate(missed)
        spread = float(np.sqrt(np.mean(error**2))) if len(error) else _COLD_MEMORY
        return found, max(_LEAST_SPREAD, spread)

    def _features(self, it: Described) -> Matrix:
        """Return one row of features per configuration."""
        rows = it.configurations
        tokens = np.log2(np.maximum(it.tokens, 1.0)) - 12.0
        size = np.log2(it.parameters) - 30.0
        columns = [
            np.ones(len(rows)),
            tokens,
            size,
            np.log2(it.sequence) - 10.0,
            tokens**2 / 10.0,
            tokens * size / 5.0,
            np.log2(it.accumulation),
            it.fast,
            np.where(it.full, 0.0, np.log2(np.maximum(rows.number("lora_rank"), 1.0))),
            it.checkpointing,
            it.checkpointing * tokens,
        ]
        for field, words in self._words.items():
            columns += [1.0 * rows.is_(field, word) for word in words[1:]]
        columns += [rows.is_("method", "full") * each for each in (tokens, size)]
        columns += [rows.is_("attention", "eager") * tokens]
        return np.column_stack(columns)

    def estimate(self, configurations: Configurations) -> Estimates:
        """Return the estimates of the ensemble for a table."""
        it = Described(configurations)
        features = self._features(it)
        pace = np.log(self._physical_pace.tokens_per_s(it))
        memory = np.log(self._physical_memory.peak(it))
        middle, wide = self._spread(features, self._pace, self._pace_spread)
        tokens_per_s = _interval(pace + middle, wide)
        middle, wide = self._spread(features, self._memory, self._memory_spread)
        margin = np.log(it.capacity) - memory - middle
        p_valid = 1.0 / (1.0 + np.exp(-np.clip(1.7 * margin / wide, -50.0, 50.0)))
        size = len(configurations)
        return Estimates(
            p_valid=p_valid,
            cause=np.where(p_valid < 0.5, MEMORY, NONE),
            tokens_per_s=tokens_per_s,
            memory_gb=_interval(memory + middle - np.log(GB), wide),
            support=np.full(size, len(self._seen)),
            extrapolated=np.zeros((size, len(EXTRAPOLATED)), np.bool_),
            measured=np.array([each.key in self._seen for each in configurations], np.bool_),
            source="ridge",
        )

    @staticmethod
    def _spread(features: Matrix, members: Matrix | None, spread: float) -> tuple[Column, Column]:
        """Return mean and deviation of the correction for each row."""
        if members is None:
            return np.zeros(len(features)), np.full(len(features), spread)
        each = features @ members.T
        return each.mean(axis=1), np.hypot(each.std(axis=1), spread)


def _interval(middle: Column, wide: Column) -> Matrix:
    return np.exp(np.column_stack([middle - _NINETY * wide, middle, middle + _NINETY * wide]))


def learned(observations: Sequence[Observation]) -> Surrogate:
    """Return the model that also answers users, or a ``RidgeEnsemble`` if its dependencies are
    missing.
    """
    try:
        from duetune.knowledge.history import History  # noqa: PLC0415 - only if there is numba
        from duetune.knowledge.model.learned_model import KnowledgeModel  # noqa: PLC0415 - takes a second

        return KnowledgeModel.fit(History(observations))
    except ImportError:
        return RidgeEnsemble(observations)


RUNS = 50
POINTS = 0.2
_HELD_OUT = 5
_LEAST = 10


class HoldOut:
    """Tells when more runs no longer help.

    Every fifth configuration, selected by its key, is not learned from. The model of ``RUNS`` runs
    ago is compared with the current one on everything held out so far.
    """

    def __init__(self, fit: Callable[[Sequence[Observation]], Surrogate]) -> None:
        self._fit = fit
        self._earlier: list[tuple[int, Surrogate]] = []

    def satisfied(self, observations: Sequence[Observation]) -> bool:
        """Return whether the last ``RUNS`` runs improved predictions by less than ``POINTS``
        points.
        """
        count = len(observations)
        if self._earlier and count - self._earlier[-1][0] < RUNS:
            return False
        held = [
            each
            for each in observations
            if _held_out(each) and each.outcome is RunOutcome.VALID and each.tokens_per_s
        ]
        now = self._fit([each for each in observations if not _held_out(each)])
        before = self._earlier[-1][1] if self._earlier else None
        self._earlier.append((count, now))
        if before is None or len(held) < _LEAST:
            return False
        return percent_error(before, held) - percent_error(now, held) < POINTS


def percent_error(surrogate: Surrogate, observations: Sequence[Observation]) -> float:
    """Return the median error of the throughput in percent."""
    table = Configurations.of(each.configuration for each in observations)
    predicted = surrogate.estimate(table).tokens_per_s[:, 1]
    measured = np.array([each.tokens_per_s for each in observations], np.float64)
    return float(100 * np.nanmedian(np.abs(predicted / measured - 1)))


def _held_out(observation: Observation) -> bool:
    return int(observation.configuration.key, 16) % _HELD_OUT == 0
