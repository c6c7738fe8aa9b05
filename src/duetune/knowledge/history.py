"""All measured runs, in the order they arrived, with columns for the models that learn from them.

Reading and writing CSV files is in ``history_files``.
"""

from __future__ import annotations

import functools
import hashlib
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from duetune.knowledge.configurations.configuration import Configurations
from duetune.knowledge.model.quality import (
    CPU,
    EMULATED,
    IMPLAUSIBLE,
    MFU_BOUND,
    MISDESCRIBED,
    TOO_LIGHT,
    implied_mfu,
    lighter_than_weights,
)
from duetune.knowledge.observation import Observation, RunOutcome

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from numpy.typing import NDArray

LABELS = (RunOutcome.VALID, RunOutcome.OOM, RunOutcome.REJECTED)
"""Outcomes that tell whether the configuration works."""


class Quarantined(msgspec.Struct, frozen=True):
    """An observation that is kept but not used for learning, and the reason."""

    observation: Observation
    reason: str


class History:
    """An immutable sequence of observations; adding to it returns a new history."""

    def __init__(self, observations: Iterable[Observation] = ()) -> None:
        self._observations = tuple(observations)

    @classmethod
    def empty(cls) -> History:
        """Return a history without observations."""
        return cls()

    def __len__(self) -> int:
        return len(self._observations)

    def __iter__(self) -> Iterator[Observation]:
        return iter(self._observations)

    def __getitem__(self, index: int) -> Observation:
        return self._observations[index]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, History) and self._observations == other._observations

    def __hash__(self) -> int:
        return hash(self.snapshot)

    def __repr__(self) -> str:
        return f"History({len(self)} observations, {self.snapshot})"

    @functools.cached_property
    def configurations(self) -> Configurations:
        """Return the configurations of all runs as one table."""
        return Configurations.of(each.configuration for each in self)

    @functools.cached_property
    def tokens_per_s(self) -> NDArray[np.float64]:
        """Return the throughput of each run; NaN if it was not measured."""
        return _column(each.tokens_per_s for each in self)

    @functools.cached_property
    def peak_memory_gb(self) -> NDArray[np.float64]:
        """Return the peak memory of each run; NaN if it was not measured."""
        return _column(each.peak_memory_gb for each in self)

    @functools.cached_property
    def weight(self) -> NDArray[np.float64]:
        """Return the weight of each run in fits."""
        return _column(each.weight for each in self)

    @functools.cached_property
    def campaign(self) -> NDArray[np.int64]:
        """Return a number for each run, the same for runs of one campaign or one file."""
        return np.unique([each.campaign for each in self], return_inverse=True)[1].astype(np.int64)

    @functools.cached_property
    def outcome(self) -> NDArray[np.str_]:
        """Return the outcome of each run as a word of ``RunOutcome``."""
        words = np.array([each.outcome.value for each in self], np.str_)
        words.flags.writeable = False
        return words

    @functools.cached_property
    def snapshot(self) -> str:
        """Return an identifier of the set of observations.

        Order and repetition do not change it, so two histories with one snapshot teach the same.
        """
        digest = hashlib.blake2b(digest_size=8)
        for key in sorted(self.keys):
            digest.update(key.encode())
        return digest.hexdigest()

    @functools.cached_property
    def keys(self) -> frozenset[str]:
        """Return the keys of all observations."""
        return frozenset(each.key for each in self)

    def plus(self, observations: Iterable[Observation]) -> History:
        """Return the history with the observations that it does not contain yet."""
        seen = set(self.keys)
        new = []
        for each in observations:
            key = each.key
            if key not in seen:
                seen.add(key)
                new.append(each)
        return History((*self, *new)) if new else self

    def take(self, index: NDArray[np.int64] | NDArray[np.bool_] | Sequence[int]) -> History:
        """Return some of the observations: by a mask, or by positions in the given order."""
        rows = np.arange(len(self))[np.asarray(index)] if len(index) else np.zeros(0, np.int64)
        return History(self._observations[row] for row in rows.tolist())

    def having(self, *outcomes: RunOutcome) -> History:
        """Return the observations with one of these outcomes."""
        return History(each for each in self if each.outcome in outcomes)

    @property
    def labelled(self) -> History:
        """Return the observations that tell whether a configuration works.

        Runs that failed for another reason, or that somebody stopped, do not.
        """
        return self.having(*LABELS)

    @property
    def plausible(self) -> History:
        """Return the observations that are believable; models learn from these."""
        odd = self._implausible
        return self.take(~odd) if odd.any() else self

    @functools.cached_property
    def quarantined(self) -> tuple[Quarantined, ...]:
        """Return the observations that are not believable, each with the reason."""
        rows = np.flatnonzero(self._implausible).tolist()
        return tuple(Quarantined(self[row], self._reason(row)) for row in rows)

    @functools.cached_property
    def _mfu(self) -> NDArray[np.float64]:
        return implied_mfu(self.configurations, self.tokens_per_s)

    def _reason(self, row: int) -> str:
        """Return why an observation is not believable, in words."""
        if self[row].configuration.gpu_model == EMULATED:
            return "the GPU is emulated"
        if self[row].configuration.gpu_model == CPU:
            return "there was no GPU"
        if self._mfu[row] > MFU_BOUND:
            return f"{IMPLAUSIBLE}: {self._mfu[row]:.0%} of the GPU's peak"
        if MISDESCRIBED in self[row].flags:
            return f"{MISDESCRIBED}: something else was run than the configuration says"
        if self._too_light[row]:
            return f"{TOO_LIGHT}: {self.peak_memory_gb[row]:.3g} GB"
        return IMPLAUSIBLE

    @functools.cached_property
    def _too_light(self) -> NDArray[np.bool_]:
        return lighter_than_weights(self.configurations, self.peak_memory_gb)

    @functools.cached_property
    def _implausible(self) -> NDArray[np.bool_]:
        odd = {IMPLAUSIBLE, MISDESCRIBED}
        flagged = np.array([not odd.isdisjoint(each.flags) for each in self], np.bool_)
        no_gpu = self.configurations.is_("gpu_model", EMULATED, CPU)
        return flagged | no_gpu | (self._mfu > MFU_BOUND) | self._too_light


def _column(values: Iterable[float | None]) -> NDArray[np.float64]:
    column = np.array([np.nan if value is None else value for value in values], np.float64)
    column.flags.writeable = False
    return column
