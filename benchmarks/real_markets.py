"""Every policy on real markets, with job sizes and deadlines swept, and one instance at a time.

The markets are H100 counts, V100 traces with their prices, 4 and 16 nodes, and AWS prices with
synthetic availability. Tuning used one half of the zones (see ``real_markets_families``); the other
half is reported.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import msgspec
import numpy as np
from rich.console import Console
from rich.progress import Progress

from duetune.market.datasets import data_folder
from duetune.market.forecast.forecast_source import ForecastSource
from duetune.policies.ahanp import Ahanp
from duetune.policies.ahap import Ahap
from duetune.policies.baselines import MaximalSpot, OnDemandOnly, UniformProgress
from duetune.policies.pool import default_pool
from duetune.policies.rubato import Rubato
from duetune.policies.select import AdaHedge, job_utility_range, normalised, run_selection
from duetune.simulate.cases import Case, draw_cases
from duetune.simulate.tournament import run_tournament
from real_markets_families import Family, families
from real_markets_report import QUESTION, details, page, standings_figure
from real_markets_single import measure_single
from reporting import arguments, finish, publish, save_pictures

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from duetune.core.market import MarketTrace
    from duetune.simulate.tournament import Tournament

SELECTED = "selected"
OURS = Rubato().name
SPECIFIED = Ahap(outlook=0.0, patience=0.0, thrifty=False)
BASELINES = (
    UniformProgress().name,
    MaximalSpot().name,
    MaximalSpot(thrifty=True).name,
    SPECIFIED.name,
    Ahap().name,
)
"""Uniform progress, maximal spot (also thrifty), and AHAP with persistence (also as specified)."""
SHOWN = (
    OnDemandOnly().name,
    MaximalSpot().name,
    MaximalSpot(thrifty=True).name,
    UniformProgress().name,
    Ahanp().name,
    SPECIFIED.name,
    Ahap().name,
    OURS,
    SELECTED,
)
PERSISTENCE = "last"
PART = (0.1, 1.0)


class Standing(msgspec.Struct, frozen=True):
    """One policy on the reported zones of one family; money is dollars per job.

    ``excess`` is what the optimum earns more: what the policy paid more, and lost by being late.
    """

    policy: str
    cost: float
    utility: float
    excess: float
    fraction: float
    fraction_low: float
    fraction_high: float
    late: int


class FamilyResult(msgspec.Struct, frozen=True):
    """``gap_closed`` against the best of the baselines, with its 95% interval; ``over_thrifty``
    against the best policy of any kind other than ours and the selection. ``shortfall``: how far
    the selection is below the best single policy of the whole pool, as a share of its utility.
    """

    name: str
    jobs: int
    zones: tuple[str, ...]
    best_baseline: str
    gap_closed: float
    gap_low: float
    gap_high: float
    strongest: str
    over_strongest: float
    best_policy: str
    shortfall: float
    standings: tuple[Standing, ...]


def draw(
    family: Family, markets: tuple[MarketTrace, ...], per_class: int, seed: int
) -> tuple[Case, ...]:
    """Return the jobs of a family on its markets."""
    random = np.random.default_rng(seed)
    return tuple(
        case
        for mix in family.mixes
        for case in draw_cases(mix, markets, per_class, random, part=PART)
    )


def measure(family: Family, per_class: int, seed: int) -> FamilyResult:
    """Return the results of one family on its reported zones."""
    pool = {policy.name: policy for policy in default_pool()}
    names = list(pool)
    source = ForecastSource.parse(PERSISTENCE)
    past = draw(family, family.tuned, max(1, per_class // 3), seed)
    cases = draw(family, family.reported, per_class, seed + 1)
    learnt = run_tournament(list(pool.values()), past, family.tuned, source)
    played = run_tournament(list(pool.values()), cases, family.reported, source, optimum=True)
    utility = {name: played.utility[:, place] for place, name in enumerate(names)}
    cost = {name: played.cost[:, place] for place, name in enumerate(names)}
    on_time = {name: played.on_time[:, place] for place, name in enumerate(names)}
    chosen, expected = _selected(family, past, cases, learnt, played, seed)
    every = np.arange(len(cases))
    utility[SELECTED] = expected
    cost[SELECTED], on_time[SELECTED] = (
        played.cost[every, chosen],
        played.on_time[every, chosen],
    )
    optimum = played.optimum
    resampled = np.random.default_rng(seed).integers(len(cases), size=(1000, len(cases)))
    baseline = max(BASELINES, key=lambda name: utility[name].mean())
    strongest = max((name for name in names if name != OURS), key=lambda n: utility[n].mean())
    best = max(names, key=lambda name: utility[name].mean())
    gaps = _gap(utility[OURS][resampled], utility[baseline][resampled], optimum[resampled])
    standings = []
    for name in SHOWN:
        shares = utility[name][resampled].mean(axis=1) / optimum[resampled].mean(axis=1)
        low, high = np.quantile(shares, [0.025, 0.975])
        standings.append(
            Standing(
                policy=name,
                cost=float(cost[name].mean()),
                utility=float(utility[name].mean()),
                excess=float((optimum - utility[name]).mean()),
                fraction=float(utility[name].mean() / optimum.mean()),
                fraction_low=float(low),
                fraction_high=float(high),
                late=int((~on_time[name]).sum()),
            )
        )
    return FamilyResult(
        name=family.name,
        jobs=len(cases),
        zones=tuple(market.pools[0].name for market in family.reported),
        best_baseline=baseline,
        gap_closed=float(_gap(utility[OURS], utility[baseline], optimum)),
        gap_low=float(np.quantile(gaps, 0.025)),
        gap_high=float(np.quantile(gaps, 0.975)),
        strongest=strongest,
        over_strongest=float(_gap(utility[OURS], utility[strongest], optimum)),
        best_policy=best,
        shortfall=float(1 - utility[SELECTED].mean() / utility[best].mean()),
        standings=tuple(standings),
    )


def _gap(
    ours: NDArray[np.float64], baseline: NDArray[np.float64], optimum: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return the share of the distance from the baseline to the optimum that is closed."""
    mine, theirs, best = (each.mean(axis=-1) for each in (ours, baseline, optimum))
    return np.asarray((mine - theirs) / (best - theirs))


