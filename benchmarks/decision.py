"""How long one decision of rubato and its tables take, against solving the integer program again.

The job is on up to 16 GPUs with a deadline of 96 slots. Every slot is decided once. In some of the
same slots HiGHS also plans the rest of the job on a forecast, with one thread, as a controller
without tables would have to.
"""

from __future__ import annotations

import statistics
import time
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from duetune.core.decision import View
from duetune.core.job import Job, Reconfiguration, ReconfigurationKey, linear_throughput
from duetune.core.market import MarketWindow
from duetune.core.multi_region_physics import InstancePool, MultiRegionJob
from duetune.errors import SolverStopped
from duetune.market.synthetic import synthetic_market
from duetune.market.synthetic_pools import SyntheticPool, synthetic_pools
from duetune.policies.multi_region import MultiRegionInstance
from duetune.policies.rubato import Rubato
from duetune.policies.rubato_tables import best_plan
from duetune.policies.single_instance import SingleInstance
from duetune.policies.solve.milp import milp_optimum
from duetune.simulate.episode import simulate
from duetune.simulate.multi_region_episode import optimum_over_pools, run_multi_region
from reporting import arguments, finish, markdown_table, publish

if TYPE_CHECKING:
    from duetune.core.decision import Decision
    from duetune.core.market import MarketTrace

GPUS, DEADLINE, START = 16, 96, 336
MILP_LIMIT_S = 20.0


class Timed(msgspec.Struct):
    """Rubato with a timer: seconds per decision, and the views that were decided on."""

    policy: Rubato
    seconds: list[float]
    views: list[View]

    @property
    def name(self) -> str:
        return self.policy.name

    def decide(self, view: View) -> Decision:
        begin = time.perf_counter()
        decision = self.policy.decide(view)
        self.seconds.append(time.perf_counter() - begin)
        self.views.append(view)
        return decision


class Measured(msgspec.Struct, frozen=True):
    """The times of one market and reconfiguration key."""

    market: str
    key: str
    tables_s: float
    median_ms: float
    slowest_ms: float
    milp_median_s: float | None
    milp_stopped: int


def job_of(key: ReconfigurationKey) -> Job:
    work = 0.5 * DEADLINE * GPUS
    return Job(
        work=work,
        deadline=DEADLINE,
        value=1.5 * work,
        throughput=linear_throughput(GPUS),
        reconfiguration=Reconfiguration(key=key),
    )


def measure(trace: MarketTrace, key: ReconfigurationKey, solves: int) -> Measured:
    job = job_of(key)
    simulate(job, trace, Rubato(), start=START)  # compiles
    best_plan.cache_clear()
    watched = Timed(Rubato(), [], [])
    simulate(job, trace, watched, start=START)
    milp, stopped = [], 0
    if key is ReconfigurationKey.TOTAL and solves:
        chosen = np.linspace(0, len(watched.views) - 1, solves).astype(int)
        for place in chosen:
            begin = time.perf_counter()
            try:
                milp_optimum(*_rest(watched.views[place]), time_limit_s=MILP_LIMIT_S)
            except SolverStopped:
                stopped += 1
            milp.append(time.perf_counter() - begin)
    # Tables are built in the first slot, and anew once the market was learned anew.
    return Measured(
        market=trace.name,
        key=key.value,
        tables_s=max(watched.seconds),
        median_ms=1000 * statistics.median(watched.seconds),
        slowest_ms=1000 * max(watched.seconds),
        milp_median_s=statistics.median(milp) if milp else None,
        milp_stopped=stopped,
    )


def _rest(view: View) -> tuple[Job, MarketWindow]:
    """Return the rest of the job as a job of its own, in a market that does not change."""
    passed = view.slot - 1
    left = msgspec.structs.replace(
        view.job,
        work=max(0.05, round(view.job.work - view.progress, 2)),
        deadline=max(1, view.job.deadline - passed),
    )
    slots, market = left.hard_deadline, view.market
    return left, MarketWindow(
        np.full(slots, market.spot_price),
        np.full(slots, market.available),
        np.full(slots, market.on_demand_price),
    )


def _warm() -> None:
    trace = synthetic_market("diurnal", seed=1, slots=60)
    for key in ReconfigurationKey:
        for gpus in (1, 2):
            job = Job(
                work=4.0,
                deadline=6,
                value=9.0,
                throughput=linear_throughput(gpus),
                reconfiguration=Reconfiguration(key=key),
            )
            simulate(job, trace, Rubato(), start=40)
    SingleInstance(work_s=3600, deadline_s=7200, restart_overhead_s=60)(0, 3600, "wait", 0, True)
    pools = (SyntheticPool("east"), SyntheticPool("west"))
    several = synthetic_pools("diurnal", pools, seed=1, slots=12, slot_hours=1 / 6)
    over = MultiRegionJob(3600, 7200, tuple(InstancePool(pool.name) for pool in pools))
    run_multi_region(over, several, MultiRegionInstance(over))
    optimum_over_pools(over, several)


def main() -> None:
    parser = arguments(__doc__.splitlines()[0])
    parser.add_argument("--warm", action="store_true", help="compile what it needs, no more")
    options = parser.parse_args()
    if options.warm:
        _warm()
        return
    kinds = ("regime_switching",) if options.quick else ("regime_switching", "diurnal", "outage")
    results = []
    for kind in kinds:
        trace = synthetic_market(kind, seed=options.seed, slots=START + 2 * DEADLINE)
        for key in ReconfigurationKey:
            results.append(measure(trace, key, 2 if options.quick else 3))
            print(results[-1], flush=True)
    milp = [each.milp_median_s for each in results if each.milp_median_s is not None]
    total = [each for each in results if each.key == ReconfigurationKey.TOTAL.value]
    figures: dict[str, object] = {
        "decision_median_ms": max(each.median_ms for each in results),
        "tables_s": max(each.tables_s for each in results),
        "milp_median_s": statistics.median(milp),
        "milp_stopped": sum(each.milp_stopped for each in results),
        "speedup_over_milp": 1000
        * statistics.median(milp)
        / statistics.median(each.median_ms for each in total),
    }
    rows = [
        (
            each.market,
            each.key,
            f"{each.median_ms:.2f}",
            f"{each.tables_s:.2f}",
            "" if each.milp_median_s is None else f"{each.milp_median_s:.2f}",
        )
        for each in results
    ]
    header = ("market", "key", "decision, median (ms)", "tables (s)", "integer program (s)")
    text = (
        f"Jobs hold up to {GPUS} GPUs, the deadline is {DEADLINE} slots, the hard deadline half as "
        "long again. A decision reads tables; *tables* is the slowest decision of a job, which "
        "builds them. The integer program is solved for the rest of the job in a market that does "
        f"not change (HiGHS, one thread, at most {MILP_LIMIT_S:g} s; {figures['milp_stopped']} of "
        "its runs were stopped). It has no formulation by composition. The ratio of the medians is "
        f"{figures['speedup_over_milp']:,.0f}, or more where runs were stopped."
    )
    publish(
        "decision",
        "How long a decision takes",
        "How long does rubato take to decide one slot, compared with an integer program?",
        [markdown_table(header, rows), text],
        write=not (options.quick or options.no_write),
    )
    finish(figures)


if __name__ == "__main__":
    main()
