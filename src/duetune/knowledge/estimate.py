"""The answer of a source of knowledge: whether a configuration fits, how fast it is, and how sure.

``Estimate`` is the answer for one configuration, ``Estimates`` for a table. The functions combine
estimates from several parts.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from statistics import NormalDist
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import numpy as np

from duetune.knowledge.configurations.configuration_rules import broken

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from numpy.typing import NDArray

    from duetune.knowledge.configurations.configuration import Configurations

    Rows = NDArray[np.int64] | NDArray[np.bool_]
    Column = NDArray[np.float64]


class Cause(StrEnum):
    """Why a configuration is expected to fail; ``none`` if it is expected to work."""

    NONE = "none"
    RULE = "rule"
    MEMORY = "memory"
    OTHER = "other"


CAUSES = tuple(Cause)
NONE, MEMORY, OTHER, RULE = (
    np.int8(CAUSES.index(cause)) for cause in (Cause.NONE, Cause.MEMORY, Cause.OTHER, Cause.RULE)
)

FITS = 0.8
"""With at least this probability a configuration counts as fitting; with at most one minus it, as
not fitting.
"""

LOW, MIDDLE, HIGH = 0.05, 0.5, 0.95
"""The quantiles of every interval: 90% lies between the first and the last."""

DEVIATIONS = NormalDist().inv_cdf(HIGH)
"""Standard deviations from the middle of an interval to either end."""


class Interval(NamedTuple):
    """Low, middle and high: the 5%, 50% and 95% quantiles."""

    low: float
    middle: float
    high: float


class Estimate(msgspec.Struct, frozen=True, kw_only=True):
    """The answer for one configuration.

    - ``p_valid``: probability that it runs.
    - ``tokens_per_s``: throughput of all GPUs together if it fits; NaN if unknown.
    - ``memory_gb``: peak memory of one GPU; NaN if unknown.
    - ``support``: number of measured runs near it.
    - ``extrapolated``: which of ``EXTRAPOLATED`` were never measured with this value.
    - ``measured``: whether exactly this configuration was measured.
    - ``source``: name of the source that answered.
    """

    p_valid: float
    cause: Cause
    tokens_per_s: Interval
    memory_gb: Interval
    support: int
    extrapolated: tuple[str, ...]
    measured: bool
    source: str


EXTRAPOLATED = (
    *("model", "gpu_model", "method", "software", "sharding", "num_gpus", "optimiser"),
    *("attention", "packed", "fast_kernels"),
)
"""Fields whose value may never have been measured. Numbers of GPUs count by doublings."""


def seen_words(rows: Configurations) -> dict[str, frozenset[str]]:
    """Return the words of each of ``EXTRAPOLATED`` that occur in measured rows."""
    found = {}
    for field in EXTRAPOLATED:
        codes, words = _words(rows, field)
        found[field] = frozenset(words[code] for code in np.unique(codes).tolist())
    return found


def unseen_in(rows: Configurations, seen: Mapping[str, frozenset[str]]) -> NDArray[np.bool_]:
    """Return for each row and each of ``EXTRAPOLATED`` whether its word was never measured."""
    columns = []
    for field in EXTRAPOLATED:
        codes, words = _words(rows, field)
        new = np.array([word not in seen[field] for word in words], np.bool_)
        columns.append(new[codes] if len(words) else np.zeros(len(rows), np.bool_))
    return np.stack(columns, axis=1)


def _words(rows: Configurations, field: str) -> tuple[NDArray[np.int64], list[str]]:
    codes, words = rows.coded(field)
    if field == "num_gpus":
        words = [f"{max(1, int(float(word))).bit_length()}" for word in words]
    return codes, words


_PLAIN = ("p_valid", "cause", "support", "extrapolated", "measured")
_INTERVALS = ("tokens_per_s", "memory_gb")


@dataclass(kw_only=True, eq=False)
class Estimates:
    """The answers for a table of configurations, one column per quantity, in the order of the
    table.

    - ``tokens_per_s``, ``memory_gb``: a row of low, middle and high for each configuration.
    - ``cause``: codes ``NONE``, ``MEMORY``, ``OTHER`` and ``RULE``, which index ``CAUSES``.
    - ``extrapolated``: one column for each of ``EXTRAPOLATED``.
    """

    p_valid: NDArray[np.float64]
    cause: NDArray[np.int8]
    tokens_per_s: NDArray[np.float64]
    memory_gb: NDArray[np.float64]
    support: NDArray[np.int64]
    extrapolated: NDArray[np.bool_]
    measured: NDArray[np.bool_]
    source: str

    def __len__(self) -> int:
        return len(self.p_valid)

    def __getitem__(self, index: int) -> Estimate:
        return Estimate(
            p_valid=float(self.p_valid[index]),
            cause=CAUSES[int(self.cause[index])],
            tokens_per_s=Interval(*(float(each) for each in self.tokens_per_s[index])),
            memory_gb=Interval(*(float(each) for each in self.memory_gb[index])),
            support=int(self.support[index]),
            extrapolated=tuple(
                field
                for field, unseen in zip(EXTRAPOLATED, self.extrapolated[index], strict=True)
                if unseen
            ),
            measured=bool(self.measured[index]),
            source=self.source,
        )

    def take(self, index: NDArray[np.int64] | NDArray[np.bool_]) -> Estimates:
        """Return the rows of an index or a mask."""
        columns = {name: getattr(self, name)[index] for name in (*_PLAIN, *_INTERVALS)}
        return Estimates(**columns, source=self.source)

    @classmethod
    def unknown(cls, size: int, source: str) -> Estimates:
        """Return estimates that know nothing: each configuration fits with a probability of 0.5."""
        return cls(
            p_valid=np.full(size, 0.5),
            cause=np.zeros(size, np.int8),
            tokens_per_s=np.full((size, 3), np.nan),
            memory_gb=np.full((size, 3), np.nan),
            support=np.zeros(size, np.int64),
            extrapolated=np.zeros((size, len(EXTRAPOLATED)), np.bool_),
            measured=np.zeros(size, np.bool_),
            source=source,
        )


def around(middle: Column, deviation: Column | float) -> Column:
    """Return rows of low, middle and high; ``deviation`` is the standard deviation of the
    logarithm.
    """
    factor = np.exp(DEVIATIONS * np.broadcast_to(deviation, middle.shape))
    return np.stack([middle / factor, middle, middle * factor], axis=1)


def put(into: Estimates, rows: Rows, part: Estimates, *, keep_known: bool = False) -> None:
    """Write ``part`` into these rows of ``into``.

    With ``keep_known``, throughput and memory are kept where ``part`` does not know them.
    """
    for name in _PLAIN:
        getattr(into, name)[rows] = getattr(part, name)
    for name in _INTERVALS:
        column, new = getattr(into, name), getattr(part, name)
        if keep_known:
            new = np.where(np.isnan(new[:, 1:2]), column[rows], new)
        column[rows] = new


def under_rules(
    configurations: Configurations,
    source: str,
    estimate: Callable[[Configurations], Estimates],
) -> Estimates:
    """Return estimates in which every configuration that breaks a rule cannot run.

    ``estimate`` is called only for the other rows. Every source answers queries through this
    function.
    """
    kept = broken(configurations) < 0
    if kept.all():
        return estimate(configurations)
    result = Estimates.unknown(len(configurations), source)
    result.p_valid[:] = 0.0
    result.cause[:] = RULE
    if kept.any():
        put(result, kept, estimate(configurations.take(kept)))
    return result
