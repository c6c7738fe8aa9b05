"""The learned model: fitted to a history, asked for many configurations at once, saved to disk."""

from __future__ import annotations

import io
import re
import zipfile
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from duetune.errors import InvalidInput
from duetune.files import write_whole
from duetune.knowledge.arithmetic import GB
from duetune.knowledge.configurations.configuration import Configurations
from duetune.knowledge.configurations.configuration_rules import broken
from duetune.knowledge.configurations.configuration_table import Described
from duetune.knowledge.estimate import (
    DEVIATIONS,
    EXTRAPOLATED,
    MEMORY,
    NONE,
    RULE,
    Estimates,
    around,
)
from duetune.knowledge.model.conformal import Widths
from duetune.knowledge.model.features import (
    BASE_FEATURES,
    Physics,
    Reckoned,
    feature_matrix,
    seen_labels,
)
from duetune.knowledge.model.forest import Forest, sortable
from duetune.knowledge.model.frontier import Support
from duetune.knowledge.model.memory_model import fit_memory
from duetune.knowledge.model.pace_model import fit_pace
from duetune.knowledge.model.quality import SATURATED
from duetune.knowledge.model.throughput_model import Performance, fit_performance
from duetune.knowledge.model.validity_model import Odds, Validity, fit_validity, reserve_of
from duetune.knowledge.observation import RunOutcome

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from duetune.knowledge.history import History

    Column = NDArray[np.float64]

FORMAT = 4
"""Version of the file and of the meaning of its numbers; a model of another version is fitted
again.
"""

_UNREADABLE = (
    *(OSError, EOFError, ValueError, KeyError, TypeError, AttributeError, zipfile.BadZipFile),
    msgspec.MsgspecError,
)
LIKELY = 0.5
NEWER_VERSION = 0.25
"""Share of the variance of unknown software that another version of measured packages has."""

_IDENTITY = [EXTRAPOLATED.index("model"), EXTRAPOLATED.index("gpu_model")]


