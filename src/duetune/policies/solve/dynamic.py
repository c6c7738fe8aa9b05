"""The offline optimum by dynamic programming, for a market that is known.

Work left is counted on a progress grid. If the grid divides all that a slot can do, the result is
exact. Otherwise the plan is feasible, because progress is rounded down, and the same program
rounded up bounds the true optimum from above.

A budget needs no state of its own. The utility is V(T) less the cost, so the best plan that
finishes by slot T is the cheapest one, and a budget only says whether that one can be paid. The
least cost falls with T. So there is a first slot T by which the job can be finished within the
budget, and from then on every slot is affordable. Finishing before T counts as much as finishing in
T, and the plan that is best under these values is the best one within the budget.
"""

from __future__ import annotations

import bisect
import math
from typing import TYPE_CHECKING

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
    unused_share,
)
from duetune.errors import InvalidInput
from duetune.policies.solve.bellman import fill_value_tables, raise_to, refund_of, steps_left
from duetune.policies.solve.optimum import Optimum, optimum_of_plan
from duetune.policies.solve.progress_grid import ProgressGrid, progress_grid
from duetune.policies.solve.stochastic import mixes

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from duetune.core.job import Job
    from duetune.core.market import MarketWindow

    Numbers = NDArray[np.float64]
    Counts = NDArray[np.int64]
    Plan = list[tuple[int, int]]

DEFAULT_MAX_STEPS = 20_000
_TABLE_CELLS = 60_000_000  # 480 MB; a larger problem gets a coarser grid, and the bound shows it
# By composition every pair can follow every other. A coarser grid keeps the time to seconds, also
# for a budget, which takes about ten solutions.
_COMPOSITION_MOVES = 10_000_000_000
_BUDGET_SOLUTIONS = 10
_COMPOSITION_GPUS = 128
_CENT = 1e-9  # how far a plan may exceed the budget by rounding, as ``physics.affordable`` allows


def offline_optimum(
    job: Job,
    market: MarketWindow,
    *,
    max_steps: int = DEFAULT_MAX_STEPS,
    by_second: bool = False,
) -> Optimum:
    """Return the plan with the highest utility for a market that is known to the hard deadline.

    ``by_second`` charges the last slot only until the work is done, as a live fleet does.
    """
    solver = _Solver(job, market, max_steps, by_second=by_second)
    best = solver.best()
    if best.cost <= solver.physics.budget + _CENT:
        return best
    return solver.best_within_budget()


