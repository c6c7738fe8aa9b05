"""Planning over a window, compiled: the window's value tables and plans from them.

The window of slot t covers t..t+h. Its tables are filled from the forecast for t+1..t+h and end
in the value of going on in a market that does not move (``to_go``): on-demand alone, or with a
share of what is typically available on spot.
Slot t itself is real and evaluated per state, so one set of tables serves every policy with the
same h, wherever its progress is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from duetune.core.compiled import compiled
from duetune.core.physics import JobPhysics, cheapest_charge, cheapest_spot, step
from duetune.policies.solve.bellman import (
    change_of,
    fill_value_tables,
    steps_left,
    sweep,
    value_of_action,
)
from duetune.policies.solve.progress_grid import GROW, STAY, ProgressGrid, progress_grid

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from duetune.core.job import Job
    from duetune.policies.rules import Ahead, Now

PLANNING_STEPS = 512
_TABLE_CELLS = 20_000_000  # 160 MB: longer and larger jobs are planned on a coarser grid
UNPLANNED = -1.0
_TIE = 1e-9
_STEP_NOISE = 1e-9


def planning_grid(job: Job) -> ProgressGrid:
    """The grid that policies plan a job on."""
    cells = (job.hard_deadline + 2) * (job.max_gpus + 1)
    return progress_grid(job, max(1, min(PLANNING_STEPS, _TABLE_CELLS // cells)))


@compiled
def fill_to_go(
    job: JobPhysics,
    grid: ProgressGrid,
    typical_available: float,
    typical_price: float,
    on_demand_price: float,
    to_go: NDArray[np.float64],
    running: NDArray[np.float64],
) -> None:
    """Phi: ``to_go[t, m, r]``, the best value from slot t on in a market that does not move.

    With nothing available it is the value of on-demand alone, a lower bound on the optimum.
    """
    costs = np.zeros((job.hard_deadline + 1, job.max_gpus + 1))
    for gpus in range(1, job.max_gpus + 1):
        costs[:, gpus] = cheapest_charge(gpus, typical_available, typical_price, on_demand_price)
    fill_value_tables(job, grid, costs, to_go, running)


@compiled
def horizon_of(job: JobPhysics, window: int, slot: int, forecasts: int) -> int:
    """h = min(window, d - t), and no further than the forecast goes."""
    return max(0, min(window, job.deadline - slot, forecasts))


@compiled
def fill_window(
    job: JobPhysics,
    grid: ProgressGrid,
    to_go: NDArray[np.float64],
    slot: int,
    horizon: int,
    forecast: Ahead,
    on_demand_price: float,
    fewest: int,
    most: int,
    window: NDArray[np.float64],
    costs: NDArray[np.float64],
    running: NDArray[np.float64],
) -> None:
    """``window[j, m, r]``, j = 1..h: the value at the start of slot t + j.

    Filled for every r that states with ``fewest`` to ``most`` steps left in slot t can reach.
    """
    stride = max(grid.strides[STAY, job.max_gpus], grid.strides[GROW, job.max_gpus])
    for ahead in range(horizon, 0, -1):
        for gpus in range(1, job.max_gpus + 1):
            costs[gpus] = cheapest_charge(
                gpus, forecast.available[ahead - 1], forecast.spot_price[ahead - 1], on_demand_price
            )
        following = to_go[slot + horizon + 1] if ahead == horizon else window[ahead + 1]
        first = max(1, fewest - ahead * stride)
        finish = job.values[slot + ahead]
        sweep(job, grid, following, window[ahead], costs, finish, first, most, running)


@compiled
def best_gpus(
    job: JobPhysics,
    grid: ProgressGrid,
    following: NDArray[np.float64],
    left: int,
    held: int,
    spot_price: float,
    available: int,
    on_demand_price: float,
    finish: float,
) -> int:
    """The best number of GPUs in one slot; the smaller of two that are as good."""
    choice, best = 0, float(following[0, left])
    for gpus in range(job.min_gpus, job.max_gpus + 1):
        cost = cheapest_charge(gpus, available, spot_price, on_demand_price)
        value = value_of_action(grid, following, left, held, gpus, cost, finish)
        if value > best + _TIE:
            choice, best = gpus, value
    return choice


@compiled
def best_gpus_now(
    job: JobPhysics,
    grid: ProgressGrid,
    following: NDArray[np.float64],
    now: Now,
    left: int,
    available: int,
    on_demand_price: float,
) -> int:
    """As ``best_gpus`` for the present slot, with true progress and what a change really costs."""
    choice, best = 0, float(following[0, left])
    for gpus in range(job.min_gpus, job.max_gpus + 1):
        spot = cheapest_spot(gpus, available, now.spot_price, on_demand_price)
        did = step(
            job,
            now.progress,
            now.held_spot,
            now.held_on_demand,
            spot,
            gpus - spot,
            now.spot_price,
            now.available,
            on_demand_price,
        )
        value = -did.charge
        if did.done:
            value += job.values[now.slot]
        else:
            value += following[gpus, max(1, left - int(did.work / grid.unit + _STEP_NOISE))]
        if value > best + _TIE:
            choice, best = gpus, value
    return choice


@compiled
def fill_plan(
    job: JobPhysics,
    grid: ProgressGrid,
    to_go: NDArray[np.float64],
    window: NDArray[np.float64],
    now: Now,
    available: int,
    horizon: int,
    forecast: Ahead,
    patience: float,
    virtual: bool,
    left: int,
    held: int,
    plan: NDArray[np.float64],
) -> None:
    """The first ``plan.size`` actions of the window plan; 0 once the work is done, ``UNPLANNED``
    beyond the window.

    On-demand is always to be had, spot is not: what is bought on demand now forgoes the chance
    that spot does it later. ``patience`` is the price of that chance, as a share of on-demand's.
    """
    spot_price = now.spot_price
    on_demand_price = (1 + patience) * now.on_demand_price
    for ahead in range(plan.size):
        if ahead > horizon:
            plan[ahead] = UNPLANNED
            continue
        if left <= 0:
            plan[ahead] = 0.0
            continue
        slot = now.slot + ahead
        if ahead > 0:
            spot_price, available = forecast.spot_price[ahead - 1], forecast.available[ahead - 1]
            on_demand_price = now.on_demand_price
        following = to_go[slot + 1] if ahead == horizon else window[ahead + 1]
        if ahead == 0 and not virtual:
            gpus = best_gpus_now(job, grid, following, now, left, available, on_demand_price)
        else:
            gpus = best_gpus(
                job,
                grid,
                following,
                left,
                held,
                spot_price,
                available,
                on_demand_price,
                job.values[slot],
            )
        plan[ahead] = gpus
        left -= grid.strides[change_of(held, gpus), gpus]
        held = gpus


@compiled
def overtime(
    job: JobPhysics, grid: ProgressGrid, to_go: NDArray[np.float64], now: Now, available: int
) -> int:
    """From the deadline on: this slot's spot, on-demand later, or giving up if that is best."""
    left = steps_left(job, grid, now.progress)
    following = to_go[now.slot + 1]
    return best_gpus_now(job, grid, following, now, left, available, now.on_demand_price)