@dataclass(kw_only=True, eq=False)
class KnowledgeModel:
    """Physics fitted to history, with learned corrections.

    The same history always gives the same model, and the same model the same answers. ``snapshot``
    and ``learnt`` identify the history it was fitted to: its name, and the keys of its
    observations.
    """

    physics: Physics
    labels: dict[str, tuple[str, ...]]
    performance: Performance
    validity: Validity
    support: Support
    snapshot: str
    learnt: frozenset[str]

    @classmethod
    def fit(cls, history: History, *, quarantine: bool = True, seed: int = 0) -> KnowledgeModel:
        """Return a model of all runs that say something about their configuration.

        Unbelievable runs are left out unless ``quarantine`` is False. An empty history gives
        physics with default constants.
        """
        ordered = _in_order(history.plausible if quarantine else history)
        timed = ordered.take(
            (ordered.outcome == RunOutcome.VALID.value) & np.isfinite(ordered.tokens_per_s)
        )
        tried = ordered.having(RunOutcome.VALID, RunOutcome.OOM)
        pace_rows = Described(timed.configurations)
        memory_rows = Described(tried.configurations)
        fitted = tried.outcome == RunOutcome.VALID.value
        peak = _peaks(tried, memory_rows)
        physics = Physics(
            pace=fit_pace(pace_rows, timed.tokens_per_s, timed.weight),
            memory=fit_memory(memory_rows, peak, fitted, tried.weight),
        )
        labels = seen_labels(ordered.configurations) if len(ordered) else {}
        validity = fit_validity(
            memory_rows,
            physics,
            labels,
            peak,
            fitted,
            tried.weight,
            tried.campaign,
            seed=seed,
        )
        used = np.array([each.needed_memory_gb or np.nan for each in tried])
        reserve = reserve_of(tried.configurations, used, tried.peak_memory_gb)
        return cls(
            physics=physics,
            labels=labels,
            performance=fit_performance(
                pace_rows,
                physics,
                labels,
                timed.tokens_per_s,
                timed.weight,
                timed.campaign,
                seed=seed,
            ),
            validity=msgspec.structs.replace(validity, reserve=reserve),
            support=Support.of(tried.configurations),
            snapshot=ordered.snapshot,
            learnt=ordered.keys,
        )

    def estimate(self, configurations: Configurations) -> Estimates:
        """Return the estimates for a table; configurations that break a rule are not computed."""
        rule = broken(configurations) >= 0
        estimates = Estimates.unknown(len(configurations), "regression")
        estimates.p_valid[rule] = 0.0
        estimates.cause[rule] = RULE
        estimates.extrapolated[:] = self.performance.unseen(configurations)
        # Formulas fail for rows that break a rule, such as a batch of 0.
        rows = np.flatnonzero(~rule)
        if len(rows):
            self._reckon(self.alike(configurations.take(rows)), estimates, rows)
        return estimates

    def alike(self, configurations: Configurations) -> Configurations:
        """Return the rows with unmeasured software replaced by the newest measured version of the
        same packages, if there is one.
        """
        seen = self.performance.seen["software"]
        words = configurations.labels["software"]
        known = tuple(_measured_like(word, seen) for word in words)
        if known == words:
            return configurations
        return Configurations(configurations.columns, {**configurations.labels, "software": known})

    def _reckon(
        self, configurations: Configurations, into: Estimates, rows: NDArray[np.int64]
    ) -> None:
        """Write the estimates of rows that break no rule into ``into``."""
        reckoned = Reckoned(Described(configurations), self.physics)
        keys = sortable(feature_matrix(reckoned, self.labels))
        unseen = into.extrapolated[rows]
        peak, half = self.validity.peak(reckoned, keys)
        p_valid = self.validity.p_valid(reckoned, keys, peak, half)
        # Nothing can be said about a model or GPU that was neither described nor measured.
        p_valid[reckoned.it.blind & unseen[:, _IDENTITY].any(axis=1)] = 0.5
        into.p_valid[rows] = p_valid
        into.cause[rows] = np.where(p_valid < LIKELY, MEMORY, NONE)
        # Another version of the packages is less strange than software that nobody measured.
        newer = unseen & ~self.performance.unseen(configurations)
        strange = np.where(newer, NEWER_VERSION, 1.0 * unseen)
        into.tokens_per_s[rows] = self.performance.tokens_per_s(reckoned, keys, strange)
        into.memory_gb[rows] = self._memory_gb(configurations, peak, half)
        into.support[rows] = self.support.count(configurations)

    def _memory_gb(self, configurations: Configurations, peak: Column, half: Column) -> Column:
        """Return low, middle and high memory; what the allocator keeps counts at the high end."""
        high = peak + np.maximum(half, self.validity.reserved(configurations))
        interval: Column = np.exp(np.stack([peak - half, peak, high], axis=1)) / GB
        return interval

    def widen(self, configurations: Configurations, measured: Estimates, away: Column) -> None:
        """Give measured values the intervals of runs of another day.

        ``away`` is the standard deviation of the logarithm that is added because the runs were
        nearly, but not exactly, these configurations. Without calibrated widths nothing changes.
        """
        if self.performance.widths.usual is None or self.validity.widths.usual is None:
            return
        rows = self.alike(configurations)
        reckoned = Reckoned(Described(rows), self.physics)
        away = DEVIATIONS * away
        pace = self.performance.widths.half_width(rows, 0.0, reckoned.launched)
        measured.tokens_per_s = around(
            measured.tokens_per_s[:, 1], np.hypot(pace, away) / DEVIATIONS
        )
        half = np.hypot(self.validity.widths.half_width(rows, 0.0), away)
        with np.errstate(invalid="ignore"):
            peak = np.log(measured.memory_gb[:, 1] * GB)
        measured.memory_gb = self._memory_gb(rows, peak, half)

    def save(self, path: Path) -> None:
        """Write the model to one file without pickle; the file appears complete or not at all."""
        saved = _SavedNumbers(
            format=FORMAT,
            snapshot=self.snapshot,
            learnt=sorted(self.learnt),
            physics=self.physics,
            labels=self.labels,
            performance=_PerformanceNumbers(
                widths=self.performance.widths,
                seen={field: sorted(words) for field, words in self.performance.seen.items()},
                transfer=self.performance.transfer,
            ),
            validity=_ValidityNumbers(
                widths=self.validity.widths,
                seen={field: sorted(words) for field, words in self.validity.seen.items()},
                transfer=self.validity.transfer,
                reserve=self.validity.reserve,
                odds=self.validity.odds,
                by_software=self.validity.by_software,
            ),
            support=self.support.cells,
        )
        arrays: dict[str, NDArray[np.generic]] = {
            "told": np.frombuffer(msgspec.json.encode(saved), np.uint8),
            "support": self.support.counts,
        }
        for name, forest in self._forests.items():
            arrays |= {f"{name}.{part}": array for part, array in forest.arrays.items()}
        buffer = io.BytesIO()
        np.savez(buffer, allow_pickle=False, **arrays)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, buffer.getvalue())

    @property
    def _forests(self) -> dict[str, Forest]:
        return {
            "performance": self.performance.forest,
            "memory": self.validity.memory,
            "classifier": self.validity.classifier,
        }

    @classmethod
    def load(cls, path: Path) -> KnowledgeModel:
        """Return a saved model, or raise ``InvalidInput`` if the file is no model of this
        format.
        """
        try:
            with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
                saved = msgspec.json.decode(arrays["told"].tobytes(), type=_SavedNumbers)
                parts = {name: arrays[name] for name in arrays.files}
            performance, memory, classifier = (
                Forest.of_arrays(
                    {part: parts[f"{name}.{part}"] for part in Forest.PARTS},
                    columns=BASE_FEATURES + sum(map(len, saved.labels.values())),
                )
                for name in ("performance", "memory", "classifier")
            )
            support = Support.of_arrays(saved.support, parts["support"])
        except _UNREADABLE as error:
            raise InvalidInput("model", str(path), f"a saved model ({error})") from None
        if saved.format != FORMAT:
            raise InvalidInput("model", str(path), f"a model of format {FORMAT}")
        return cls(
            physics=saved.physics,
            labels=saved.labels,
            performance=Performance(
                forest=performance,
                widths=saved.performance.widths,
                seen={field: frozenset(words) for field, words in saved.performance.seen.items()},
                transfer=saved.performance.transfer,
            ),
            validity=Validity(
                memory=memory,
                widths=saved.validity.widths,
                classifier=classifier,
                seen={field: frozenset(words) for field, words in saved.validity.seen.items()},
                transfer=saved.validity.transfer,
                reserve=saved.validity.reserve,
                odds=saved.validity.odds,
                by_software=saved.validity.by_software,
            ),
            support=support,
            snapshot=saved.snapshot,
            learnt=frozenset(saved.learnt),
        )


