"""Backward induction against a market that is a Markov chain: the best plan for every future.

It works as ``bellman`` does, with two differences. The value of a state is a mean over the markets
that may follow. Work left can lie between the steps of the grid; values there are interpolated,
because a mean over futures is smooth.

``fill_tables`` counts GPUs and ignores their kind. ``fill_mix_tables`` is for jobs in which a swap
between spot and on-demand costs work: a choice is a pair (spot, on-demand), and the market decides
how much of the spot is still there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from duetune.core.compiled import compiled
from duetune.core.physics import JobPhysics, charge, cheapest_charge

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from duetune.core.market import MarketChain


STEP_NOISE = 1e-9


@compiled
def worth(
    row: NDArray[np.float32],
    after: NDArray[np.float32],
    stride: float,
    finish: float,
    cost: float,
) -> None:
    """Set row[r] to the value of doing ``stride`` steps at ``cost``, with r steps left.

    Column 0 stands for a last bit of work, which takes a slot as more work would.
    """
    whole = int(stride + STEP_NOISE)
    part = np.float32(max(0.0, stride - whole))
    if part < STEP_NOISE:
        part = np.float32(0.0)
    price = np.float32(cost)
    last = row.size - 1
    row[: min(whole, last) + 1] = np.float32(finish - cost)
    begin = whole + 1
    if begin <= last:
        near, far = after[1 : last + 1 - whole], after[0 : last - whole]
        target = row[begin : last + 1]
        for index in range(target.size):
            target[index] = near[index] + part * (far[index] - near[index]) - price


@compiled
def raise_row(target: NDArray[np.float32], other: NDArray[np.float32]) -> None:
    """Set target = max(target, other)."""
    for index in range(target.size):
        target[index] = max(target[index], other[index])


@compiled
def mean_over(
    chain: MarketChain,
    following: NDArray[np.float32],
    half: NDArray[np.float32],
    mean: NDArray[np.float32],
) -> None:
    """Set mean[i] = sum over j of transition[i, j] following[j].

    The sum runs over prices first (``half``), then over numbers, in the same order on every
    machine.
    """
    numbers, prices = chain.by_number.shape[0], chain.by_price.shape[0]
    for number in range(numbers):
        for price in range(prices):
            target = half[number * prices + price]
            target[:] = 0.0
            for after in range(prices):
                _add_to(target, following[number * prices + after], chain.by_price[price, after])
    for number in range(numbers):
        for price in range(prices):
            target = mean[number * prices + price]
            target[:] = 0.0
            for after in range(numbers):
                _add_to(target, half[after * prices + price], chain.by_number[number, after])


@compiled
def _add_to(target: NDArray[np.float32], source: NDArray[np.float32], chance: float) -> None:
    share = np.float32(chance)
    if share > 0:
        for index in range(target.size):
            target[index] += share * source[index]


@compiled
def fill_tables(
    job: JobPhysics,
    chain: MarketChain,
    on_demand_price: float,
    unit: float,
    begin: int,
) -> NDArray[np.float32]:
    """Return ``tables[t, i, m, r]``: the expected value from the start of slot t on.

    The market is in state i, m GPUs were held, and r steps of ``unit`` work are left. Slots before
    ``begin`` stay zero.
    """
    states, gpus_most = chain.available.size, job.max_gpus
    steps = max(1, int(np.ceil(job.work / unit - STEP_NOISE)))
    rows = gpus_most + 1
    tables = np.zeros((job.hard_deadline + 2, states, rows, steps + 1), dtype=np.float32)
    half = np.zeros((states, rows * (steps + 1)), dtype=np.float32)
    mean = np.zeros((states, rows * (steps + 1)), dtype=np.float32)
    stay = np.zeros(steps + 1, dtype=np.float32)
    grown = np.zeros((rows, steps + 1), dtype=np.float32)
    running = np.zeros(steps + 1, dtype=np.float32)
    for slot in range(job.hard_deadline, begin - 1, -1):
        following = tables[slot + 1].reshape((states, rows * (steps + 1)))
        mean_over(chain, following, half, mean)
        finish = job.values[slot]
        for state in range(states):
            after = mean[state].reshape((rows, steps + 1))
            value = tables[slot, state]
            running[:] = after[0]
            value[0] = running
            for gpus in range(job.min_gpus, rows):
                cost = cheapest_charge(
                    gpus, chain.available[state], chain.spot_price[state], on_demand_price
                )
                speed = job.throughput[gpus] / unit
                value[gpus] = running
                worth(stay, after[gpus], speed, finish, cost)
                raise_row(value[gpus], stay)
                worth(stay, after[gpus], job.shrink * speed, finish, cost)
                raise_row(running, stay)
                worth(grown[gpus], after[gpus], job.grow * speed, finish, cost)
            running[:] = -np.inf
            for gpus in range(gpus_most, job.min_gpus - 1, -1):
                raise_row(value[gpus], running)
                raise_row(running, grown[gpus])
            raise_row(value[0], running)
    return tables


@compiled
def value_at(row: NDArray[np.float32], left: float) -> float:
    """Return the value between two steps, interpolated."""
    whole = int(left)
    if whole >= row.size - 1:
        return float(row[row.size - 1])
    part = left - whole
    return float(row[whole] * (1 - part) + row[whole + 1] * part)


_CLASSES = 4  # no change, or the costliest change was shrinking, growing or a preemption


def mixes(min_gpus: int, max_gpus: int) -> NDArray[np.int64]:
    """Return all (spot, on-demand) pairs that a job may hold, nothing first."""
    pairs = [
        (spot, total - spot)
        for total in (0, *range(min_gpus, max_gpus + 1))
        for spot in range(total + 1)
    ]
    return np.array(pairs, dtype=np.int64)


@compiled
def _dearest(kept: int, on_demand: int, lost: bool, spot: int, wanted: int) -> int:
    """Return the kinds of change that happen at once: 1 shrinking, 2 growing, 4 preemption."""
    changes = 4 if lost else 0
    if spot > kept or wanted > on_demand:
        changes |= 2
    if spot < kept or wanted < on_demand:
        changes |= 1
    return changes


@compiled
def _classes(job: JobPhysics) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Return the fractions of a slot that may remain, and the one for each set of changes."""
    fractions = np.array([1.0, job.shrink, job.grow, job.preempted])
    of_changes = np.zeros(8, dtype=np.int64)
    for changes in range(8):
        for bit, place in ((1, 1), (2, 2), (4, 3)):
            if changes & bit and fractions[place] < fractions[of_changes[changes]]:
                of_changes[changes] = place
    return fractions, of_changes


