"""The learned model: fitted to a history, asked for many configurations at once, kept on disk."""

from __future__ import annotations

import io
import zipfile
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from duetune.errors import InvalidInput
from duetune.knowledge.conformal import Widths
from duetune.knowledge.described import Described
from duetune.knowledge.estimate import CAUSES, Cause, Estimates
from duetune.knowledge.features import Physics, Reckoned, feature_matrix, seen_labels
from duetune.knowledge.forest import Forest, sortable
from duetune.knowledge.memory import fit_memory
from duetune.knowledge.observation import Outcome
from duetune.knowledge.pace import fit_pace
from duetune.knowledge.performance import Performance, fit_performance
from duetune.knowledge.quality import SATURATED
from duetune.knowledge.rules import broken
from duetune.knowledge.support import Support
from duetune.knowledge.validity import Validity, fit_validity

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from duetune.knowledge.configuration import Configurations
    from duetune.knowledge.history import History

    Column = NDArray[np.float64]

FORMAT = 1
"""Of the file, and of what the numbers in it mean: a model of another one is fitted anew."""

GB = 1e9
LIKELY = 0.5
_RULE, _MEMORY = CAUSES.index(Cause.RULE), CAUSES.index(Cause.MEMORY)


class KnowledgeModel:
    """Deterministic: the same history gives the same model, and the model the same answers."""

    def __init__(
        self,
        *,
        physics: Physics,
        labels: dict[str, tuple[str, ...]],
        performance: Performance,
        validity: Validity,
        support: Support,
        snapshot: str,
    ) -> None:
        self.physics = physics
        self.labels = labels
        self.performance = performance
        self.validity = validity
        self.support = support
        self.snapshot = snapshot

    @classmethod
    def fit(cls, history: History, *, quarantine: bool = True, seed: int = 0) -> KnowledgeModel:
        """From all runs that say something, those that are not believable aside (unless told
        otherwise). An empty history gives physics with the constants of experience.
        """
        ordered = _in_order(history.plausible if quarantine else history)
        timed = ordered.take(
            (ordered.outcome == Outcome.VALID.value) & np.isfinite(ordered.tokens_per_s)
        )
        tried = ordered.having(Outcome.VALID, Outcome.OOM)
        pace_rows = Described(timed.configurations)
        memory_rows = Described(tried.configurations)
        fitted = tried.outcome == Outcome.VALID.value
        peak = _peaks(tried, memory_rows)
        physics = Physics(
            pace=fit_pace(pace_rows, timed.tokens_per_s, timed.weight),
            memory=fit_memory(memory_rows, peak, fitted, tried.weight),
        )
        labels = seen_labels(ordered.configurations) if len(ordered) else {}
        return cls(
            physics=physics,
            labels=labels,
            performance=fit_performance(
                pace_rows, physics, labels, timed.tokens_per_s, timed.weight, seed=seed
            ),
            validity=fit_validity(
                memory_rows, physics, labels, peak, fitted, tried.weight, seed=seed
            ),
            support=Support.of(tried.configurations),
            snapshot=history.snapshot,
        )

    def estimate(self, configurations: Configurations) -> Estimates:
        if not len(configurations):
            return Estimates.unknown(0, "regression")
        reckoned = Reckoned(Described(configurations), self.physics)
        keys = sortable(feature_matrix(reckoned, self.labels))
        unseen = self.performance.unseen(configurations)
        peak, half = self.validity.peak(reckoned, keys)
        p_valid = self.validity.p_valid(reckoned, keys, peak)
        rule = broken(configurations) >= 0
        p_valid = np.where(rule, 0.0, p_valid)
        cause = np.where(p_valid < LIKELY, _MEMORY, 0)
        return Estimates(
            p_valid=p_valid,
            cause=np.where(rule, _RULE, cause).astype(np.int8),
            tokens_per_s=self.performance.tokens_per_s(reckoned, keys, unseen),
            memory_gb=np.exp(np.stack([peak - half, peak, peak + half], axis=1)) / GB,
            support=self.support.count(configurations),
            extrapolated=unseen,
            measured=np.zeros(len(configurations), np.bool_),
            source="regression",
        )

    def save(self, path: Path) -> None:
        """One file, written as a whole or not at all; no pickle in it."""
        told = _Told(
            format=FORMAT,
            snapshot=self.snapshot,
            physics=self.physics,
            labels=self.labels,
            performance=_PerformanceNumbers(
                widths=self.performance.widths,
                seen={field: sorted(words) for field, words in self.performance.seen.items()},
                transfer=self.performance.transfer,
            ),
            validity=_ValidityNumbers(
                widths=self.validity.widths,
                trust=self.validity.trust,
                slope=self.validity.slope,
                shift=self.validity.shift,
                other=self.validity.other,
            ),
            support=self.support.words,
        )
        arrays: dict[str, NDArray[np.generic]] = {
            "told": np.frombuffer(msgspec.json.encode(told), np.uint8),
            "support": self.support.counts,
        }
        for name, forest in self._forests.items():
            arrays |= {f"{name}.{part}": array for part, array in forest.arrays.items()}
        buffer = io.BytesIO()
        np.savez(buffer, allow_pickle=False, **arrays)
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(f".{path.name}.part")
        part.write_bytes(buffer.getvalue())
        part.replace(path)

    @property
    def _forests(self) -> dict[str, Forest]:
        return {
            "performance": self.performance.forest,
            "memory": self.validity.memory,
            "classifier": self.validity.classifier,
        }

    @classmethod
    def load(cls, path: Path) -> KnowledgeModel:
        """Refuses what is no model of this format."""
        try:
            with np.load(path, allow_pickle=False) as arrays:
                told = msgspec.json.decode(arrays["told"].tobytes(), type=_Told)
                if told.format != FORMAT:
                    raise InvalidInput("model", str(path), f"a model of format {FORMAT}")
                parts = {name: arrays[name] for name in arrays.files}
        except (OSError, ValueError, KeyError, zipfile.BadZipFile, msgspec.MsgspecError) as error:
            raise InvalidInput("model", str(path), f"a saved model ({error})") from None

        def forest(name: str) -> Forest:
            begin = f"{name}."
            return Forest.of_arrays(
                {
                    part.removeprefix(begin): array
                    for part, array in parts.items()
                    if part.startswith(begin)
                }
            )

        return cls(
            physics=told.physics,
            labels=told.labels,
            performance=Performance(
                forest=forest("performance"),
                widths=told.performance.widths,
                seen={field: frozenset(words) for field, words in told.performance.seen.items()},
                transfer=told.performance.transfer,
            ),
            validity=Validity(
                memory=forest("memory"),
                widths=told.validity.widths,
                classifier=forest("classifier"),
                trust=told.validity.trust,
                slope=told.validity.slope,
                shift=told.validity.shift,
                other=told.validity.other,
            ),
            support=Support(told.support, parts["support"].astype(np.int32)),
            snapshot=told.snapshot,
        )


