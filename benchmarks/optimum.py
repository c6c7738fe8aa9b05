"""Dynamic program against integer program: the same optimum, and how much faster.

Random jobs of the specified size on random synthetic markets, all on an exact progress grid. Both
methods are timed on the same instance, in the same process, on one thread.
"""

from __future__ import annotations

import statistics
import time
from concurrent.futures import ProcessPoolExecutor
from typing import NamedTuple

import numpy as np
from rich.progress import track

from duetune.core.job import Job, linear_throughput
from duetune.errors import SolverStopped
from duetune.market.synthetic import SYNTHETIC_MARKETS, synthetic_market
from duetune.policies.solve.dynamic import offline_optimum
from duetune.policies.solve.milp import milp_optimum
from duetune.policies.solve.progress_grid import progress_grid
from reporting import arguments, finish, markdown_table, publish

TIME_LIMIT_S = 300.0


class Measured(NamedTuple):
    """Both optima of one instance, and the time of each."""

    deadline: int
    max_gpus: int
    difference: float
    dynamic_s: float
    milp_s: float
    solved: bool


def measure(seed: int) -> Measured:
    """Solve one instance with both methods."""
    random = np.random.default_rng(seed)
    kind = list(SYNTHETIC_MARKETS)[int(random.integers(len(SYNTHETIC_MARKETS)))]
    deadline, max_gpus = int(random.integers(8, 21)), int(random.integers(6, 13))
    throughput = linear_throughput(max_gpus, intercept=float(random.choice([0.0, 1.0, 2.0])))
    work = round(float(random.uniform(0.3, 0.7)) * deadline * throughput[-1])
    job = Job(
        work=work,
        deadline=deadline,
        value=round(float(random.uniform(1.2, 2.0)) * 1.5 * work, 2),
        throughput=throughput,
        min_gpus=int(random.integers(1, 4)),
    )
    if not progress_grid(job, 20_000).exact:
        raise AssertionError("the instance is meant to have an exact grid")
    market = synthetic_market(kind, seed=seed, slots=job.hard_deadline + 48)
    window = market.window(48, job.hard_deadline)
    offline_optimum(job, window)  # compiles on the first call of a process
    begin = time.perf_counter()
    dynamic = offline_optimum(job, window)
    middle = time.perf_counter()
    try:
        exact, solved = milp_optimum(job, window, time_limit_s=TIME_LIMIT_S).utility, True
    except SolverStopped:
        exact, solved = dynamic.utility, False
    end = time.perf_counter()
    return Measured(
        deadline,
        max_gpus,
        abs(dynamic.utility - exact),
        middle - begin,
        end - middle,
        solved,
    )


def main() -> None:
    options = arguments(__doc__.splitlines()[0]).parse_args()
    count = 20 if options.quick else 200
    measure(options.seed)
    with ProcessPoolExecutor(2) as executor:
        seeds = range(options.seed, options.seed + count)
        measured = list(track(executor.map(measure, seeds), total=count, description="instances"))
    solved = [one for one in measured if one.solved]
    rows = []
    for low, high in ((8, 11), (12, 15), (16, 20)):
        group = [one for one in solved if low <= one.deadline <= high]
        if group:
            rows.append(_row(f"{low}-{high}", group))
    rows.append(_row("all", solved))
    header = (
        "deadline (slots) | instances | largest difference ($) | DP median (ms) | "
        "HiGHS median (s) | HiGHS slowest (s) | median speed-up"
    )
    notes = (
        "Jobs have 6 to 12 GPUs, a deadline of 8 to 20 slots and a hard deadline of 1.5 times "
        "that, on five kinds of synthetic market. HiGHS runs with one thread and a relative gap "
        f"of zero. It did not solve {count - len(solved)} of {count} instances in "
        f"{TIME_LIMIT_S:g} s; these are left out of the differences and the speed-up."
    )
    publish(
        "optimum",
        "Exact optima: dynamic program and integer program",
        "Does the dynamic program find the same optimum as an integer program, and how fast?",
        [markdown_table(header, rows), notes],
        write=not (options.quick or options.no_write),
    )
    finish(
        {
            "instances": len(solved),
            "max_abs_difference": max(one.difference for one in solved),
            "median_speedup": statistics.median(one.milp_s / one.dynamic_s for one in solved),
            "unsolved_by_milp": count - len(solved),
        }
    )


def _row(name: str, group: list[Measured]) -> list[object]:
    return [
        name,
        len(group),
        f"{max(one.difference for one in group):.1e}",
        1e3 * statistics.median(one.dynamic_s for one in group),
        statistics.median(one.milp_s for one in group),
        max(one.milp_s for one in group),
        statistics.median(one.milp_s / one.dynamic_s for one in group),
    ]


if __name__ == "__main__":
    main()