class _Solver:
    """One job on one market, solved for any values of finishing."""

    def __init__(self, job: Job, market: MarketWindow, max_steps: int, *, by_second: bool) -> None:
        self.job, self.market, self.by_second = job, market, by_second
        self.physics = job_physics(job)
        self.spot, self.on_demand = holdings(self.physics)
        rows = self.spot.size
        steps = min(max_steps, _TABLE_CELLS // ((job.hard_deadline + 2) * rows))
        if self.physics.by_composition:
            if job.max_gpus > _COMPOSITION_GPUS:
                allowed = f"at most {_COMPOSITION_GPUS} for the exact optimum by composition"
                raise InvalidInput("max_gpus", job.max_gpus, allowed)
            moves = (
                job.hard_deadline * rows * rows * (1 if job.budget is None else _BUDGET_SOLUTIONS)
            )
            steps = min(steps, _COMPOSITION_MOVES // moves)
        steps = max(1, steps)
        self.floor = progress_grid(job, steps)
        self.ceiling = progress_grid(job, steps, optimistic=True)

    @property
    def grids(self) -> tuple[ProgressGrid, ...]:
        """Return the grids to solve on; the tables of the last one bound the optimum."""
        return (self.floor,) if self.floor.exact else (self.floor, self.ceiling)

    def best(self) -> Optimum:
        """Return the best plan without regard to the budget.

        On a coarse grid the optimistic tables can lead to the better plan. Both plans are feasible,
        because both are followed with true progress.
        """
        found = [self._solve(grid, self.physics.values) for grid in self.grids]
        return self._best_of([plan for plan, _ in found], found[-1][1], math.inf)

    def best_within_budget(self) -> Optimum:
        """Return the best plan that the budget can pay."""
        values, bound = self.physics.values, 0.0
        plans: list[Plan] = [[(0, 0)] * self.job.hard_deadline]
        for grid in self.grids:
            first, bound = self._first_affordable(grid), 0.0
            if first <= self.job.hard_deadline:
                plan, bound = self._solve(grid, np.minimum(values, values[first]))
                plans.append(plan)
                if not grid.exact:
                    # Followed with true progress, the other plan may leave the budget.
                    plans.append(self._solve(grid, self._any_finish(first))[0])
        return self._best_of(plans, bound, self.physics.budget)

    def _first_affordable(self, grid: ProgressGrid) -> int:
        """Return the first slot by which the budget can finish the job; past the last if none."""
        least = 1 - _CENT  # a finish is worth the budget and $1, so $1 is left of the whole budget

        def is_affordable(slot: int) -> bool:
            return self._value(grid, self._tables(grid, self._any_finish(slot))) >= least

        slots = range(1, self.job.hard_deadline + 1)
        return 1 + bisect.bisect_left(slots, x=True, key=is_affordable)

    def _any_finish(self, last: int) -> Numbers:
        """Return values under which the best plan is the cheapest one that finishes by a slot."""
        values = np.zeros(last + 2)
        values[1:-1] = self.physics.budget + 1
        return values

    def _best_of(self, plans: list[Plan], bound: float, budget: float) -> Optimum:
        """Return the best plan within a budget, played with true progress."""
        found = [
            optimum_of_plan("dynamic", self.job, self.market, plan, bound, by_second=self.by_second)
            for plan in plans
        ]
        paid = [each for each in found if each.cost <= budget + _CENT]
        return max(paid, key=lambda each: each.utility)

    def _solve(self, grid: ProgressGrid, values: Numbers) -> tuple[Plan, float]:
        """Return the plan that the tables lead to, and the value that they promise."""
        tables = self._tables(grid, values)
        plan = _followed(
            self._worth(values),
            grid,
            self.market,
            self.spot,
            self.on_demand,
            tables,
            self.by_second,
        )
        return [(int(spot), int(on_demand)) for spot, on_demand in plan], self._value(grid, tables)

    def _value(self, grid: ProgressGrid, tables: Numbers) -> float:
        return float(tables[1, 0, grid.steps])

    def _worth(self, values: Numbers) -> JobPhysics:
        """Return the job with other values of finishing, up to the last slot that has one."""
        values = np.array(values)
        values.setflags(write=False)  # as those of ``job_physics``: one compiled version for both
        return self.physics._replace(values=values, hard_deadline=values.size - 2)

    def _tables(self, grid: ProgressGrid, values: Numbers) -> Numbers:
        """Return ``tables[t, m, r]``: the value from slot t on, holding m, r steps left."""
        job = self._worth(values)
        tables = np.zeros((job.hard_deadline + 2, self.spot.size, grid.steps + 1))
        if job.by_composition:
            optimistic = grid is not self.floor
            _fill_by_composition(
                job,
                grid,
                self.market,
                self.spot,
                self.on_demand,
                optimistic,
                self.by_second,
                tables,
            )
        else:
            costs, running = _total_costs(job, self.market), np.empty(grid.steps + 1)
            fill_value_tables(job, grid, costs, tables, running, self.by_second, True)
        return tables


def holdings(job: JobPhysics) -> tuple[Counts, Counts]:
    """Return every (spot, on-demand) pair that a job may hold; index 0 is nothing.

    If only the number of GPUs counts, the index is that number, and the split is left open.
    """
    if not job.by_composition:
        return np.zeros(job.max_gpus + 1, np.int64), np.arange(job.max_gpus + 1)
    table = mixes(job.min_gpus, job.max_gpus)
    return np.ascontiguousarray(table[:, 0]), np.ascontiguousarray(table[:, 1])


@compiled
def _total_costs(job: JobPhysics, market: MarketWindow) -> Numbers:
    """Return ``costs[t, n]``: the least charge for n GPUs in slot t."""
    costs = np.zeros((job.hard_deadline + 1, job.max_gpus + 1))
    for slot in range(1, job.hard_deadline + 1):
        for gpus in range(1, job.max_gpus + 1):
            costs[slot, gpus] = cheapest_charge(
                gpus,
                market.available[slot - 1],
                market.spot_price[slot - 1],
                market.on_demand_price[slot - 1],
            )
    return costs


@compiled
def _followed(
    job: JobPhysics,
    grid: ProgressGrid,
    market: MarketWindow,
    spot: Counts,
    on_demand: Counts,
    tables: Numbers,
    by_second: bool,
) -> Counts:
    """Return the plan that the tables lead to, followed with true progress."""
    plan = np.zeros((job.hard_deadline, 2), dtype=np.int64)
    progress, held_spot, held_on_demand = 0.0, 0, 0
    for slot in range(1, job.hard_deadline + 1):
        available = market.available[slot - 1]
        price, on_demand_price = market.spot_price[slot - 1], market.on_demand_price[slot - 1]
        best, after, done = (
            float(tables[slot + 1, 0, steps_left(job, grid, progress)]),
            progress,
            False,
        )
        for now in range(1, spot.size):
            here, there = spot[now], on_demand[now]
            if not job.by_composition:
                here = cheapest_spot(there, available, price, on_demand_price)
                there -= here
            if here > available or here + there < job.min_gpus:
                continue
            did = step(
                job,
                progress,
                held_spot,
                held_on_demand,
                here,
                there,
                price,
                available,
                on_demand_price,
            )
            value = -did.charge
            if did.done:
                value += job.values[slot]
                if by_second:
                    value += did.charge * unused_share(job, did.progress, here + there)
            else:
                value += tables[slot + 1, now, steps_left(job, grid, did.progress)]
            if value > best + 1e-12:
                best, after, done = value, did.progress, did.done
                plan[slot - 1, 0], plan[slot - 1, 1] = here, there
        if done:
            break
        progress, held_spot, held_on_demand = after, plan[slot - 1, 0], plan[slot - 1, 1]
    return plan


@compiled
def _fill_by_composition(
    job: JobPhysics,
    grid: ProgressGrid,
    market: MarketWindow,
    spot: Counts,
    on_demand: Counts,
    optimistic: bool,
    by_second: bool,
    tables: Numbers,
) -> None:
    """Fill ``tables[t, c, r]``, the best value from slot t on, with pair c held before."""
    for slot in range(job.hard_deadline, 0, -1):
        available, finish = market.available[slot - 1], job.values[slot]
        price, on_demand_price = market.spot_price[slot - 1], market.on_demand_price[slot - 1]
        for held in range(spot.size):
            row = tables[slot, held]
            row[:] = tables[slot + 1, 0]
            for now in range(1, spot.size):
                if spot[now] > available:
                    continue
                gpus = spot[now] + on_demand[now]
                cost = charge(spot[now], on_demand[now], price, on_demand_price)
                fraction = efficiency(
                    job, spot[held], on_demand[held], spot[now], on_demand[now], available
                )
                refund, worked = refund_of(job, grid, gpus, cost, fraction, by_second)
                raise_to(
                    row,
                    tables[slot + 1, now],
                    _stride(grid, fraction * job.throughput[gpus], optimistic),
                    finish,
                    cost,
                    1,
                    grid.steps,
                    refund,
                    worked,
                )


@compiled
def _stride(grid: ProgressGrid, work: float, optimistic: bool) -> int:
    """Return an amount of work in steps."""
    steps = work / grid.unit
    if grid.exact:
        return int(np.rint(steps))
    return int(np.ceil(steps)) if optimistic else int(np.floor(steps))
