"""Sources that know only what was run, and the table in which measured runs are looked up."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import numpy as np

from duetune.knowledge.configurations.configuration import CATEGORIES, FIELDS, Configurations
from duetune.knowledge.estimate import (
    EXTRAPOLATED,
    MEMORY,
    NONE,
    OTHER,
    Estimates,
    around,
    put,
    seen_words,
    unseen_in,
)
from duetune.knowledge.observation import RunOutcome
from duetune.knowledge.sources.estimating import Source
from duetune.knowledge.sources.knowledge_source import Neighbour

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from duetune.knowledge.configurations.configuration import Configuration
    from duetune.knowledge.history import History

    Column = NDArray[np.float64]
    Index = NDArray[np.int64]


SURE = 0.99
"""Probability of a configuration that always fitted: the next run may be on another machine."""

MEMORY_NOISE = 0.02


def remembered(
    measured: Measured, rows: NDArray[np.int64], source: str, *, certain: bool = False
) -> Estimates:
    """Return the estimates of measured configurations, by their rows; ``certain`` leaves out the
    noise.
    """
    share = measured.valid[rows] / measured.count[rows]
    fitted = share >= 0.5
    ran_out = measured.ran_out[rows] > 0
    return Estimates(
        p_valid=fitted.astype(np.float64) if certain else np.clip(share, 1.0 - SURE, SURE),
        cause=np.where(fitted, NONE, np.where(ran_out, MEMORY, OTHER)),
        tokens_per_s=around(measured.tokens_per_s[rows], 0.0 if certain else measured.noise),
        memory_gb=around(measured.memory_gb[rows], 0.0 if certain else MEMORY_NOISE),
        support=measured.count[rows].astype(np.int64),
        extrapolated=np.zeros((len(rows), len(EXTRAPOLATED)), np.bool_),
        measured=np.ones(len(rows), np.bool_),
        source=source,
    )


class Remembering(Source):
    """A source that keeps a table of what was measured."""

    @functools.cached_property
    def measured(self) -> Measured:
        """Return the table of measured configurations."""
        return Measured(self.history.plausible)

    def changed(self) -> None:
        """Drop the table; it is built again at the next question."""
        self.__dict__.pop("measured", None)

    def neighbours(self, configuration: Configuration) -> tuple[Neighbour, ...]:
        """Return the latest run of the same configuration, if there is one."""
        row = int(self.measured.find(Configurations.of([configuration]))[0])
        if row < 0:
            return ()
        return (Neighbour(observation=self.measured.latest[row], distance=0.0, differs=()),)


class HistorySource(Remembering):
    """Medians of the same configuration, and nothing about any other."""

    name = "history"
    certain = False

    def estimate(self, configurations: Configurations) -> Estimates:
        """Return the medians of measured configurations; the others are unknown."""
        found = self.measured.find(configurations)
        result = Estimates.unknown(len(configurations), self.name)
        result.extrapolated[:] = self.measured.unseen(configurations)
        known = np.flatnonzero(found >= 0)
        put(result, known, remembered(self.measured, found[known], self.name, certain=self.certain))
        return result


class OracleSource(HistorySource):
    """The truth if history is what a simulation plays; for comparison only."""

    name = "oracle"
    certain = True


UNREPEATED = 0.03
"""Standard deviation of the log throughput if nothing was measured twice."""

_LARGEST = 2**62


class Encoder:
    """Numbers the combinations of values that occur in ``rows``."""

    def __init__(self, rows: Configurations, fields: Sequence[str] = FIELDS) -> None:
        self._fields = tuple(fields)
        self._words: dict[str, dict[str, int]] = {}
        self._numbers: dict[str, Column] = {}
        self._folds: dict[str, Index] = {}
        codes, radix = np.zeros(len(rows), np.int64), 1
        for field in self._fields:
            if field in CATEGORIES:
                used = np.unique(rows.columns[field]).tolist()
                words = sorted({rows.labels[field][code] for code in used})
                self._words[field] = {word: index for index, word in enumerate(words)}
            else:
                self._numbers[field] = np.unique(rows.columns[field])
            size = len(self._words.get(field, self._numbers.get(field, ())))
            if radix * max(1, size) > _LARGEST:
                # Renumbered to stay within 64 bits: there are never more combinations than rows.
                self._folds[field] = np.unique(codes)
                codes, radix = np.searchsorted(self._folds[field], codes), len(self._folds[field])
            codes = codes * max(1, size) + self._digits(rows, field)
            radix *= max(1, size)
        self._known = np.unique(codes)

    def __len__(self) -> int:
        return len(self._known)

    def find(self, configurations: Configurations) -> Index:
        """Return the number of each row's combination, or -1 if it does not occur."""
        if not len(self._known):
            return np.full(len(configurations), -1, np.int64)
        codes = np.zeros(len(configurations), np.int64)
        seen = np.ones(len(configurations), np.bool_)
        for field in self._fields:
            if field in self._folds:
                codes, there = _found(self._folds[field], codes)
                seen &= there
            digits = self._digits(configurations, field)
            size = len(self._words.get(field, self._numbers.get(field, ())))
            seen &= digits >= 0
            codes = codes * size + digits
        index, there = _found(self._known, codes)
        return np.where(seen & there, index, -1)

    def _digits(self, configurations: Configurations, field: str) -> Index:
        if field in self._words:
            known = self._words[field]
            of_label = [known.get(word, -1) for word in configurations.labels[field]]
            return np.array(of_label, np.int64)[configurations.columns[field]]
        index, there = _found(self._numbers[field], configurations.columns[field])
        return np.where(there, index, -1)


