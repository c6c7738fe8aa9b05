"""One instance over several pools: our policy, the baselines and the optimum.

Real zones and synthetic pools (``pools_families``). Nothing that is reported was tuned on.
"""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

import msgspec
import numpy as np
from rich.console import Console
from rich.progress import Progress

from duetune.policies.multi_region import MultiRegionInstance
from duetune.policies.multi_region_baselines import (
    LifetimeUtility,
    PoolOrder,
    UniformProgressOverPools,
)
from duetune.policies.multi_region_guard import MultiRegionGuard
from duetune.policies.multi_region_single import SinglePoolPolicy
from duetune.simulate.multi_region_episode import optimum_over_pools, run_multi_region
from pools_families import PoolFamily, pool_families
from pools_report import OURS, QUESTION, figure, page
from reporting import arguments, finish, publish, rounded, save_pictures

if TYPE_CHECKING:
    from duetune.core.market import MarketTrace
    from duetune.core.multi_region_physics import MultiRegionJob
    from duetune.policies.multi_region_step import PoolPolicy, PoolStep

HINDSIGHT = "uniform progress, best pool in hindsight"


class PolicyResult(msgspec.Struct, frozen=True):
    """One policy on one family: dollars per job, and its ratio to the optimum with an interval."""

    policy: str
    cost: float
    ratio: float
    low: float
    high: float
    restarts: float
    late: int


class FamilyResult(msgspec.Struct, frozen=True):
    """All policies on one family; ``optimum`` is dollars per job."""

    name: str
    jobs: int
    pools: int
    optimum: float
    policies: tuple[PolicyResult, ...]

    def of(self, policy: str) -> PolicyResult:
        return next(each for each in self.policies if each.policy == policy)

    @property
    def saving(self) -> float:
        """The saving of ours over the best single pool in hindsight, as a share."""
        return 1 - self.of(OURS).cost / self.of(HINDSIGHT).cost


class Stopwatch:
    """A policy whose steps are timed."""

    def __init__(self, policy: PoolPolicy, seconds: list[float]) -> None:
        self._policy, self._seconds = policy, seconds

    def __call__(self, *view: object) -> PoolStep:
        began = time.perf_counter()
        step = self._policy(*view)  # type: ignore[arg-type]
        self._seconds.append(time.perf_counter() - began)
        return step


def baselines(job: MultiRegionJob, market: MarketTrace) -> dict[str, PoolPolicy]:
    """Return the baselines, which all run behind the guard."""
    price = (market.spot_price / job.terms.pace[:, np.newaxis]).mean(axis=1)
    order = [int(pool) for pool in np.argsort(price, kind="stable")]
    plain = {
        "uniform progress, cheapest pool": UniformProgressOverPools(job, pools=order[:1]),
        "rubato, cheapest pool": SinglePoolPolicy(job, order[:1]),
        "UP(S)": UniformProgressOverPools(job),
        "UP(AP)": UniformProgressOverPools(job, order=PoolOrder.AVAILABILITY_AND_PRICE),
        "SkyNomad's rule": LifetimeUtility(job),
        "rubato, cheapest pool with failover": SinglePoolPolicy(job, order),
    }
    return {name: MultiRegionGuard(job, policy) for name, policy in plain.items()}


def measure(family: PoolFamily, count: int, seed: int, seconds: list[float]) -> FamilyResult:
    """Play the jobs of a family with every policy."""
    cost: dict[str, list[float]] = {}
    restarts: dict[str, list[int]] = {}
    late: dict[str, int] = {}
    optimum = []

    def note(name: str, dollars: float, starts: int, *, in_time: bool) -> None:
        cost.setdefault(name, []).append(dollars)
        restarts.setdefault(name, []).append(starts)
        late[name] = late.get(name, 0) + (not in_time)

    for job, market, start in family.jobs(count, seed):
        optimum.append(optimum_over_pools(job, market, start=start).cost)
        alone = [
            run_multi_region(
                job,
                market,
                MultiRegionGuard(job, UniformProgressOverPools(job, pools=[pool])),
                start=start,
            )
            for pool in range(len(job.pools))
        ]
        best = min(alone, key=lambda run: run.cost)
        note(HINDSIGHT, best.cost, best.restarts, in_time=best.finished_tick is not None)
        ours = Stopwatch(MultiRegionInstance(job), seconds)
        for name, policy in {**baselines(job, market), OURS: ours}.items():
            run = run_multi_region(job, market, policy, start=start)
            note(name, run.cost, run.restarts, in_time=run.finished_tick is not None)
    least = np.array(optimum)
    drawn = np.random.default_rng(seed).integers(count, size=(1000, count))
    results = []
    for name, dollars in cost.items():
        paid = np.array(dollars)
        low, high = np.quantile(
            paid[drawn].mean(axis=1) / least[drawn].mean(axis=1), [0.025, 0.975]
        )
        results.append(
            PolicyResult(
                policy=name,
                cost=float(paid.mean()),
                ratio=float(paid.mean() / least.mean()),
                low=float(low),
                high=float(high),
                restarts=float(np.mean(restarts[name])),
                late=late[name],
            )
        )
    pools = len(family.markets[0].pools)
    return FamilyResult(family.name, count, pools, float(least.mean()), tuple(results))


def main() -> None:
    options = arguments("One instance over several pools.").parse_args()
    families = pool_families(options.seed)
    count = 4 if options.quick else 40
    results: list[FamilyResult] = []
    seconds: list[float] = []
    measure(families[-1], 1, options.seed, [])  # compile before anything is timed
    with Progress(console=Console(stderr=True)) as progress:
        for family in progress.track(families, description="families"):
            results.append(measure(family, count, options.seed, seconds))
            print(f"{family.name}: {results[-1].of(OURS).ratio:.3f}", file=sys.stderr)
    names = [each.policy for each in results[0].policies]
    figures: dict[str, object] = {
        "ratio_to_optimum": {
            name: {each.name: rounded(each.of(name).ratio) for each in results} for name in names
        },
        "saving_over_best_single_pool": {each.name: rounded(each.saving) for each in results},
        "late_jobs": {name: sum(each.of(name).late for each in results) for name in names},
        "decision_ms": rounded(1000 * float(np.median(seconds))),
        "tables_s": rounded(max(seconds)),
    }
    write = not (options.quick or options.no_write)
    if write:
        save_pictures({"pools.png": figure(results)})
    publish(
        "pools",
        "One instance over several pools",
        QUESTION,
        page(results, figures),
        write=write,
    )
    finish(figures)


if __name__ == "__main__":
    main()
