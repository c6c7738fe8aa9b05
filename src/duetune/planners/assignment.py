"""The best shapes for all jobs of a round at once: for Sia and for ours."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from duetune.planners.round_program import GAP, Pairs, solve

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from duetune.core.planning import JobView, Stock


def assigned(
    views: Sequence[JobView],
    costs: Mapping[str, NDArray[np.float64]],
    stock: Stock,
    *,
    gap: float = GAP,
) -> dict[str, int]:
    """The shape of each job that gets one. ``costs`` are by job and shape: infinite where it may
    not have it, below zero where that is better than nothing. Whoever has the higher priority is
    served first, from all that there is.
    """
    shapes: dict[str, int] = {}
    for priority in sorted({view.priority for view in views}, reverse=True):
        mine = [view for view in views if view.priority == priority]
        pairs, capacity = program_of(
            mine, [costs[each.name] for each in mine], views, stock, shapes
        )
        chosen = solve(pairs, stock, capacity=capacity, gap=gap).chosen
        shapes |= {
            view.name: int(shape) for view, shape in zip(mine, chosen, strict=True) if shape >= 0
        }
    return shapes


def program_of(
    mine: Sequence[JobView],
    rows: Sequence[NDArray[np.float64]],
    views: Sequence[JobView],
    stock: Stock,
    given: Mapping[str, int],
) -> tuple[Pairs, NDArray[np.int64]]:
    """The program of ``mine``, with what is left by those who were ``given`` something and by those
    who are pinned and come later.
    """
    capacity = stock.capacity.copy()
    quota = dict(stock.quotas)
    names = {view.name for view in mine}
    kept: dict[str, int] = {}
    for view in views:
        shape = given.get(view.name, view.held if view.pinned else -1)
        if shape < 0:
            continue
        gpus = int(stock.gpus[shape])
        if view.name in names:
            kept[view.project] = kept.get(view.project, 0) + gpus
        else:
            capacity[stock.partition[shape]] -= gpus
            if view.project in quota:
                quota[view.project] -= gpus
    projects = sorted(quota)
    code = {project: number for number, project in enumerate(projects)}
    cost = np.array(rows).reshape(len(mine), len(stock.shapes))
    for number, view in enumerate(mine):
        if view.pinned:
            cost[number] = np.inf
            cost[number, view.held] = -1.0
    job, shape_number = np.nonzero(np.isfinite(cost))
    pairs = Pairs(
        job=job,
        shape=shape_number,
        cost=cost[job, shape_number],
        jobs=len(mine),
        project=np.array([code.get(view.project, -1) for view in mine], np.int64),
        # A quota that was lowered since does not take from those who cannot give.
        quota=np.array([max(quota[each], kept.get(each, 0), 0) for each in projects], np.int64),
        pinned=np.array([view.pinned for view in mine], np.bool_),
        held=np.array([view.held for view in mine], np.int64),
    )
    return pairs, np.maximum(capacity, 0)
