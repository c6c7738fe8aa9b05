"""What a choice costs for one instance, whatever the market does afterwards: compiled tables.

Time left less work left is the slack. Waiting costs a tick of it, a restart its overhead, and
running costs none; so slack only falls, and tables over slack are as small as the problem allows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from duetune.core.compiled import compiled
from duetune.core.single_instance_physics import (
    ON_DEMAND,
    SPOT,
    WAIT,
    next_since,
    pending_since,
    tick_charge,
    tick_step,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from duetune.market.forecast.regimes import Spells

_NOISE = 1e-6


class SingleTask(NamedTuple):
    """Seconds, and dollars per tick. ``late`` is what being late counts, more than any plan costs.

    ``slack`` is the most there can be, ``unit`` the step of the tables over it.
    """

    tick: float
    ticks: int
    restart: float
    spot: float
    on_demand: float
    late: float
    slack: float
    unit: float


@compiled
def pending_levels(task: SingleTask) -> int:
    """How many ticks after the one of a restart still begin with some of its overhead left."""
    return max(0, int(np.ceil(task.restart / task.tick - _NOISE)) - 1)


@compiled
def held_index(task: SingleTask, kind: int, since: int) -> int:
    """Where tables keep what is held; ``since`` ticks ago it was started, 0: nothing is pending."""
    if kind == WAIT:
        return 0
    return 1 + (kind - 1) * (pending_levels(task) + 1) + since


@compiled
def finished_step(task: SingleTask, time_left: float) -> int:
    """The first step of slack at which no work is left."""
    return int(np.ceil(time_left / task.unit - _NOISE))


@compiled
def _at(row: NDArray[np.float32], slack: float, finished: int, late: float) -> float:
    """The cost at a slack between two steps; below none the job is late, and a little work left
    costs as much as a step of it.
    """
    if slack < -_NOISE:
        return late
    whole = min(int(slack), max(0, finished - 1))
    if whole >= row.size - 1:
        return float(row[row.size - 1])
    if whole == finished - 1:
        return float(row[whole])
    part = max(0.0, slack - whole)
    return float(row[whole] * (1 - part) + row[whole + 1] * part)


@compiled
def _step_row(
    row: NDArray[np.float32],
    after: NDArray[np.float32],
    lost: float,
    cost: float,
    late: float,
    finished: int,
) -> None:
    """row = min(row, cost + after at ``lost`` steps less of slack); ``finished``: as in ``_at``."""
    whole = int(lost)
    part = np.float32(lost - whole)
    price = np.float32(cost)
    first = whole + 1 if part > 0 else whole
    for step in range(min(first, row.size)):
        row[step] = min(row[step], np.float32(late))
    if first < row.size:
        target = row[first:]
        near = after[first - whole : row.size - whole]
        if part > 0:
            far = after[first - whole - 1 : row.size - whole - 1]
            for step in range(target.size):
                value = near[step] + part * (far[step] - near[step]) + price
                if first - whole + step == finished:
                    value = far[step] + price
                target[step] = min(target[step], value)
        else:
            for step in range(target.size):
                target[step] = min(target[step], near[step] + price)


@compiled
def fill_costs(task: SingleTask, spells: Spells) -> NDArray[np.float32]:
    """``costs[t, i, h, s]``: the mean cost from tick t on, the market in state i (regime and
    whether there is spot), holding h, with s steps of slack.
    """
    regimes = spells.with_ends.size
    levels = pending_levels(task)
    kinds = 1 + 2 * (levels + 1)
    steps = int(np.ceil(task.slack / task.unit - _NOISE)) + 1
    costs = np.zeros((task.ticks + 1, 2 * regimes, kinds, steps), dtype=np.float32)
    usual = np.zeros((2, kinds, steps), dtype=np.float32)
    mean = np.zeros((kinds, steps), dtype=np.float32)
    share = np.float32(1.0 / regimes)
    moves = np.float32(spells.gives_way)
    for tick in range(task.ticks - 1, -1, -1):
        following = costs[tick + 1]
        usual[:] = 0.0
        for regime in range(regimes):
            usual[0] += share * following[2 * regime]
            usual[1] += share * following[2 * regime + 1]
        # Beyond this slack, less work is left than nothing.
        time_left = (task.ticks - tick) * task.tick
        finished = finished_step(task, time_left)
        after_finished = finished_step(task, time_left - task.tick)
        for regime in range(regimes):
            for there in range(2):
                ends = np.float32(
                    spells.with_ends[regime] if there == 1 else spells.without_ends[regime]
                )
                for held in range(kinds):
                    for step in range(steps):
                        same = following[2 * regime + there, held, step]
                        other = following[2 * regime + 1 - there, held, step]
                        same += moves * (usual[there, held, step] - same)
                        other += moves * (usual[1 - there, held, step] - other)
                        mean[held, step] = same + ends * (other - same)
                target = costs[tick, 2 * regime + there]
                _fill_state(task, mean, target, there, levels, after_finished)
                if finished < steps:
                    costs[tick, 2 * regime + there, :, finished:] = 0.0
    return costs


@compiled
def _fill_state(
    task: SingleTask,
    mean: NDArray[np.float32],
    target: NDArray[np.float32],
    there: int,
    levels: int,
    finished: int,
) -> None:
    target[:] = np.float32(task.late)
    for held in range(target.shape[0]):
        row = target[held]
        kind, since = WAIT, 0
        if held > 0:
            kind, since = 1 + (held - 1) // (levels + 1), (held - 1) % (levels + 1)
        if kind == SPOT and there == 0:
            row[:] = target[0]
            continue
        _step_row(row, mean[0], task.tick / task.unit, 0.0, task.late, finished)
        for choice in (SPOT, ON_DEMAND):
            if choice == SPOT and there == 0:
                continue
            pending = pending_since(task.tick, task.restart, since)
            did = tick_step(task.tick, task.restart, kind, pending, choice)
            after = mean[held_index(task, choice, next_since(levels, since, did.started))]
            cost = tick_charge(choice, task.spot, task.on_demand)
            _step_row(row, after, did.lost / task.unit, cost, task.late, finished)


@compiled
def choose(
    task: SingleTask,
    following: NDArray[np.float32],
    chances: NDArray[np.float64],
    time_left: float,
    work_left: float,
    held: int,
    pending: float,
    there: bool,
) -> tuple[int, float, float, float]:
    """The choice with the least mean cost among those that can still be on time, and the mean
    cost of waiting, spot and on-demand (infinite: not to be had, or the deadline would be lost).
    """
    levels = pending_levels(task)
    costs = np.full(3, np.inf)
    for choice in range(3):
        if choice == SPOT and not there:
            continue
        did = tick_step(task.tick, task.restart, held, pending, choice)
        after_work, after_time = work_left - did.work, time_left - task.tick
        # Never lose a tick: whatever is on spot may be gone at the next boundary.
        needed = after_work + (did.pending if choice == ON_DEMAND else task.restart)
        price = tick_charge(choice, task.spot, task.on_demand)
        if after_work <= _NOISE and choice != WAIT:
            costs[choice] = price
        elif needed <= after_time + _NOISE:
            since = 0
            if choice != WAIT and did.pending > 0:
                ticks = int(np.rint((task.restart - did.pending) / task.tick))
                since = min(levels, max(1, ticks))
            index = held_index(task, choice, since)
            slack = (after_time - after_work) / task.unit
            finished = finished_step(task, after_time)
            costs[choice] = price
            for state in range(chances.size):
                if chances[state] > 0:
                    costs[choice] += chances[state] * _at(
                        following[state, index], slack, finished, task.late
                    )
    best = ON_DEMAND
    for choice in (SPOT, WAIT):
        if costs[choice] < costs[best] - _NOISE:
            best = choice
    if np.isinf(costs[best]):
        # The deadline can no longer be kept for sure: go on with what needs no restart.
        best = SPOT if held == SPOT and there else ON_DEMAND
    return best, costs[WAIT], costs[SPOT], costs[ON_DEMAND]
