"""The integer program of a round: at most one shape for each job, as many GPUs as there are.

    minimise    sum of cost over the pairs (job, shape) that are chosen
    such that   each job has at most one shape, those that are pinned the one they have,
                each partition gives out no more GPUs than it has,
                each project with a quota no more than that.

Only pairs that are possible are in it. The relaxation is solved first: it has at most as many jobs
with a part of two shapes as there are partitions and quotas. These are rounded. Where that is not
within the gap that an integer solver stops at, the integer program is solved: all of it up to a
size, beyond that for these jobs and for those that mind least which shape they get, all others
staying as they are; mostly the bound is then reached.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import highspy

    from duetune.core.planning import Stock

GAP = 1e-4
"""Of the optimum; what the published Sia stops at."""

LARGEST = 2_000
"""Pairs up to which the whole integer program is solved where rounding is not good enough."""

CORE = 60
"""Jobs that are chosen for anew beside those with a part of two shapes."""

_WHOLE = 1e-6


class Pairs(NamedTuple):
    """Possible pairs, sorted by job: row k is shape ``shape[k]`` for job ``job[k]``.

    ``project`` is each job's number among those with a quota, -1 if it has none; ``held`` the
    shape that it has now, which is where the solver begins.
    """

    job: NDArray[np.int64]
    shape: NDArray[np.int64]
    cost: NDArray[np.float64]
    jobs: int
    project: NDArray[np.int64]
    quota: NDArray[np.int64]
    pinned: NDArray[np.bool_]
    held: NDArray[np.int64]


class Solution(msgspec.Struct, frozen=True, eq=False):
    """The shape of each job, -1 for none. No choice is better than ``bound``; ``exact`` where the
    gap between them is within what was asked for.
    """

    chosen: NDArray[np.int64]
    objective: float
    bound: float
    exact: bool


def solve(
    pairs: Pairs,
    stock: Stock,
    *,
    capacity: NDArray[np.int64] | None = None,
    gap: float = GAP,
    largest: int = LARGEST,
) -> Solution:
    """The cheapest choice: to leave a job without costs nothing, so cost is below zero where it is
    better to have GPUs. ``capacity`` by partition, if that is not all of the stock's.
    """
    if not pairs.job.size:
        return Solution(np.full(pairs.jobs, -1, np.int64), 0.0, 0.0, exact=True)
    room = stock.capacity if capacity is None else capacity
    highs = _loaded(pairs, stock, room)
    share, bound = _run(highs)
    chosen, objective = _rounded(pairs, stock, room, share)
    slack = gap * max(1.0, abs(bound))
    loss = np.array(highs.getSolution().col_dual)
    for size in (pairs.jobs,) if pairs.job.size <= largest else (CORE, 4 * CORE):
        if objective <= bound + slack:
            break
        found, proved = _core(pairs, stock, room, (share, loss), size, (bound, slack, objective))
        if size >= pairs.jobs:
            # Of the whole program, less what is no better than the choice that there was.
            bound = max(bound, min(objective, proved))
        reached = float(pairs.cost[pairs.shape == found[pairs.job]].sum())
        if reached < objective:
            chosen, objective = found, reached
    return Solution(chosen, objective, bound, exact=objective <= bound + slack)


def _core(
    pairs: Pairs,
    stock: Stock,
    capacity: NDArray[np.int64],
    relaxed: tuple[NDArray[np.float64], NDArray[np.float64]],
    size: int,
    target: tuple[float, float, float],
) -> tuple[NDArray[np.int64], float]:
    """The integer program of the jobs with a part of two shapes and of ``size`` others, those that
    lose least by another shape; all the rest keep the one they have in the relaxation, of which
    shares and losses are given. It stops once all together are as near to the bound as the target
    says. A pair whose loss is more than there is between the bound and what was reached already is
    in no better choice. With the choice comes what the solver has proved that none is better than.
    """
    import highspy  # noqa: PLC0415 - slow to import

    share, loss = relaxed
    bound, slack, reached = target
    settled = share > 1 - _WHOLE
    split = np.zeros(pairs.jobs, np.bool_)
    split[pairs.job[(share > _WHOLE) & ~settled]] = True
    # To get none is a choice, too, and what it costs is known by no pair: those who have none are
    # as near to getting one as their best pair says.
    least = np.full(pairs.jobs, np.inf)
    np.minimum.at(least, pairs.job[~settled], loss[~settled])
    least[split] = -np.inf
    free = np.zeros(pairs.jobs, np.bool_)
    free[np.argsort(least, kind="stable")[: size + int(split.sum())]] = True
    chosen = np.full(pairs.jobs, -1, np.int64)
    fixed = np.flatnonzero(settled & ~free[pairs.job])
    chosen[pairs.job[fixed]] = pairs.shape[fixed]
    left, quota = capacity.copy(), pairs.quota.copy()
    gpus = stock.gpus[pairs.shape[fixed]]
    np.subtract.at(left, stock.partition[pairs.shape[fixed]], gpus)
    project = pairs.project[pairs.job[fixed]]
    np.subtract.at(quota, project[project >= 0], gpus[project >= 0])
    jobs = np.flatnonzero(free)
    rows = np.flatnonzero(free[pairs.job] & (loss <= reached - bound + _WHOLE))
    number = np.cumsum(free) - 1
    core = Pairs(
        job=number[pairs.job[rows]],
        shape=pairs.shape[rows],
        cost=pairs.cost[rows],
        jobs=jobs.size,
        project=pairs.project[jobs],
        quota=quota,
        pinned=pairs.pinned[jobs],
        held=pairs.held[jobs],
    )
    highs = _loaded(core, stock, left)
    columns = np.arange(rows.size, dtype=np.int32)
    kinds = np.full(columns.size, int(highspy.HighsVarType.kInteger), np.uint8)
    highs.changeColsIntegrality(columns.size, columns, kinds)
    # A good choice is known, and to look for better ones costs more than to prove it.
    highs.setOptionValue("mip_heuristic_effort", 0.0)
    for part in ("feasibility_jump", "rins", "rens"):
        highs.setOptionValue(f"mip_heuristic_run_{part}", False)
    highs.setOptionValue("mip_detect_symmetry", False)
    highs.setOptionValue("mip_rel_gap", 0.0)
    highs.setOptionValue("mip_abs_gap", slack)
    settled_cost = float(pairs.cost[fixed].sum())
    highs.setOptionValue("objective_target", bound + slack - settled_cost)
    found, _ = _run(highs)
    chosen[jobs] = _rounded(core, stock, left, found)[0]
    return chosen, settled_cost + float(highs.getInfo().mip_dual_bound)


def _loaded(pairs: Pairs, stock: Stock, capacity: NDArray[np.int64]) -> highspy.Highs:
    import highspy  # noqa: PLC0415 - slow to import

    gpus = stock.gpus[pairs.shape].astype(np.float64)
    project = pairs.project[pairs.job]
    first = pairs.jobs + len(stock.partitions)
    limited = project >= 0
    # Column by column: the job's own row, its partition's, and its project's if that has a quota.
    start = np.concatenate(([0], np.cumsum(2 + limited))).astype(np.int32)
    begin = start[:-1]
    index = np.empty(start[-1], np.int32)
    value = np.empty(start[-1], np.float64)
    index[begin], value[begin] = pairs.job, 1.0
    index[begin + 1], value[begin + 1] = pairs.jobs + stock.partition[pairs.shape], gpus
    index[begin[limited] + 2], value[begin[limited] + 2] = first + project[limited], gpus[limited]
    lp = highspy.HighsLp()
    lp.num_col_, lp.num_row_ = pairs.job.size, first + pairs.quota.size
    lp.col_cost_ = pairs.cost
    lp.col_lower_, lp.col_upper_ = np.zeros(pairs.job.size), np.ones(pairs.job.size)
    unbounded = np.full(lp.num_row_ - pairs.jobs, -highspy.kHighsInf)
    lp.row_lower_ = np.concatenate((pairs.pinned.astype(np.float64), unbounded))
    lp.row_upper_ = np.concatenate((np.ones(pairs.jobs), capacity, pairs.quota)).astype(np.float64)
    lp.a_matrix_.format_ = highspy.MatrixFormat.kColwise
    lp.a_matrix_.start_, lp.a_matrix_.index_, lp.a_matrix_.value_ = start, index, value
    highs: highspy.Highs = highspy.Highs()  # type: ignore[no-untyped-call] # not annotated there
    highs.silent()
    highs.setOptionValue("threads", 1)
    highs.passModel(lp)
    highs.setBasis(_present(pairs, lp.num_row_))
    return highs


def _present(pairs: Pairs, rows: int) -> highspy.HighsBasis:
    """Begin where the last round ended: each job with the shape that it has."""
    import highspy  # noqa: PLC0415 - slow to import

    status = highspy.HighsBasisStatus
    kept = pairs.shape == pairs.held[pairs.job]
    column = [status.kBasic if each else status.kLower for each in kept.tolist()]
    row = [status.kBasic] * rows
    for job in pairs.job[kept].tolist():
        row[job] = status.kUpper
    basis = highspy.HighsBasis()
    basis.col_status, basis.row_status, basis.valid = column, row, True
    return basis


def _run(highs: highspy.Highs) -> tuple[NDArray[np.float64], float]:
    highs.run()
    return np.array(highs.getSolution().col_value), float(highs.getInfo().objective_function_value)


def _rounded(
    pairs: Pairs,
    stock: Stock,
    capacity: NDArray[np.int64],
    share: NDArray[np.float64],
) -> tuple[NDArray[np.int64], float]:
    """What is whole as it is; then each job that is left, the one with most of its share first,
    gets the best of its shapes for which there is room.
    """
    chosen = np.full(pairs.jobs, -1, np.int64)
    left = capacity.copy()
    allowed = pairs.quota.copy()
    gpus = stock.gpus[pairs.shape]
    partition = stock.partition[pairs.shape]
    whole = np.flatnonzero(share > 1 - _WHOLE)
    chosen[pairs.job[whole]] = pairs.shape[whole]
    np.subtract.at(left, partition[whole], gpus[whole])
    limited = whole[pairs.project[pairs.job[whole]] >= 0]
    np.subtract.at(allowed, pairs.project[pairs.job[limited]], gpus[limited])
    objective = float(pairs.cost[whole].sum())
    given = np.zeros(pairs.jobs)
    np.add.at(given, pairs.job, share)
    first = np.searchsorted(pairs.job, np.arange(pairs.jobs + 1))
    for job in sorted(np.flatnonzero(chosen < 0).tolist(), key=lambda each: -given[each]):
        rows = np.arange(first[job], first[job + 1])
        fits = gpus[rows] <= left[partition[rows]]
        project = pairs.project[job]
        if project >= 0:
            fits &= gpus[rows] <= allowed[project]
        rows = rows[fits & (pairs.cost[rows] < 0)]
        if rows.size:
            row = int(rows[np.argmin(pairs.cost[rows])])
            chosen[job] = pairs.shape[row]
            left[partition[row]] -= gpus[row]
            if project >= 0:
                allowed[project] -= gpus[row]
            objective += float(pairs.cost[row])
    return chosen, objective
