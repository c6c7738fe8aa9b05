"""As ``stochastic``, where also a swap between spot and on-demand costs work: what is held is a
pair (spot, on-demand), and a state of the market decides how much of the spot is still there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from duetune.core.compiled import compiled
from duetune.core.physics import JobPhysics, charge
from duetune.policies.solve.stochastic import STEP_NOISE, mean_over, raise_row, worth

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from duetune.core.market import MarketChain

_CLASSES = 4  # nothing changed, or the dearest change was a shrinking, a growing, a preemption


def mixes(min_gpus: int, max_gpus: int) -> NDArray[np.int64]:
    """All pairs (spot, on-demand) that a job may hold, none first."""
    pairs = [
        (spot, total - spot)
        for total in (0, *range(min_gpus, max_gpus + 1))
        for spot in range(total + 1)
    ]
    return np.array(pairs, dtype=np.int64)


@compiled
def _dearest(kept: int, on_demand: int, lost: bool, spot: int, wanted: int) -> int:
    """Which kinds of change happen at once, as bits: 1 shrinking, 2 growing, 4 a preemption."""
    changes = 4 if lost else 0
    if spot > kept or wanted > on_demand:
        changes |= 2
    if spot < kept or wanted < on_demand:
        changes |= 1
    return changes


@compiled
def _classes(job: JobPhysics) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """The fractions of a slot that may be left, and the one for each set of changes."""
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
    """``tables[t, i, c, r]``: as ``stochastic.fill_tables``, with ``pairs[c]`` held."""
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
    """The best action for everything that may have been held. What was held above what is there
    now is lost, and it no longer matters how much that was.
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
