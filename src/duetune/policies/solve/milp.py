"""The offline optimum as an integer program, solved by HiGHS. It checks ``dynamic``.

Slots are t = 1..D. Integers: spot and on-demand counts. Binaries: running b, growing u, shrinking
e, completing in this slot c. The work lost to a change, (1 - mu) H(n), is linear in q >= H(n) if
the change is marked, and q >= 0 otherwise. A larger q only hurts, so it is at its lower bound. A
throughput curve that is not linear has one binary per number of GPUs.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

from duetune.core.physics import job_physics
from duetune.errors import InvalidInput, SolverStopped
from duetune.policies.solve.optimum import Optimum, optimum_of_plan

if TYPE_CHECKING:
    import highspy
    from highspy.highs import highs_linear_expression, highs_var

    from duetune.core.job import Job
    from duetune.core.market import MarketWindow


_AGREEMENT = 1e-6
_FINE = {"mip_feasibility_tolerance": 1e-9, "primal_feasibility_tolerance": 1e-9}


def milp_optimum(
    job: Job, market: MarketWindow, *, time_limit_s: float = 300.0, threads: int = 1
) -> Optimum:
    """Return the plan with the highest utility for a known market, to solver tolerance."""
    if job_physics(job).by_composition:
        raise InvalidInput(
            "reconfiguration.key",
            job.reconfiguration.key.value,
            "'total' for the integer program; the dynamic program takes both",
        )
    found, objective = _solve(job, market, time_limit_s, threads, {})
    # HiGHS works to a tolerance. If it counted work that was not done, solve again with a finer
    # tolerance. A fine tolerance from the start would make it discard feasible plans.
    if found.utility < objective - _AGREEMENT * max(1.0, abs(objective)):
        found, _ = _solve(job, market, time_limit_s, threads, _FINE)
    return found


def _solve(
    job: Job, market: MarketWindow, time_limit_s: float, threads: int, options: dict[str, float]
) -> tuple[Optimum, float]:
    """Return the plan as the physics plays it, and the objective that the solver reports."""
    solver = _highs(time_limit_s, threads, options)
    program = _Program.build(solver, job, market)
    solver.maximize(program.objective)
    status = solver.getModelStatus()
    if solver.modelStatusToString(status) != "Optimal":
        raise SolverStopped(
            f"HiGHS stopped with '{solver.modelStatusToString(status)}' after {time_limit_s:g} s"
        )
    solution = solver.getSolution().col_value
    plan = [
        (round(solution[spot.index]), round(solution[on_demand.index]))
        for spot, on_demand in zip(program.spot, program.on_demand, strict=True)
    ]
    bound = float(solver.getInfo().mip_dual_bound)
    objective = float(solver.getInfo().objective_function_value)
    return optimum_of_plan("milp", job, market, plan, bound), objective


def _highs(time_limit_s: float, threads: int, options: dict[str, float]) -> highspy.Highs:
    """Return a silent solver with tight gaps."""
    import highspy  # noqa: PLC0415 - slow to import

    solver: highspy.Highs = highspy.Highs()  # type: ignore[no-untyped-call] # not annotated there
    solver.silent()
    solver.setOptionValue("mip_rel_gap", 0.0)
    solver.setOptionValue("mip_abs_gap", 1e-9)
    for name, value in options.items():
        solver.setOptionValue(name, value)
    solver.setOptionValue("time_limit", time_limit_s)
    solver.setOptionValue("threads", threads)
    return solver


class _Program(NamedTuple):
    """The variables and the objective that the plan is read from."""

    objective: highs_linear_expression
    spot: list[highs_var]
    on_demand: list[highs_var]

    @classmethod
    def build(cls, solver: highspy.Highs, job: Job, market: MarketWindow) -> _Program:
        """Add all variables and constraints of a job on a market to the solver."""
        physics = job_physics(job)
        rule = job.reconfiguration
        largest = float(physics.throughput[-1])
        spots, on_demands = [], []
        objective, total_cost = solver.expr(), solver.expr()
        done_work, completed = solver.expr(), solver.expr()
        before = solver.expr()
        for slot in range(1, job.hard_deadline + 1):
            available = int(market.available[slot - 1])
            spot = solver.addIntegral(lb=0, ub=min(available, job.max_gpus))
            on_demand = solver.addIntegral(lb=0, ub=job.max_gpus)
            running, growing, shrinking, completing = (solver.addBinary() for _ in range(4))
            lost_growing, lost_shrinking = (solver.addVariable(lb=0) for _ in range(2))
            total = spot + on_demand
            solver.addConstr(total >= job.min_gpus * running)
            solver.addConstr(total <= job.max_gpus * running)
            solver.addConstr(total - before <= job.max_gpus * growing)
            solver.addConstr(before - total <= job.max_gpus * shrinking)
            full = _undisturbed_work(solver, job, total, running)
            solver.addConstr(lost_growing >= full - largest * (1 - growing))
            solver.addConstr(lost_shrinking >= full - largest * (1 - shrinking))
            work = full - (1 - rule.grow) * lost_growing - (1 - rule.shrink) * lost_shrinking
            done_work = done_work + work
            completed = completed + completing
            # The tolerance is needed: decimal amounts of work do not add up exactly in binary.
            solver.addConstr(done_work >= (job.work - physics.tolerance) * completed)
            cost = (
                float(market.spot_price[slot - 1]) * spot
                + float(market.on_demand_price[slot - 1]) * on_demand
            )
            total_cost = total_cost + cost
            objective = objective + float(physics.values[slot]) * completing - cost
            before = total
            spots.append(spot)
            on_demands.append(on_demand)
        solver.addConstr(completed <= 1)
        if math.isfinite(physics.budget):
            solver.addConstr(total_cost <= physics.budget)
        return cls(objective, spots, on_demands)


def _undisturbed_work(
    solver: highspy.Highs, job: Job, total: highs_linear_expression, running: highs_var
) -> highs_linear_expression:
    """Return H(n) as a linear expression."""
    curve = job.throughput[job.min_gpus :]
    slope = curve[1] - curve[0] if len(curve) > 1 else 0.0
    intercept = curve[0] - slope * job.min_gpus
    # Rounding errors around zero are smaller than any coefficient that the solver accepts.
    slope, intercept = (
        0.0 if abs(part) < 1e-12 * curve[-1] else part for part in (slope, intercept)
    )
    if all(
        math.isclose(work, slope * gpus + intercept, rel_tol=1e-12, abs_tol=1e-12)
        for gpus, work in enumerate(curve, start=job.min_gpus)
    ):
        linear: highs_linear_expression = slope * total + intercept * running
        return linear
    choices = [solver.addBinary() for _ in curve]
    solver.addConstr(solver.qsum(choices) == running)
    solver.addConstr(
        total
        == solver.qsum(gpus * choice for gpus, choice in enumerate(choices, start=job.min_gpus))
    )
    return solver.qsum(work * choice for work, choice in zip(curve, choices, strict=True))
