"""The least cost of one instance on a known market, by exact backward induction."""

from __future__ import annotations

from typing import TYPE_CHECKING

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


@compiled
def least_cost(
    available: NDArray[np.int64], work: int, tick: int, restart: int, spot: float, on_demand: float
) -> float:
    """Return the least cost, or infinity if no plan is done by the last tick.

    The state is what is held, the ticks since its restart, and the work left in units.
    """
    levels = max(0, -(-restart // tick) - 1)
    kinds = 1 + 2 * (levels + 1)
    following = np.full((kinds, work + 1), np.inf)
    following[:, 0] = 0.0
    costs = np.empty((kinds, work + 1))
    for place in range(available.size - 1, -1, -1):
        there = available[place] == 1
        for held in range(kinds):
            kind = 0 if held == 0 else 1 + (held - 1) // (levels + 1)
            since = 0 if held == 0 else (held - 1) % (levels + 1)
            if kind == SPOT and not there:
                kind, since = WAIT, 0
            row = costs[held]
            row[:] = following[0]
            row[0] = 0.0
            for choice in (SPOT, ON_DEMAND):
                if choice == SPOT and not there:
                    continue
                did = tick_step(tick, restart, kind, pending_since(tick, restart, since), choice)
                price = tick_charge(choice, spot, on_demand)
                place_after = next_since(levels, since, did.started)
                after = following[1 + (choice - 1) * (levels + 1) + place_after]
                for left in range(1, work + 1):
                    row[left] = min(row[left], price + after[max(0, left - did.work)])
        following, costs = costs, following
    return float(following[0, work])
