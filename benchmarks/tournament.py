"""The paper-scale tournament: 112 policies on 1,000 jobs of up to 48 slots, and its speed.

The same policies run through ``Policy.decide`` in Python on a sample of the same jobs, in the same
run. That gives the ratio, and the results must be equal.
"""

from __future__ import annotations

import os
import time
from functools import partial

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from duetune.market.forecast.forecast_source import ForecastSource
from duetune.market.synthetic import SYNTHETIC_MARKETS, synthetic_market
from duetune.policies.pool import paper_pool
from duetune.simulate.cases import JobMix, draw_cases
from duetune.simulate.episode import simulate
from duetune.simulate.tournament import run_tournament
from reporting import arguments, finish, markdown_table, publish


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
    publish(
        "tournament",
        "The tournament's speed",
        "How many decisions per second does the batch simulation make?",
        [markdown_table(header, rows), notes],
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
        }
    )


if __name__ == "__main__":
    main()