def _selected(
    family: Family,
    past: tuple[Case, ...],
    cases: tuple[Case, ...],
    learnt: Tournament,
    played: Tournament,
    seed: int,
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Play AdaHedge over the whole pool, which learned on the tuned zones and goes on learning."""
    ranges = [
        [
            job_utility_range(
                case.job,
                min_price=0.0,
                on_demand_price=float(markets[case.market].on_demand_price[0, case.start]),
            )
            for case in group
        ]
        for group, markets in ((past, family.tuned), (cases, family.reported))
    ]
    random = np.random.default_rng(seed)
    learner = AdaHedge(len(played.policies))
    for row in normalised(learnt.utility, ranges[0]):
        learner.learn(row)
    order = random.permutation(len(cases))
    run = run_selection(
        played.utility[order], learner, random, ranges=[ranges[1][place] for place in order]
    )
    chosen = np.empty(len(cases), dtype=np.int64)
    expected = np.empty(len(cases))
    chosen[order], expected[order] = run.chosen, run.expected_dollars
    return chosen, expected


def main() -> None:
    options = arguments("Every policy on real markets.").parse_args()
    if not data_folder().is_dir():
        print(f"skipped: there is no data folder at {data_folder()}; DUETUNE_DATA names it")
        sys.exit(0)
    groups = families(options.seed)
    groups = groups[:3] if options.quick else groups
    results = []
    with Progress(console=Console(stderr=True)) as progress:
        for family in progress.track(groups, description="families"):
            mixed = family.mixes[0].reconfiguration.key.value == "composition"
            per_class = (2 if options.quick else 12 if mixed else 30) if family.mixes else 0
            results.append(measure(family, per_class, options.seed))
            print(f"{family.name}: {results[-1].gap_closed:.2f} closed", file=sys.stderr)
    single = measure_single(2 if options.quick else 20, options.seed)
    main_family = results[0]
    figures: dict[str, object] = {
        "fraction_of_optimum": {each.policy: each.fraction for each in main_family.standings},
        "gap_closed": main_family.gap_closed,
        "gap_closed_interval": [main_family.gap_low, main_family.gap_high],
        "late_jobs": sum(
            each.late for result in results for each in result.standings if each.policy == OURS
        ),
        "single_instance_gap_closed": single[1].gap_closed,
        "single_instance_late": sum(each.late + each.late_netted for each in single),
        "excess_by_family": {
            result.name: next(each.excess for each in result.standings if each.policy == OURS)
            for result in results
        },
        "gap_closed_by_family": {result.name: result.gap_closed for result in results},
        "over_strongest_by_family": {result.name: result.over_strongest for result in results},
        "ours_by_family": {
            result.name: next(each.fraction for each in result.standings if each.policy == OURS)
            for result in results
        },
        "selection_shortfall": {result.name: result.shortfall for result in results},
    }
    write = not (options.quick or options.no_write)
    if write:
        save_pictures({"real-markets.png": standings_figure(results)})
    publish(
        "real-markets",
        "Policies on real markets",
        QUESTION,
        page(results, single, figures),
        write=write,
        details=details(results),
    )
    finish(figures)


if __name__ == "__main__":
    main()
