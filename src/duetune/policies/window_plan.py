"""Planning over a window of slots, compiled: value tables and plans.

The window of slot t covers t to t+h. Its tables are filled from the forecast for t+1 to t+h. They
end in the value of continuing in a market that does not change (``to_go``): on-demand alone, or
with a share of the typically available spot. Slot t itself is evaluated with the real state, so one
set of tables serves every policy with the same h.
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

PLANNING_STEPS = 1024
_TABLE_CELLS = 20_000_000  # 160 MB; longer and larger jobs get a coarser grid
UNPLANNED = -1.0
_TIE = 1e-9


def planning_grid(job: Job, steps: int = PLANNING_STEPS) -> ProgressGrid:
    """Return the progress grid that policies plan a job on, of at most ``steps`` steps.

    It is the specified grid, of the greatest common divisor of all amounts of work, if that one has
    so few steps. Otherwise work without a change of GPUs is still a whole number of steps.
    """
    cells = (job.hard_deadline + 2) * (job.max_gpus + 1)
    return progress_grid(job, max(1, min(steps, _TABLE_CELLS // cells)), even=True)


@compiled
def fill_to_go(
    job: JobPhysics,
    grid: ProgressGrid,
    typical_available: float,
    typical_price: float,
    on_demand_price: float,
    to_go: NDArray[np.float64],
    running: NDArray[np.float64],
    from_start: bool,
) -> None:
    """Fill Phi: ``to_go[t, m, r]``, the best value from slot t on in a market that does not change.

    With nothing available it is the value of on-demand alone, a lower bound on the optimum.
    ``from_start``: see ``fill_value_tables``; a live job may have done more than it is thought to.
    """
    costs = np.zeros((job.hard_deadline + 1, job.max_gpus + 1))
    for gpus in range(1, job.max_gpus + 1):
        costs[:, gpus] = cheapest_charge(gpus, typical_available, typical_price, on_demand_price)
    fill_value_tables(job, grid, costs, to_go, running, False, from_start)


@compiled
def horizon_of(job: JobPhysics, window: int, slot: int, forecasts: int) -> int:
    """Return h = min(window, d - t), and no more than the forecast has."""
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
    nearest: int,
    window: NDArray[np.float64],
    costs: NDArray[np.float64],
    running: NDArray[np.float64],
) -> None:
    """Fill ``window[j, m, r]``, j = ``nearest``..h: the value at the start of slot t + j.

    It is filled for every r that is reachable from ``fewest`` to ``most`` steps left in slot t.
    ``nearest`` is 2, or 1 for virtual plans: of the next slot a real plan asks for few values, and
    ``value_next`` computes them.
    """
    stride = max(grid.strides[STAY, job.max_gpus], grid.strides[GROW, job.max_gpus])
    for ahead in range(horizon, nearest - 1, -1):
        fill_costs(job, forecast, ahead, on_demand_price, costs)
        following = to_go[slot + horizon + 1] if ahead == horizon else window[ahead + 1]
        # The first action counts true progress, up to one step more than its stride rounded down.
        first = max(1, fewest - ahead * stride - 1)
        finish = job.values[slot + ahead]
        sweep(job, grid, following, window[ahead], costs, finish, first, most, running, False)


@compiled
def fill_costs(
    job: JobPhysics,
    forecast: Ahead,
    ahead: int,
    on_demand_price: float,
    costs: NDArray[np.float64],
) -> None:
    """Set costs[n] to the charge for n GPUs in the slot that is ``ahead`` slots ahead."""
    available, price = forecast.available[ahead - 1], forecast.spot_price[ahead - 1]
    for gpus in range(1, job.max_gpus + 1):
        costs[gpus] = cheapest_charge(gpus, available, price, on_demand_price)


@compiled
def value_next(
    job: JobPhysics,
    grid: ProgressGrid,
    following: NDArray[np.float64],
    left: int,
    held: int,
    costs: NDArray[np.float64],
    finish: float,
) -> float:
    """Return the value at the start of a slot from the table of the slot after it."""
    best = float(following[0, left])
    for gpus in range(job.min_gpus, job.max_gpus + 1):
        best = max(best, value_of_action(grid, following, left, held, gpus, costs[gpus], finish))
    return best


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
    """Return the best number of GPUs in one slot of a plan; the smaller of two equal ones."""
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
    reserve: float,
    available: int,
    on_demand_price: float,
    next_costs: NDArray[np.float64],
) -> int:
    """Return the best number of GPUs in the present slot, with true progress and change.

    ``reserve`` is work that the plan leaves room for. ``following`` is the table of the next slot,
    or, if ``next_costs`` has the charges of the next slot, of the slot after that.
    """
    looks, finish = next_costs.size > 0, job.values[now.slot + 1]
    left = steps_left(job, grid, now.progress - reserve)
    choice, best = 0, float(following[0, left])
    if looks:
        best = value_next(job, grid, following, left, 0, next_costs, finish)
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
            left = steps_left(job, grid, did.progress - reserve)
            if looks:
                value += value_next(job, grid, following, left, gpus, next_costs, finish)
            else:
                value += following[gpus, left]
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
    next_costs: NDArray[np.float64],
    patience: float,
    virtual: bool,
    reserve: float,
    left: int,
    held: int,
    plan: NDArray[np.float64],
) -> None:
    """Write the first ``plan.size`` actions of the window plan.

    An action is 0 once the work is done and ``UNPLANNED`` beyond the window. ``patience`` raises
    the on-demand price of the present slot by this share: on-demand can always be bought later,
    while spot may do the work meanwhile.
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
        if ahead == 0 and not virtual:
            seen = min(1, horizon)
            following = to_go[slot + 1 + seen] if horizon <= 1 else window[2]
            costs = next_costs[: seen * next_costs.size]
            gpus = best_gpus_now(
                job, grid, following, now, reserve, available, on_demand_price, costs
            )
        else:
            following = to_go[slot + 1] if ahead == horizon else window[ahead + 1]
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
    """Return the GPUs to hold from the deadline on; none if giving up is best."""
    following = to_go[now.slot + 1]
    return best_gpus_now(
        job, grid, following, now, 0.0, available, now.on_demand_price, np.empty(0)
    )
