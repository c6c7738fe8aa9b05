"""What a source of knowledge answers: whether it fits, how fast it is, and how sure that is."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray


class Cause(StrEnum):
    """Why a configuration is believed not to work; ``none`` where it is believed to."""

    NONE = "none"
    RULE = "rule"
    MEMORY = "memory"
    OTHER = "other"


CAUSES = tuple(Cause)
FITS = 0.8
"""With this probability a configuration is said to fit, recommended and planned with; with what is
left of one it is said not to fit.
"""

LOW, MIDDLE, HIGH = 0.05, 0.5, 0.95
"""The quantiles that every interval names: 90% lies between the first and the last."""


class Interval(NamedTuple):
    low: float
    middle: float
    high: float


class Estimate(msgspec.Struct, frozen=True, kw_only=True):
    """Of one configuration. ``tokens_per_s`` are those of all GPUs together if it fits,
    ``memory_gb`` the peak of one; NaN where the source does not know. ``support`` counts the
    measured runs it rests on; ``extrapolated`` names the fields (model, gpu_model, method,
    software) of which nothing was measured. ``measured``: this very configuration was run.
    """

    p_valid: float
    cause: Cause
    tokens_per_s: Interval
    memory_gb: Interval
    support: int
    extrapolated: tuple[str, ...]
    measured: bool
    source: str


EXTRAPOLATED = ("model", "gpu_model", "method", "software")


class Estimates:
    """Of many configurations, in their order, column by column."""

    def __init__(
        self,
        *,
        p_valid: NDArray[np.float64],
        cause: NDArray[np.int8],
        tokens_per_s: NDArray[np.float64],
        memory_gb: NDArray[np.float64],
        support: NDArray[np.int64],
        extrapolated: NDArray[np.bool_],
        measured: NDArray[np.bool_],
        source: str,
    ) -> None:
        """``tokens_per_s`` and ``memory_gb``: a row of low, middle, high for each configuration;
        ``cause`` indices into ``CAUSES``; ``extrapolated`` a column for each of ``EXTRAPOLATED``.
        """
        self.p_valid = p_valid
        self.cause = cause
        self.tokens_per_s = tokens_per_s
        self.memory_gb = memory_gb
        self.support = support
        self.extrapolated = extrapolated
        self.measured = measured
        self.source = source

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
        return Estimates(
            p_valid=self.p_valid[index],
            cause=self.cause[index],
            tokens_per_s=self.tokens_per_s[index],
            memory_gb=self.memory_gb[index],
            support=self.support[index],
            extrapolated=self.extrapolated[index],
            measured=self.measured[index],
            source=self.source,
        )

    @classmethod
    def unknown(cls, size: int, source: str) -> Estimates:
        """Of which nothing is known: it may fit as well as not."""
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
