"""The offline optimum by dynamic programming, for a market that is known.

Work left is counted on a progress grid. If the grid divides all that a slot can do, the result is
exact. Otherwise the plan is feasible, because progress is rounded down, and the same program
rounded up bounds the true optimum from above.

A budget couples all slots. It enters as a multiplier on every charge: each multiplier gives an
upper bound and a plan, and a bisection finds the tightest.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from duetune.core.compiled import compiled
from duetune.core.physics import (
    JobPhysics,
    charge,
    cheapest_charge,
    cheapest_spot,
    efficiency,
    job_physics,
    step,
)
from duetune.errors import InvalidInput
from duetune.policies.solve.bellman import raise_to, steps_left, value_of_action, value_tables
from duetune.policies.solve.optimum import Optimum, optimum_of_plan
from duetune.policies.solve.progress_grid import ProgressGrid, progress_grid
from duetune.policies.solve.stochastic import mixes

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from duetune.core.job import Job
    from duetune.core.market import MarketWindow

    Tables = NDArray[np.float64]
    Plan = list[tuple[int, int]]

DEFAULT_MAX_STEPS = 20_000
_TABLE_CELLS = 60_000_000  # 480 MB; a larger problem gets a coarser grid, and the bound shows it
_BISECTIONS = 40
# By composition every pair can follow every other. A coarser grid keeps the time to seconds.
_COMPOSITION_MOVES = 10_000_000_000
_COMPOSITION_GPUS = 128


def offline_optimum(
    job: Job, market: MarketWindow, *, max_steps: int = DEFAULT_MAX_STEPS
) -> Optimum:
    """Return the plan with the highest utility for a market that is known to the hard deadline."""
    solver = _Solver(job, market, max_steps)
    plan, bound = solver.solve(1.0)
    best = optimum_of_plan("dynamic", job, market, plan, bound)
    if job.budget is None or best.cost <= job.budget + 1e-9:
        return best
    return _within_budget(solver, job.budget, best)


class _Solver:
    """One job on one market, solved for any multiplier on the charges."""

    def __init__(self, job: Job, market: MarketWindow, max_steps: int) -> None:
        self.job = job
        self.market = market
        self.physics = job_physics(job)
        steps = min(max_steps, _TABLE_CELLS // ((job.hard_deadline + 2) * (job.max_gpus + 1)))
        if self.physics.by_composition:
            if job.max_gpus > _COMPOSITION_GPUS:
                allowed = f"at most {_COMPOSITION_GPUS} for the exact optimum by composition"
                raise InvalidInput("max_gpus", job.max_gpus, allowed)
            self.spot, self.on_demand = holdings(self.physics)
            rows = self.spot.size
            steps = min(
                max_steps,
                _TABLE_CELLS // ((job.hard_deadline + 2) * rows),
                _COMPOSITION_MOVES // (job.hard_deadline * rows * rows),
            )
        steps = max(1, steps)
        self.floor = progress_grid(job, steps)
        self.ceiling = progress_grid(job, steps, optimistic=True)

    def solve(self, multiplier: float) -> tuple[Plan, float]:
        """Return the best plan and an upper bound for value - multiplier x charges."""
        tables = self._tables(self.floor, multiplier, optimistic=False)
        plan = self._follow(self.floor, tables, multiplier)
        if self.floor.exact:
            return plan, float(tables[1, 0, self.floor.steps])
        above = self._tables(self.ceiling, multiplier, optimistic=True)
        # On a coarse grid the optimistic tables can lead to the better plan. Both plans are
        # feasible, because both are followed with true progress.
        plans = (plan, self._follow(self.ceiling, above, multiplier))
        best = max(plans, key=lambda found: self._worth(found, multiplier))
        return best, float(above[1, 0, self.ceiling.steps])

    def _worth(self, plan: Plan, multiplier: float) -> float:
        """Return the objective of a plan when it is played with true progress."""
        found = optimum_of_plan("dynamic", self.job, self.market, plan, 0.0)
        return found.utility - (multiplier - 1) * found.cost

    def _follow(self, grid: ProgressGrid, tables: Tables, multiplier: float) -> Plan:
        """Return the plan that the tables lead to."""
        if self.physics.by_composition:
            plan = _composition_plan(
                self.physics, grid, self.market, self.spot, self.on_demand, tables, multiplier
            )
        else:
            plan = _total_plan(self.physics, grid, self.market, tables, multiplier)
        return [(int(spot), int(on_demand)) for spot, on_demand in plan]

    def _tables(self, grid: ProgressGrid, multiplier: float, *, optimistic: bool) -> Tables:
        """Return the value tables, over numbers of GPUs or over pairs."""
        if self.physics.by_composition:
            return _composition_tables(
                self.physics,
                grid,
                self.market,
                self.spot,
                self.on_demand,
                multiplier,
                optimistic and not grid.exact,
            )
        return value_tables(self.physics, grid, _total_costs(self.physics, self.market, multiplier))


def _within_budget(solver: _Solver, budget: float, unconstrained: Optimum) -> Optimum:
    """Solve with a budget by Lagrangian relaxation.

    value - (1 + extra) charges + extra x budget bounds the optimum for every ``extra`` >= 0.
    """
    job, market = solver.job, solver.market
    bound = unconstrained.upper_bound
    best = optimum_of_plan("dynamic", job, market, [(0, 0)] * job.hard_deadline, bound)
    low, high = 0.0, math.inf
    extra = 1.0
    for _ in range(_BISECTIONS):
        plan, relaxed = solver.solve(1 + extra)
        bound = min(bound, relaxed + extra * budget)
        found = optimum_of_plan("dynamic", job, market, plan, bound)
        if found.cost <= budget + 1e-9:
            high = extra
            best = max(best, found, key=lambda optimum: optimum.utility)
        else:
            low = extra
        extra = (low + high) / 2 if math.isfinite(high) else 2 * extra
    return msgspec.structs.replace(best, upper_bound=max(bound, best.utility))


def holdings(job: JobPhysics) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return every (spot, on-demand) pair that a job may hold; index 0 is nothing."""
    table = mixes(job.min_gpus, job.max_gpus)
    return np.ascontiguousarray(table[:, 0]), np.ascontiguousarray(table[:, 1])


