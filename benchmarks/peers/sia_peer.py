"""The program of one Sia round as the published scheduler writes it: cvxpy, dense, CBC or GLPK.

Runs in an environment of its own (``cvxpy``, ``cylp`` for CBC, ``cvxopt`` for GLPK_MI), so it
imports nothing of duetune. Every pair of a job and a configuration is an integer variable from 0 to
1, also those that are not possible: they cost more than to have nothing. Time is that of writing
the problem down and solving it, as in every round there, in seconds of one core.
"""

from __future__ import annotations

import json
import sys
import time

import cvxpy as cp
import numpy as np

IMPOSSIBLE = 10.0
OPTIONS = {
    "CBC": {"allowablePercentageGap": 0.01},
    "GLPK_MI": {"glpk": {"mip_gap": 1e-4, "msg_lev": "GLP_MSG_OFF"}},
}


def main() -> None:
    with open(sys.argv[1], encoding="utf-8") as file:  # noqa: PTH123 - two lines without pathlib
        asked = json.load(file)
    solver, limit_s = asked["solver"], asked["limit_s"]
    first = asked["programs"][0]
    solved({**first, "cost": first["cost"][:2]}, solver, limit_s)  # imports and first calls
    answers: list[dict[str, float]] = []
    for program in asked["programs"]:
        began = time.process_time()
        objective = solved(program, solver, limit_s)
        answers.append({"seconds": time.process_time() - began, "objective": objective})
        # What is done so far is kept where the next one is stopped from outside.
        with open(sys.argv[2], "w", encoding="utf-8") as file:  # noqa: PTH123
            json.dump(answers, file)


def solved(program: dict[str, list], solver: str, limit_s: float) -> float:
    """The objective: costs of what is chosen, where to have nothing costs nothing."""
    cost = np.array([[IMPOSSIBLE if v is None else v for v in row] for row in program["cost"]])
    incentive = program["incentive"]
    chosen = cp.Variable(cost.shape, integer=True)
    objective = cp.sum(cp.multiply(cost + incentive, chosen))
    objective += incentive * (len(cost) - cp.sum(chosen))
    gpus, partition = np.array(program["gpus"]), np.array(program["partition"])
    constraints = [chosen >= 0, chosen <= 1, cp.sum(chosen, axis=1) <= 1]
    for number, capacity in enumerate(program["capacity"]):
        weights = np.where(partition == number, gpus, 0)
        constraints.append(cp.sum(chosen @ weights) <= capacity)
    for row, shape in program["pinned"]:
        constraints.append(chosen[row, shape] == 1)
    options = dict(OPTIONS[solver])
    if solver == "CBC":
        options["maximumSeconds"] = limit_s
    problem = cp.Problem(cp.Minimize(objective), constraints)
    problem.solve(solver=solver, **options)
    return float(problem.value) - incentive * len(cost)


if __name__ == "__main__":
    main()
