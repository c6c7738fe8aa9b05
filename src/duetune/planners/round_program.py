"""The integer program that assigns shapes to all jobs of a round at once.

    minimise    sum of cost over the chosen pairs (job, shape)
    such that   each job gets at most one shape, and a pinned job gets the one it holds,
                each partition gives out at most the GPUs that it has,
                the jobs of a project together get at most its quota.

The program contains only the possible pairs. The linear relaxation is solved first. In its
solution, at most as many jobs are split between shapes as there are partitions and quotas; these
are rounded. If the rounded solution is not within the gap of the bound, an integer program is
solved. Up to ``LARGEST`` pairs that is the whole program. Beyond, it contains the split jobs and
those for which another shape costs least extra. All other jobs keep their shape. The result is
usually within the gap.

The costs come from the planners that call ``assigned``: ``sia`` and ``tutti``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import highspy

    from duetune.core.planning import JobView, Stock

GAP = 1e-4
"""The relative gap to the optimum at which the solver stops; the same as in the published Sia."""

LARGEST = 2_000
"""Maximum number of pairs for which the whole integer program is solved."""

CORE = 60
"""Number of jobs that the reduced integer program covers in addition to the split jobs."""

_WHOLE = 1e-6


class Pairs(NamedTuple):
    """The possible pairs of job and shape, sorted by job: pair k is (``job[k]``, ``shape[k]``).

    ``project`` is the number of each job's project among those with a quota, -1 without one.
    ``held`` is the shape that each job holds now; the solver starts from it.
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
    """The shape chosen for each job, -1 for none.

    No choice has an objective below ``bound``. ``exact`` says that ``objective`` is within the
    requested gap of ``bound``.
    """

    chosen: NDArray[np.int64]
    objective: float
    bound: float
    exact: bool


def assigned(
    views: Sequence[JobView],
    costs: Mapping[str, NDArray[np.float64]],
    stock: Stock,
    *,
    gap: float = GAP,
) -> dict[str, int]:
    """Return the shape of each job that gets one; called once per round by a planner.

    ``costs`` has one row per job with the cost of each shape: infinite where the shape is not
    allowed, below zero where it is better than no shape. Higher priorities are served first.
    """
    shapes: dict[str, int] = {}
    for priority in sorted({view.priority for view in views}, reverse=True):
        served = [view for view in views if view.priority == priority]
        rows = [costs[view.name] for view in served]
        pairs, capacity = program_of(served, rows, views, stock, shapes)
        chosen = solve(pairs, stock, capacity=capacity, gap=gap).chosen
        shapes |= {
            view.name: int(shape) for view, shape in zip(served, chosen, strict=True) if shape >= 0
        }
    return shapes


def program_of(
    served: Sequence[JobView],
    rows: Sequence[NDArray[np.float64]],
    views: Sequence[JobView],
    stock: Stock,
    given: Mapping[str, int],
) -> tuple[Pairs, NDArray[np.int64]]:
    """Return the program of the jobs ``served`` and the GPUs left for them by partition.

    GPUs are taken by jobs that were ``given`` a shape before and by pinned jobs served later.
    """
    capacity = stock.capacity.copy()
    quota = dict(stock.quotas)
    names = {view.name for view in served}
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
    cost = np.array(rows).reshape(len(served), len(stock.shapes))
    for number, view in enumerate(served):
        if view.pinned:
            cost[number] = np.inf
            cost[number, view.held] = -1.0
    job, shape_number = np.nonzero(np.isfinite(cost))
    pairs = Pairs(
        job=job,
        shape=shape_number,
        cost=cost[job, shape_number],
        jobs=len(served),
        project=np.array([code.get(view.project, -1) for view in served], np.int64),
        # Pinned jobs keep their GPUs even if the quota was lowered since; or nothing is feasible.
        quota=np.array([max(quota[each], kept.get(each, 0), 0) for each in projects], np.int64),
        pinned=np.array([view.pinned for view in served], np.bool_),
        held=np.array([view.held for view in served], np.int64),
    )
    return pairs, np.maximum(capacity, 0)


def solve(
    pairs: Pairs,
    stock: Stock,
    *,
    capacity: NDArray[np.int64] | None = None,
    gap: float = GAP,
) -> Solution:
    """Return the cheapest choice of shapes.

    No shape costs 0, so a shape is worth having where its cost is below 0. ``capacity`` is in GPUs
    by partition; by default it is all of the stock's.
    """
    if not pairs.job.size:
        return Solution(np.full(pairs.jobs, -1, np.int64), 0.0, 0.0, exact=True)
    room = stock.capacity if capacity is None else capacity
    highs = _loaded(pairs, stock, room)
    share, bound = _run(highs)
    chosen, objective = _rounded(pairs, stock, room, share)
    slack = gap * max(1.0, abs(bound))
    loss = np.array(highs.getSolution().col_dual)
    for size in (pairs.jobs,) if pairs.job.size <= LARGEST else (CORE, 4 * CORE):
        if objective <= bound + slack:
            break
        found, proved = _core(pairs, stock, room, (share, loss), size, (bound, slack, objective))
        if size >= pairs.jobs:
            # The program leaves out pairs that cannot improve on the present objective.
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
    """Solve the integer program of the split jobs and ``size`` others; return choice and bound.

    The others are those that lose least by another shape. All remaining jobs keep their shape of
    the relaxation. ``relaxed`` holds its shares and reduced costs (losses). ``target`` holds the
    bound, the slack at which the solver stops, and the objective reached so far. A pair whose loss
    exceeds the distance from bound to objective is in no better choice, so it is left out.
    """
    import highspy  # noqa: PLC0415 - slow to import

    share, loss = relaxed
    bound, slack, reached = target
    settled = share > 1 - _WHOLE
    split = np.zeros(pairs.jobs, np.bool_)
    split[pairs.job[(share > _WHOLE) & ~settled]] = True
    # A job without a shape has no settled pair, so the loss of its best pair says how near it is to
    # getting one.
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
    # A good choice is known already; heuristics that look for others cost more than the proof.
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
    """Return a solver that holds the relaxation and starts from the present shapes."""
    import highspy  # noqa: PLC0415 - slow to import

    gpus = stock.gpus[pairs.shape].astype(np.float64)
    project = pairs.project[pairs.job]
    first = pairs.jobs + len(stock.partitions)
    limited = project >= 0
    # Each column has an entry for its job, for its partition, and for its project's quota if any.
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
    """Return the starting basis: each job has the shape that it holds now."""
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
    """Solve the loaded program; return the shares of the pairs and the objective."""
    highs.run()
    return np.array(highs.getSolution().col_value), float(highs.getInfo().objective_function_value)


def _rounded(
    pairs: Pairs,
    stock: Stock,
    capacity: NDArray[np.int64],
    share: NDArray[np.float64],
) -> tuple[NDArray[np.int64], float]:
    """Round a solution of the relaxation; return the shape of each job and the objective.

    Whole shares stay. Then each remaining job, the one with the largest share first, gets the
    cheapest of its shapes that still fits.
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
