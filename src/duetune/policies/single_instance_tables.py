"""The expected cost of each choice for one instance, as compiled tables.

The slack is the time left minus the work left. Waiting costs a tick of slack, a restart costs its
overhead, and running costs none. Slack therefore only falls, and tables over slack are as small as
possible.
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
    """One job in seconds and dollars per tick.

    ``late`` is the cost of being late, more than any plan costs. ``slack`` is the largest possible
    slack, and ``unit`` the step of the tables over it.
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
    """Return how many ticks after a restart's first tick still begin with overhead left."""
    return max(0, int(np.ceil(task.restart / task.tick - _NOISE)) - 1)


@compiled
def held_index(task: SingleTask, kind: int, since: int) -> int:
    """Return the table row of what is held, started ``since`` ticks ago; 0: nothing pending."""
    if kind == WAIT:
        return 0
    return 1 + (kind - 1) * (pending_levels(task) + 1) + since


@compiled
def finished_step(task: SingleTask, time_left: float) -> int:
    """Return the first step of slack at which no work is left."""
    return int(np.ceil(time_left / task.unit - _NOISE))


@compiled
def _at(row: NDArray[np.float32], slack: float, finished: int, late: float) -> float:
    """Return the cost at a slack between two steps.

    Below zero the job is late. A last bit of work costs as much as a whole step.
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
    """Set row = min(row, cost + after at ``lost`` steps less slack)."""
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
    """Return ``costs[t, i, h, s]``: the expected cost from tick t on.

    The market is in state i (regime, and whether there is spot), h is held, and s steps of slack
    are left.
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
        # From this slack on no work is left.
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
    """Fill the costs of one state of the market in one tick, for everything that may be held."""
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
    """Return the choice with the least expected cost that can be on time, and three costs.

    The costs are of waiting, spot and on-demand. A cost is infinite if the choice is not available
    or would lose the deadline.
    """
    levels = pending_levels(task)
    costs = np.full(3, np.inf)
    for choice in range(3):
        if choice == SPOT and not there:
            continue
        did = tick_step(task.tick, task.restart, held, pending, choice)
        after_work, after_time = work_left - did.work, time_left - task.tick
        # Spot may be lost at the next tick, so a restart on on-demand must still fit.
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
        # No choice is sure to meet the deadline: continue with what needs no restart.
        best = SPOT if held == SPOT and there else ON_DEMAND
    return best, costs[WAIT], costs[SPOT], costs[ON_DEMAND]