@compiled
def fill_mix_tables(
    job: JobPhysics,
    chain: MarketChain,
    pairs: NDArray[np.int64],
    on_demand_price: float,
    unit: float,
    begin: int,
) -> NDArray[np.float32]:
    """Return ``tables[t, i, c, r]`` as ``fill_tables`` does, with ``pairs[c]`` held."""
    states, count = chain.available.size, pairs.shape[0]
    steps = max(1, int(np.ceil(job.work / unit - STEP_NOISE)))
    tables = np.zeros((job.hard_deadline + 2, states, count, steps + 1), dtype=np.float32)
    half = np.zeros((states, count * (steps + 1)), dtype=np.float32)
    mean = np.zeros((states, count * (steps + 1)), dtype=np.float32)
    rows = np.zeros((count, _CLASSES, steps + 1), dtype=np.float32)
    lost_value = np.zeros((job.max_gpus + 1, steps + 1), dtype=np.float32)
    fractions, of_changes = _classes(job)
    for slot in range(job.hard_deadline, begin - 1, -1):
        mean_over(chain, tables[slot + 1].reshape((states, count * (steps + 1))), half, mean)
        for state in range(states):
            after = mean[state].reshape((count, steps + 1))
            available = chain.available[state]
            for held in range(1, count):
                spot, on_demand = pairs[held]
                if spot > available:
                    continue
                cost = charge(spot, on_demand, chain.spot_price[state], on_demand_price)
                speed = job.throughput[spot + on_demand] / unit
                for place in range(_CLASSES):
                    row = rows[held, place]
                    stride = fractions[place] * speed
                    worth(row, after[held], stride, job.values[slot], cost)
            value = tables[slot, state]
            _best_actions(
                value, lost_value, rows, after[0], pairs, available, of_changes, job.min_gpus
            )
    return tables


@compiled
def _best_actions(
    value: NDArray[np.float32],
    lost_value: NDArray[np.float32],
    rows: NDArray[np.float32],
    waiting: NDArray[np.float32],
    pairs: NDArray[np.int64],
    available: int,
    of_changes: NDArray[np.int64],
    min_gpus: int,
) -> None:
    """Set the best value for everything that may have been held.

    Spot that was held beyond what is available now is lost, and it does not matter how much it was.
    """
    most = lost_value.shape[0] - 1
    for on_demand in range(most + 1):
        lost_value[on_demand] = waiting
    for held in range(value.shape[0]):
        value[held] = waiting
    for action in range(1, value.shape[0]):
        spot, wanted = pairs[action]
        if spot > available:
            continue
        for held in range(value.shape[0]):
            if pairs[held, 0] <= available:
                changes = _dearest(pairs[held, 0], pairs[held, 1], False, spot, wanted)
                raise_row(value[held], rows[action, of_changes[changes]])
        for on_demand in range(most + 1):
            changes = _dearest(available, on_demand, True, spot, wanted)
            raise_row(lost_value[on_demand], rows[action, of_changes[changes]])
    for held in range(value.shape[0]):
        if pairs[held, 0] > available and pairs[held, 0] + pairs[held, 1] >= min_gpus:
            value[held] = lost_value[pairs[held, 1]]