def _found(known: Column | Index, values: Column | Index) -> tuple[Index, NDArray[np.bool_]]:
    """Return the position of each value in the sorted ``known``, and whether it is there."""
    if len(known) == 1:  # the case of most fields
        there = values == known[0]
        return np.zeros(len(values), np.int64), there
    index = np.minimum(np.searchsorted(known, values), len(known) - 1)
    return index, known[index] == values


class Measured:
    """Each measured configuration once (``rows``), with its runs summed up.

    - ``count``, ``valid``, ``ran_out``: how many runs there were, fitted, and ran out of memory.
    - ``tokens_per_s``, ``memory_gb``: medians, NaN if not measured. Memory is what was in use,
      without what the allocator kept, where that is known.
    - ``latest``: the last observation of each.
    - ``noise``: standard deviation of the log throughput when a measurement is repeated.
    """

    def __init__(self, history: History) -> None:
        labelled = history.labelled
        rows = labelled.configurations
        self._encoder = Encoder(rows)
        which = self._encoder.find(rows)
        size = len(self._encoder)
        first = np.full(size, len(labelled), np.int64)
        np.minimum.at(first, which, np.arange(len(labelled)))
        self.rows = rows.take(first)
        self.latest = tuple(labelled[index] for index in _last(which, size))
        fitted, oom = (
            labelled.outcome == RunOutcome.VALID.value,
            labelled.outcome == RunOutcome.OOM.value,
        )
        self.valid = np.bincount(which[fitted], minlength=size)
        self.count = np.bincount(which, minlength=size)
        self.ran_out = np.bincount(which[oom], minlength=size)
        pace = np.where(fitted, labelled.tokens_per_s, np.nan)
        self.tokens_per_s = _medians(which, pace, size)
        needed = [each.needed_memory_gb or each.peak_memory_gb or np.nan for each in labelled]
        self.memory_gb = _medians(which, np.array(needed), size)
        self.noise = _noise(which, pace, size)

    def __len__(self) -> int:
        return len(self.rows)

    def find(self, configurations: Configurations) -> Index:
        """Return the row of each configuration, or -1 if it was not measured."""
        return self._encoder.find(configurations)

    def unseen(self, configurations: Configurations) -> NDArray[np.bool_]:
        """Return for each of ``EXTRAPOLATED`` where the row's word was never measured."""
        return unseen_in(configurations, seen_words(self.rows))


def _last(which: Index, size: int) -> list[int]:
    last = np.zeros(size, np.int64)
    last[which] = np.arange(len(which))  # the last assignment wins
    return last.tolist()


def _medians(which: Index, values: Column, size: int) -> Column:
    """Return the median of each group, without NaN."""
    known = np.isfinite(values)
    which, values = which[known], values[known]
    values = values[np.lexsort((values, which))]
    counts = np.bincount(which, minlength=size)
    start = np.cumsum(counts) - counts
    medians = np.full(size, np.nan)
    some = counts > 0
    low, high = start + (counts - 1) // 2, start + counts // 2
    medians[some] = 0.5 * (values[low[some]] + values[high[some]])
    return medians


def _noise(which: Index, pace: Column, size: int) -> float:
    """Return the noise from repeated runs, or ``UNREPEATED`` if there are fewer than ten."""
    known = np.isfinite(pace)
    which, logs = which[known], np.log(pace[known])
    counts = np.bincount(which, minlength=size)
    repeated = int(np.sum(np.maximum(counts - 1, 0)))
    if repeated < 10:
        return UNREPEATED
    means = np.bincount(which, logs, minlength=size) / np.maximum(counts, 1)
    # The median absolute deviation, because a few repeats may be far off.
    off = np.abs(logs - means[which])[counts[which] > 1]
    return max(0.005, 1.4826 * float(np.median(off)))
