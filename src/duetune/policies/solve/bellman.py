"""Backward induction over (work left, GPUs held), for one slot and for a whole horizon.

A value table has one row per number of GPUs held and one column per step of work left. The loss
factor mu depends only on whether the number grows, stays or shrinks. The best action for every
number held therefore comes from a running maximum over smaller and larger numbers. A slot costs
O(steps x GPUs) instead of O(steps x GPUs^2), and the inner loops run over contiguous memory.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from duetune.core.compiled import compiled
from duetune.policies.solve.progress_grid import GROW, SHRINK, STAY, ProgressGrid

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from duetune.core.physics import JobPhysics


@compiled
def steps_left(job: JobPhysics, grid: ProgressGrid, progress: float) -> int:
    """Return the work left in steps, rounded up; 0 when done."""
    left = job.work - job.tolerance - progress
    if left <= 0:
        return 0
    return min(grid.steps, max(1, int(np.ceil(left / grid.unit))))


@compiled
def _raise_row(
    target: NDArray[np.float64],
    least: NDArray[np.float64],
    source: NDArray[np.float64],
    cost: float,
) -> None:
    """Set target = max(least, source - cost). All are slices, so the loop is vectorised."""
    for index in range(target.size):
        target[index] = max(least[index], source[index] - cost)


@compiled
def _raise_two(
    target: NDArray[np.float64],
    smaller: NDArray[np.float64],
    stay: NDArray[np.float64],
    shrink: NDArray[np.float64],
    cost: float,
) -> None:
    """Raise target to ``smaller`` and to staying, then ``smaller`` to shrinking, in one loop."""
    for index in range(target.size):
        best = smaller[index]
        target[index] = max(target[index], best, stay[index] - cost)
        smaller[index] = max(best, shrink[index] - cost)


@compiled
def raise_to(
    best: NDArray[np.float64],
    following: NDArray[np.float64],
    stride: int,
    finish: float,
    cost: float,
    first: int,
    last: int,
    refund: float,
    worked: float,
) -> None:
    """Raise best[r], first <= r <= last, to the value of doing ``stride`` steps at ``cost``.

    ``refund`` is paid back for each step that a finishing job does not need of the ``worked`` ones;
    see ``refund_of``.
    """
    finishing = finish - cost
    done = best[first : min(stride, last) + 1]
    for index in range(done.size):
        unused = max(0.0, worked - (first + index))
        done[index] = max(done[index], finishing + refund * unused)
    begin = max(first, stride + 1)
    if begin <= last:
        rest = best[begin : last + 1]
        _raise_row(rest, rest, following[begin - stride : last + 1 - stride], cost)


@compiled
def refund_of(
    job: JobPhysics, grid: ProgressGrid, gpus: int, cost: float, fraction: float, by_second: bool
) -> tuple[float, float]:
    """Return what each unused step pays back in the last slot, and the steps done in that slot.

    A job that is billed by the second pays until its work is done: the time lost to the change,
    then the steps that it still needs. The steps include the part of the first step that is more
    than the work.
    """
    if not by_second:
        return 0.0, 0.0
    speed = job.throughput[gpus] / grid.unit
    return cost / speed, fraction * speed + grid.steps - job.work / grid.unit


@compiled
def sweep(
    job: JobPhysics,
    grid: ProgressGrid,
    following: NDArray[np.float64],
    values: NDArray[np.float64],
    costs: NDArray[np.float64],
    finish: float,
    first: int,
    last: int,
    running: NDArray[np.float64],
    by_second: bool,
) -> None:
    """Go one slot backwards: fill ``values[m, first..last]`` from ``following``.

    ``costs[n]`` is the charge for n GPUs in this slot, ``finish`` the value of finishing in it, and
    ``running`` scratch of one row. Waiting (n = 0) is always possible, so values are never below
    zero and giving up needs no rule of its own.

    Downwards, each row gets the best of all larger numbers; upwards, the best of all smaller ones
    and of its own. Work that one slot finishes is a short first part of a row.
    """
    end = last + 1
    values[job.max_gpus, first:end] = -np.inf
    for gpus in range(job.max_gpus, job.min_gpus - 1, -1):
        row, after, cost = values[gpus], following[gpus], costs[gpus]
        below = values[gpus - 1 if gpus > job.min_gpus else 0]
        stride = grid.strides[GROW, gpus]
        rest = min(max(first, stride + 1), end)
        below[first:rest] = row[first:rest]
        refund, worked = refund_of(job, grid, gpus, cost, job.grow, by_second)
        raise_to(below, after, stride, finish, cost, first, rest - 1, refund, worked)
        if rest < end:
            _raise_row(below[rest:end], row[rest:end], after[rest - stride : end - stride], cost)
    running[first:end] = following[0, first:end]
    _raise_row(values[0, first:end], values[0, first:end], running[first:end], 0.0)
    for gpus in range(job.min_gpus, job.max_gpus + 1):
        row, after, cost = values[gpus], following[gpus], costs[gpus]
        stay, shrink = grid.strides[STAY, gpus], grid.strides[SHRINK, gpus]
        rest = min(max(first, stay + 1), end)
        _raise_row(row[first:rest], row[first:rest], running[first:rest], 0.0)
        refund, worked = refund_of(job, grid, gpus, cost, 1.0, by_second)
        raise_to(row, after, stay, finish, cost, first, rest - 1, refund, worked)
        refund, worked = refund_of(job, grid, gpus, cost, job.shrink, by_second)
        raise_to(running, after, shrink, finish, cost, first, rest - 1, refund, worked)
        if rest < end:
            _raise_two(
                row[rest:end],
                running[rest:end],
                after[rest - stay : end - stay],
                after[rest - shrink : end - shrink],
                cost,
            )


@compiled
def fill_value_tables(
    job: JobPhysics,
    grid: ProgressGrid,
    costs: NDArray[np.float64],
    tables: NDArray[np.float64],
    running: NDArray[np.float64],
    by_second: bool,
    from_start: bool,
) -> None:
    """Fill ``tables[t, m, r]``: the best value from the start of slot t on, m held, r steps left.

    ``costs[t, n]`` is for t = 1..D. Index t = D + 1 is zero, because nothing has value after it.
    ``from_start`` leaves out what a job that began in slot 1 cannot reach.
    """
    most = max(grid.strides[STAY, job.max_gpus], grid.strides[GROW, job.max_gpus])
    tables[job.hard_deadline + 1, :, : grid.steps + 1] = 0.0
    for slot in range(job.hard_deadline, 0, -1):
        # More work than the slots left can do is worth nothing; less than the slots before have
        # left over is never asked for.
        last = min(grid.steps, (job.hard_deadline + 1 - slot) * most)
        # True progress is up to one step a slot more than strides rounded down.
        first = max(1, grid.steps - (slot - 1) * (most + 1)) if from_start else 1
        tables[slot, :, last + 1 : grid.steps + 1] = 0.0
        if first <= last:
            following, finish = tables[slot + 1], job.values[slot]
            sweep(
                job,
                grid,
                following,
                tables[slot],
                costs[slot],
                finish,
                first,
                last,
                running,
                by_second,
            )


@compiled
def change_of(held: int, gpus: int) -> int:
    """Return the row of the strides for this change: grow, shrink or stay."""
    if gpus > held:
        return GROW
    if gpus < held:
        return SHRINK
    return STAY


@compiled
def value_of_action(
    grid: ProgressGrid,
    following: NDArray[np.float64],
    left: int,
    held: int,
    gpus: int,
    cost: float,
    finish: float,
) -> float:
    """Return the value of holding ``gpus`` in this slot and acting optimally afterwards."""
    after = left - grid.strides[change_of(held, gpus), gpus]
    if after <= 0:
        return finish - cost
    return float(following[gpus, after]) - cost
