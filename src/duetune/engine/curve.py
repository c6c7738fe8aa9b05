"""The throughput curve, corrected by what was measured."""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


def calibrated(prior: tuple[float, ...], measured: Mapping[int, float]) -> tuple[float, ...]:
    """``prior`` where nothing was measured, scaled by the median of measured over prior.

    A measured number of GPUs keeps its own measurement. More GPUs never do less work: a curve that
    would fall is held level, since what one GPU too many does not speed up it need not slow down.
    """
    usable = {
        gpus: pace
        for gpus, pace in measured.items()
        if 0 < gpus < len(prior) and prior[gpus] > 0 and pace > 0
    }
    if not usable:
        return prior
    scale = median(pace / prior[gpus] for gpus, pace in usable.items())
    curve = [usable.get(gpus, work * scale) for gpus, work in enumerate(prior)]
    for gpus in range(1, len(curve)):
        curve[gpus] = max(curve[gpus], curve[gpus - 1])
    return tuple(curve)
