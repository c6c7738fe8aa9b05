"""Estimates put together of parts."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from duetune.knowledge.configurations.configuration_rules import broken
from duetune.knowledge.estimate import CAUSES, EXTRAPOLATED, Cause, Estimates
from duetune.knowledge.ranking import DEVIATIONS

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from duetune.knowledge.configurations.configuration import Configurations

    Rows = NDArray[np.int64] | NDArray[np.bool_]
    Column = NDArray[np.float64]

NONE, MEMORY, OTHER, RULE = (
    np.int8(CAUSES.index(cause)) for cause in (Cause.NONE, Cause.MEMORY, Cause.OTHER, Cause.RULE)
)


def around(middle: Column, deviation: Column | float) -> Column:
    """Rows of low, middle, high; ``deviation`` is of the logarithm."""
    factor = np.exp(DEVIATIONS * np.broadcast_to(deviation, middle.shape))
    return np.stack([middle / factor, middle, middle * factor], axis=1)


def put(into: Estimates, rows: Rows, part: Estimates, *, keep_known: bool = False) -> None:
    """``part`` at these rows; with ``keep_known`` pace and memory stay where it has none."""
    for name in ("p_valid", "cause", "support", "extrapolated", "measured"):
        getattr(into, name)[rows] = getattr(part, name)
    for name in ("tokens_per_s", "memory_gb"):
        column, new = getattr(into, name), getattr(part, name)
        if keep_known:
            new = np.where(np.isnan(new[:, 1:2]), column[rows], new)
        column[rows] = new


def under_rules(
    configurations: Configurations,
    source: str,
    estimate: Callable[[Configurations], Estimates],
) -> Estimates:
    """What breaks a rule does not work, and nobody is asked about it."""
    kept = broken(configurations) < 0
    if kept.all():
        return estimate(configurations)
    size = len(configurations)
    result = Estimates(
        p_valid=np.zeros(size),
        cause=np.full(size, RULE, np.int8),
        tokens_per_s=np.full((size, 3), np.nan),
        memory_gb=np.full((size, 3), np.nan),
        support=np.zeros(size, np.int64),
        extrapolated=np.zeros((size, len(EXTRAPOLATED)), np.bool_),
        measured=np.zeros(size, np.bool_),
        source=source,
    )
    if kept.any():
        put(result, kept, estimate(configurations.take(kept)))
    return result
