"""The expected cost of every choice over several pools, as compiled tables.

The tables look at a few pools. Each is up or down and changes by a chain of its own, so the state
of the market is a number of as many bits, and the mean over the next state is one small product
after the other. Overhead counts as work that is left at the pace of the pool.

A choice is allowed if on-demand can still finish in time after it, whatever the market does. On
demand in the fastest pool is always allowed. So the tables need no cost for being late.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from duetune.core.compiled import compiled

if TYPE_CHECKING:
    from numpy.typing import NDArray


class PoolPlan(NamedTuple):
    """What the tables need to know. Times are seconds, prices dollars per second.

    The first ``spots`` choices are spot, the others on-demand; the last one finishes earliest.
    Modes are the places of the checkpoint with nothing held, then what each choice holds.

    ``overhead[q, c]``, ``egress[q, c]``: of a start of choice c from place q. ``place[c]``: where
    it leaves the checkpoint. ``goes[i]``, ``comes[i]``: the probability that spot i is gone, or
    back, after a step. ``unit``: the work of one cell. ``billed``: the last bill is counted in so
    many seconds. ``rent``: what waiting costs per second.
    """

    step: float
    unit: float
    billed: float
    rent: float
    spots: int
    price: NDArray[np.float64]
    pace: NDArray[np.float64]
    overhead: NDArray[np.float64]
    egress: NDArray[np.float64]
    place: NDArray[np.int64]
    goes: NDArray[np.float64]
    comes: NDArray[np.float64]


@compiled
def safe_work(plan: PoolPlan, mode: int, time_left: float) -> float:
    """Return the most work that on-demand alone can do in the time left, from a mode.

    Spot that is held may be gone, so it counts as its place only.
    """
    places, choices = plan.overhead.shape
    place = mode if mode < places else plan.place[mode - places]
    most = -1.0
    for choice in range(plan.spots, choices):
        overhead = 0.0 if mode == places + choice else plan.overhead[place, choice]
        most = max(most, (time_left - overhead) * plan.pace[choice])
    return most


@compiled
def _take(
    row: NDArray[np.float32],
    after: NDArray[np.float32],
    plan: PoolPlan,
    choice: int,
    overhead: float,
    egress: float,
    last: int,
) -> None:
    """Set row = min(row, cost of a step of ``choice``) for at most ``last`` cells of work left."""
    done = (plan.step - overhead) * plan.pace[choice] / plan.unit
    shift = int(np.floor(-done))
    part = np.float32(-done - shift)
    charge = np.float32(plan.price[choice] * plan.step + egress)
    cells = row.size
    first = min(last + 1, max(1, -shift))
    for cell in range(1, first):
        # The work ends within the step.
        used = overhead + cell * plan.unit / plan.pace[choice]
        used = min(plan.step, np.ceil(used / plan.billed - 1e-6) * plan.billed)
        row[cell] = min(row[cell], np.float32(plan.price[choice] * used + egress))
    for cell in range(first, last + 1):
        low = min(cells - 1, cell + shift)
        high = min(cells - 1, low + 1)
        row[cell] = min(row[cell], charge + after[low] + part * (after[high] - after[low]))


@compiled
def fill_values(plan: PoolPlan, steps: int, cells: int) -> NDArray[np.float32]:
    """Return ``values[s, a, m, w]``: the expected cost with s steps left before the deadline.

    Bit i of a says whether spot i is up, m is the mode, and w the cells of work left.
    """
    places, choices = plan.overhead.shape
    modes, states = places + choices, 1 << plan.spots
    values = np.zeros((steps + 1, states, modes, cells), dtype=np.float32)
    fastest = choices - 1
    for mode in range(modes):
        place = mode if mode < places else plan.place[mode - places]
        overhead = 0.0 if mode == modes - 1 else plan.overhead[place, fastest]
        for cell in range(1, cells):
            seconds = overhead + cell * plan.unit / plan.pace[fastest]
            values[0, :, mode, cell] = plan.price[fastest] * seconds + plan.egress[place, fastest]
    mean = np.empty((states, modes, cells), dtype=np.float32)
    rent = np.float32(plan.rent * plan.step)
    for left in range(1, steps + 1):
        mean[:] = values[left - 1]
        for spot in range(plan.spots):
            goes, comes = np.float32(plan.goes[spot]), np.float32(plan.comes[spot])
            for state in range(states):
                if state & (1 << spot):
                    continue
                down, up = mean[state].ravel(), mean[state | (1 << spot)].ravel()
                for cell in range(down.size):
                    below, above = down[cell], up[cell]
                    down[cell] = below + comes * (above - below)
                    up[cell] = above + goes * (below - above)
        for mode in range(modes):
            held = mode - places
            after_time = (left - 1) * plan.step
            for state in range(states):
                row = values[left, state, mode]
                if held < 0:
                    row[1:] = np.inf
                    last = int(np.floor(safe_work(plan, mode, after_time) / plan.unit + 1e-6))
                    for cell in range(1, min(cells, last + 1)):
                        row[cell] = rent + mean[state, mode, cell]
                else:
                    # What is held can be left for anything that its place can start.
                    row[:] = values[left, state, plan.place[held]]
                for choice in range(choices):
                    if choice < plan.spots and not state & (1 << choice):
                        continue
                    if held >= 0 and choice != held:
                        continue
                    place = mode if held < 0 else plan.place[held]
                    overhead = plan.overhead[place, choice] if held < 0 else 0.0
                    egress = plan.egress[place, choice] if held < 0 else 0.0
                    last = cells - 1
                    if choice != fastest:
                        work = safe_work(plan, places + choice, after_time)
                        work += (plan.step - overhead) * plan.pace[choice]
                        last = min(last, int(np.floor(work / plan.unit + 1e-6)))
                    after = mean[state, places + choice]
                    _take(row, after, plan, choice, overhead, egress, last)
    return values


@compiled
def expected_value(
    values: NDArray[np.float32],
    plan: PoolPlan,
    chances: NDArray[np.float64],
    mode: int,
    time_left: float,
    work_left: float,
) -> float:
    """Return the mean cost from a time and a mode on, where spot i is up with ``chances[i]``."""
    if work_left <= 0:
        return 0.0
    time = min(max(0.0, time_left / plan.step), values.shape[0] - 1.0)
    work = min(work_left / plan.unit, values.shape[3] - 1.0)
    early, low = min(int(time), values.shape[0] - 2), min(int(work), values.shape[3] - 2)
    later, more = time - early, work - low
    total = 0.0
    for state in range(1 << plan.spots):
        chance = 1.0
        for spot in range(plan.spots):
            chance *= chances[spot] if state & (1 << spot) else 1.0 - chances[spot]
        if chance > 0.0:
            for then, share in ((early, 1.0 - later), (early + 1, later)):
                row = values[then, state, mode]
                total += chance * share * (row[low] * (1.0 - more) + row[low + 1] * more)
    return total