class _PerformanceNumbers(msgspec.Struct, frozen=True, kw_only=True):
    widths: Widths
    seen: dict[str, list[str]]
    transfer: dict[str, float]


class _ValidityNumbers(msgspec.Struct, frozen=True, kw_only=True):
    widths: Widths
    seen: dict[str, list[str]]
    transfer: dict[str, float]
    reserve: dict[str, float]
    odds: Odds
    by_software: dict[str, Odds]


class _SavedNumbers(msgspec.Struct, frozen=True, kw_only=True):
    """All of a model except its trees and counts, which are saved as arrays."""

    format: int
    snapshot: str
    learnt: list[str]
    physics: Physics
    labels: dict[str, tuple[str, ...]]
    performance: _PerformanceNumbers
    validity: _ValidityNumbers
    support: list[str]


def _measured_like(software: str, seen: frozenset[str]) -> str:
    """Return the newest measured software with the same packages, or ``software`` itself."""
    same = [each for each in seen if _packages(each) == _packages(software)]
    return software if software in seen or not same else max(same, key=_versions)


def _packages(software: str) -> list[str]:
    return [part.split(" ")[0] for part in software.split(", ")]


def _versions(software: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", software)]


def _in_order(history: History) -> History:
    """Return each observation once, ordered by key: order and repetition must not change the
    trees.
    """
    rows = {each.key: row for row, each in enumerate(history)}
    return history.take([rows[key] for key in sorted(rows)])


def _peaks(history: History, it: Described) -> Column:
    """Return the peak in bytes for runs whose peak is what they needed, and NaN for the others.

    A run that filled all memory may have needed more, and a paged optimiser moves what does not
    fit.
    """
    saturated = np.array([SATURATED in each.flags for each in history], np.bool_)
    needed = np.array([each.needed_memory_gb or np.nan for each in history])
    bytes_ = np.where(np.isfinite(needed), needed, history.peak_memory_gb) * GB
    odd = saturated | it.paged | (bytes_ > 0.985 * it.capacity)
    return np.where(odd, np.nan, bytes_)