class _PerformanceNumbers(msgspec.Struct, frozen=True, kw_only=True):
    widths: Widths
    seen: dict[str, list[str]]
    transfer: dict[str, float]


class _ValidityNumbers(msgspec.Struct, frozen=True, kw_only=True):
    widths: Widths
    trust: float
    slope: float
    shift: float
    other: float


class _Told(msgspec.Struct, frozen=True, kw_only=True):
    """All of a model but its trees and counts."""

    format: int
    snapshot: str
    physics: Physics
    labels: dict[str, tuple[str, ...]]
    performance: _PerformanceNumbers
    validity: _ValidityNumbers
    support: dict[str, list[str]]


def _in_order(history: History) -> History:
    """By content, so that the order of arrival does not show in the trees."""
    keys = [each.key for each in history]
    return history.take(sorted(range(len(keys)), key=keys.__getitem__))


def _peaks(history: History, it: Described) -> Column:
    """Bytes, where the peak is what the run needed: one that took all there was may have needed
    more, and a paged optimiser moves what does not fit.
    """
    saturated = np.array([SATURATED in each.flags for each in history], np.bool_)
    needed = np.array([each.needed_memory_gb or np.nan for each in history])
    bytes_ = np.where(np.isfinite(needed), needed, history.peak_memory_gb) * GB
    odd = saturated | it.paged | (bytes_ > 0.985 * it.capacity)
    return np.where(odd, np.nan, bytes_)