@compiled
def _total_costs(job: JobPhysics, market: MarketWindow, multiplier: float) -> Tables:
    """Return ``costs[t, n]``: the least charge for n GPUs in slot t, times the multiplier."""
    costs = np.zeros((job.hard_deadline + 1, job.max_gpus + 1))
    for slot in range(1, job.hard_deadline + 1):
        for gpus in range(1, job.max_gpus + 1):
            costs[slot, gpus] = multiplier * cheapest_charge(
                gpus,
                market.available[slot - 1],
                market.spot_price[slot - 1],
                market.on_demand_price[slot - 1],
            )
    return costs


@compiled
def _total_plan(
    job: JobPhysics, grid: ProgressGrid, market: MarketWindow, tables: Tables, multiplier: float
) -> NDArray[np.int64]:
    """Return the plan that the tables lead to, followed with true progress."""
    plan = np.zeros((job.hard_deadline, 2), dtype=np.int64)
    progress, held, held_spot = 0.0, 0, 0
    for slot in range(1, job.hard_deadline + 1):
        available = market.available[slot - 1]
        spot_price = market.spot_price[slot - 1]
        on_demand_price = market.on_demand_price[slot - 1]
        left = steps_left(job, grid, progress)
        choice, best = 0, tables[slot + 1, 0, left]
        for gpus in range(job.min_gpus, job.max_gpus + 1):
            cost = multiplier * cheapest_charge(gpus, available, spot_price, on_demand_price)
            finish = job.values[slot]
            value = value_of_action(grid, tables[slot + 1], left, held, gpus, cost, finish)
            if value > best + 1e-12:
                choice, best = gpus, value
        spot = cheapest_spot(choice, available, spot_price, on_demand_price)
        plan[slot - 1, 0], plan[slot - 1, 1] = spot, choice - spot
        now = step(
            job,
            progress,
            held_spot,
            held - held_spot,
            spot,
            choice - spot,
            spot_price,
            available,
            on_demand_price,
        )
        progress, held, held_spot = now.progress, choice, spot
        if now.done:
            break
    return plan


