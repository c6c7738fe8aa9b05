"""Backward induction against a market that is a Markov chain: the best plan for every future.

As in ``bellman``, but the value of a state is a mean over the markets that may follow, and work
left lies between the steps of the grid: values there are interpolated, since a mean over futures
is smooth where the value of a single one is not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from duetune.core.compiled import compiled
from duetune.core.physics import JobPhysics, cheapest_charge

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
    """row[r] = the value of doing ``stride`` steps at ``cost``, with r steps left.

    Column 0 stands for a hair of work that is left: it takes a slot, as more would.
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
    for index in range(target.size):
        target[index] = max(target[index], other[index])


@compiled
def mean_over(
    chain: MarketChain,
    following: NDArray[np.float32],
    half: NDArray[np.float32],
    mean: NDArray[np.float32],
) -> None:
    """mean[i] = sum over j of transition[i, j] following[j], over prices first (``half``), then
    over numbers; in this order on every machine.
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
    """``tables[t, i, m, r]``: the mean value from the start of slot t on, when the market is in
    state i, m GPUs were held, and r steps of ``unit`` work are left; from slot ``begin`` on.
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
    """The value between two steps."""
    whole = int(left)
    if whole >= row.size - 1:
        return float(row[row.size - 1])
    part = left - whole
    return float(row[whole] * (1 - part) + row[whole + 1] * part)
