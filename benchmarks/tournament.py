"""The paper-scale tournament: 112 policies on 1,000 jobs of up to 48 slots, and its speed.

The same policies run through ``Policy.decide`` in Python on a sample of the same jobs, in the same
run. That gives the ratio, and the results must be equal. The grids that AHAP can plan on follow:
what they earn and how long they take, up to the specified one.
"""

from __future__ import annotations

import math
import os
import time
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from duetune.market.forecast.forecast_source import ForecastSource
from duetune.market.synthetic import SYNTHETIC_MARKETS, synthetic_market
from duetune.policies.ahap import Ahap
from duetune.policies.pool import compiled_pool, paper_pool
from duetune.policies.window_plan import PLANNING_STEPS, planning_grid
from duetune.simulate.cases import JobMix, draw_cases
from duetune.simulate.episode import simulate
from duetune.simulate.tournament import run_tournament
from reporting import arguments, finish, markdown_table, publish

if TYPE_CHECKING:
    from collections.abc import Sequence

    from duetune.core.market import MarketTrace
    from duetune.simulate.cases import Case

SPECIFIED_STEPS = 8192  # enough for the specified grid of every job of the mix
GRIDS = (256, 512, PLANNING_STEPS, 2048, SPECIFIED_STEPS)
ROUNDS = 3


class GridResult(NamedTuple):
    """AHAP on one grid: mean utilities in dollars per job, and microseconds per decision."""

    steps: int
    exact: float
    specified: float
    ours: float
    microseconds: float


def grid_results(
    cases: Sequence[Case], markets: Sequence[MarketTrace], source: ForecastSource
) -> list[GridResult]:
    """Play all AHAP policies on every grid, in turns, and keep the fastest of several rounds."""
    pool = [policy for policy in compiled_pool() if isinstance(policy, Ahap)]
    specified = np.array([policy.patience == 0 for policy in pool])
    fastest = dict.fromkeys(GRIDS, math.inf)
    played = {}
    for _ in range(ROUNDS):
        for steps in GRIDS:
            begin = time.process_time()
            played[steps] = run_tournament(
                pool, cases, markets, source, workers=1, planning_steps=steps
            )
            fastest[steps] = min(fastest[steps], time.process_time() - begin)
    return [
        GridResult(
            steps,
            float(np.mean([planning_grid(case.job, steps).exact for case in cases])),
            float(played[steps].utility[:, specified].mean()),
            float(played[steps].utility[:, ~specified].mean()),
            1e6 * fastest[steps] / played[steps].policy_slots,
        )
        for steps in GRIDS
    ]


def grid_table(results: Sequence[GridResult]) -> str:
    """Return the grids as a table, each beside the specified one."""
    best = results[-1]
    rows = [
        (
            each.steps,
            f"{each.exact:.0%}",
            f"{each.specified:.2f} ({each.specified / best.specified - 1:+.2%})",
            f"{each.ours:.2f} ({each.ours / best.ours - 1:+.2%})",
            each.microseconds,
        )
        for each in results
    ]
    header = (
        "steps at most | jobs on the specified grid | specified AHAP ($ per job) | "
        "our AHAP ($ per job) | time per decision (us)"
    )
    return markdown_table(header, rows)


def main() -> None:
    options = arguments(__doc__.splitlines()[0]).parse_args()
    jobs, sample = (100, 2) if options.quick else (1000, 6)
    random = np.random.default_rng(options.seed)
    markets = tuple(
        synthetic_market(kind, seed=options.seed, slots=2000) for kind in SYNTHETIC_MARKETS
    )
    cases = draw_cases(JobMix(), markets, jobs, random)
    source = ForecastSource.parse("noisy:proportional-uniform:0.2", seed=options.seed)
    pool = paper_pool()
    run_tournament(pool, cases[:1], markets, source)
    cores = os.cpu_count() or 1
    rows, rates = [], {}
    for workers in sorted({1, cores}):
        with Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            console=Console(stderr=True),
        ) as progress:
            task = progress.add_task(f"tournament on {workers} core(s)", total=jobs)
            begin = time.perf_counter()
            result = run_tournament(
                pool,
                cases,
                markets,
                source,
                workers=workers,
                advance=partial(progress.advance, task),
            )
            seconds = time.perf_counter() - begin
        rates[workers] = result.policy_slots / seconds
        rows.append(
            [f"batch, {workers} core(s)", jobs, result.policy_slots, seconds, rates[workers]]
        )

    chosen = random.choice(jobs, size=sample, replace=False)
    stepped, difference = 0, 0.0
    begin = time.perf_counter()
    for row in chosen:
        case = cases[row]
        for column, policy in enumerate(pool):
            outcome = simulate(case.job, markets[case.market], policy, source, start=case.start)
            stepped += len(outcome.entries)
            difference = max(
                difference,
                abs(outcome.utility - result.utility[row, column]),
                abs(outcome.cost - result.cost[row, column]),
                abs((outcome.finished or 0) - result.finished[row, column]),
            )
    seconds = time.perf_counter() - begin
    rows.append(["step by step, 1 core", sample, stepped, seconds, stepped / seconds])
    header = ("way", "jobs", "policy-slots", "seconds", "policy-slots per second")
    speedup = rates[1] / (stepped / seconds)
    notes = (
        "Each job is played with 112 policies. A policy-slot is one decision with its accounting. "
        f"On one core the batch is {speedup:.0f} times as fast as `Policy.decide` slot by slot. "
        "The largest difference between the two in utility, cost or finishing slot is "
        f"{difference:.1e}."
    )
    grids = grid_results(cases[: jobs // 5], markets, source)
    planned = next(each for each in grids if each.steps == PLANNING_STEPS)
    exact = grids[-1]
    grid_notes = (
        f"All 210 AHAP policies on {jobs // 5} of the jobs, on one core. Policies plan on at most "
        f"{PLANNING_STEPS:,} steps. The specified grid counts work in the greatest common divisor "
        "of all amounts of work; it is used where it has no more steps than that. Otherwise steps "
        "are longer, work without a change of GPUs stays a whole number of steps, and progress in "
        f"a slot with a change is rounded down. Percentages are against {SPECIFIED_STEPS:,} steps."
    )
    publish(
        "tournament",
        "The tournament's speed",
        "How many decisions per second does the batch simulation make?",
        [markdown_table(header, rows), notes, "## Planning grids", grid_table(grids), grid_notes],
        write=not (options.quick or options.no_write),
    )
    finish(
        {
            "policy_slots_per_second": rates[1],
            "policy_slots_per_second_all_cores": rates[cores],
            "cores": cores,
            "speedup_over_stepwise": speedup,
            "max_abs_difference": difference,
            "seconds": rows[len(rates) - 1][3],
            "planning_grid_utility": planned.ours / exact.ours,
            "planning_grid_utility_specified": planned.specified / exact.specified,
            "planning_grid_time": planned.microseconds / exact.microseconds,
        }
    )


if __name__ == "__main__":
    main()