@compiled
def _stride(
    job: JobPhysics,
    grid: ProgressGrid,
    held: tuple[int, int],
    now: tuple[int, int],
    available: int,
    optimistic: bool,
) -> int:
    """Return the steps of work that a pair does in a slot after another pair was held."""
    fraction = efficiency(job, held[0], held[1], now[0], now[1], available)
    steps = fraction * job.throughput[now[0] + now[1]] / grid.unit
    if grid.exact:
        return int(np.rint(steps))
    return int(np.ceil(steps)) if optimistic else int(np.floor(steps))


@compiled
def _charge_in(market: MarketWindow, slot: int, spot: int, on_demand: int) -> float:
    """Return the charge for a pair in a slot."""
    return charge(spot, on_demand, market.spot_price[slot - 1], market.on_demand_price[slot - 1])


@compiled
def _composition_tables(
    job: JobPhysics,
    grid: ProgressGrid,
    market: MarketWindow,
    spot: NDArray[np.int64],
    on_demand: NDArray[np.int64],
    multiplier: float,
    optimistic: bool,
) -> Tables:
    """Return ``tables[t, h, r]`` over pairs h, because swaps and preemptions count."""
    tables = np.zeros((job.hard_deadline + 2, spot.size, grid.steps + 1))
    for slot in range(job.hard_deadline, 0, -1):
        available = market.available[slot - 1]
        for held in range(spot.size):
            row = tables[slot, held]
            row[:] = tables[slot + 1, 0]
            for now in range(1, spot.size):
                if spot[now] > available:
                    continue
                cost = multiplier * _charge_in(market, slot, spot[now], on_demand[now])
                stride = _stride(
                    job,
                    grid,
                    (spot[held], on_demand[held]),
                    (spot[now], on_demand[now]),
                    available,
                    optimistic,
                )
                finish = job.values[slot]
                raise_to(row, tables[slot + 1, now], stride, finish, cost, 1, grid.steps)
    return tables


@compiled
def _composition_plan(
    job: JobPhysics,
    grid: ProgressGrid,
    market: MarketWindow,
    spot: NDArray[np.int64],
    on_demand: NDArray[np.int64],
    tables: Tables,
    multiplier: float,
) -> NDArray[np.int64]:
    """Return the plan that the tables over pairs lead to, with true progress."""
    plan = np.zeros((job.hard_deadline, 2), dtype=np.int64)
    progress, held = 0.0, 0
    for slot in range(1, job.hard_deadline + 1):
        available = market.available[slot - 1]
        left = steps_left(job, grid, progress)
        choice, best = 0, tables[slot + 1, 0, left]
        for now in range(1, spot.size):
            if spot[now] > available:
                continue
            cost = multiplier * _charge_in(market, slot, spot[now], on_demand[now])
            pair_held, pair_now = (spot[held], on_demand[held]), (spot[now], on_demand[now])
            after = left - _stride(job, grid, pair_held, pair_now, available, False)
            value = (job.values[slot] if after <= 0 else tables[slot + 1, now, after]) - cost
            if value > best + 1e-12:
                choice, best = now, value
        plan[slot - 1, 0], plan[slot - 1, 1] = spot[choice], on_demand[choice]
        did = step(
            job,
            progress,
            spot[held],
            on_demand[held],
            spot[choice],
            on_demand[choice],
            market.spot_price[slot - 1],
            available,
            market.on_demand_price[slot - 1],
        )
        progress, held = did.progress, choice
        if did.done:
            break
    return plan
