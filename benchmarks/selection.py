"""Online selection: regret over 10,000 jobs, and recovery when the market or the forecast changes.

Every policy of the pool is played on every job, so each learner sees the counterfactual utilities
of all of them. Utilities are scaled by ranges that are known before a job runs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from rich.console import Console
from rich.progress import Progress

from duetune.market.forecast.forecast_source import ForecastSource
from duetune.market.synthetic import SYNTHETIC_MARKETS, synthetic_market
from duetune.plots.policy_figures import selection_figure
from duetune.policies.pool import compiled_pool
from duetune.policies.select import AdaHedge, FixedShare, Hedge
from duetune.policies.select.selection_run import SelectionRun, recovery_jobs, run_selection
from duetune.policies.select.utility_ranges import UtilityRange, job_utility_range
from duetune.simulate.cases import JobMix, draw_cases
from duetune.simulate.tournament import Tournament, run_tournament
from reporting import arguments, finish, markdown_table, publish, save_pictures

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from duetune.core.market import MarketTrace

GOOD = "noisy:proportional-uniform:0.1"
BAD = "noisy:fixed-heavy:2.0"
CHECKED_AT = 1000
RECOVERY_NOTE = (
    "Recovery counts jobs after the change until the mean of the last 20 is within 2% (or 0.5%) of "
    "the new best policy's on the same jobs; 20 is the least possible. The loss of staying is what "
    "the policy that was best before the change gives up after it."
)
LEARNERS = ("FixedShare", "AdaHedge", "Hedge")


class Played(NamedTuple):
    """A sequence of jobs with the utility of every policy."""

    utilities: NDArray[np.float64]
    ranges: list[UtilityRange]
    tournament: Tournament


def play(markets: tuple[MarketTrace, ...], forecast: str, jobs: int, seed: int) -> Played:
    """Play the whole pool on random jobs of these markets."""
    random = np.random.default_rng(seed)
    cases = draw_cases(JobMix(), markets, jobs, random)
    with Progress(console=Console(stderr=True)) as progress:
        task = progress.add_task(f"{jobs} jobs, forecast {forecast}", total=jobs)
        tournament = run_tournament(
            compiled_pool(),
            cases,
            markets,
            ForecastSource.parse(forecast, seed=seed),
            advance=lambda done: progress.advance(task, done),
        )
    ranges = [
        job_utility_range(
            case.job,
            min_price=0.0,
            on_demand_price=float(markets[case.market].on_demand_price[0, case.start]),
        )
        for case in cases
    ]
    return Played(tournament.utility, ranges, tournament)


def all_kinds(seed: int, **levels: float) -> tuple[MarketTrace, ...]:
    """Return one synthetic market of every kind."""
    return tuple(
        synthetic_market(kind, seed=seed, slots=4000, **levels) for kind in SYNTHETIC_MARKETS
    )


def growth(played: Played, seed: int) -> dict[str, SelectionRun]:
    """Run every learner over the same jobs."""
    jobs, arms = played.utilities.shape
    learners = {
        "Hedge, number of jobs known": Hedge(arms, jobs=jobs),
        "Hedge, anytime": Hedge(arms),
        "AdaHedge": AdaHedge(arms),
        "FixedShare": FixedShare(arms),
    }
    return {
        name: run_selection(
            played.utilities, learner, np.random.default_rng(seed), ranges=played.ranges
        )
        for name, learner in learners.items()
    }


class Recovery(NamedTuple):
    """What staying with the old best policy costs, and how many jobs each learner needs."""

    loss_of_staying: float
    jobs: dict[str, int | None]
    jobs_strict: dict[str, int | None]


def recovery(before: Played, after: Played, seed: int) -> Recovery:
    """Count jobs until a learner is within 2% (strict: 0.5%) of the new best policy."""
    utilities = np.concatenate([before.utilities, after.utilities])
    ranges = before.ranges + after.ranges
    arms, change = utilities.shape[1], len(before.utilities)
    learners = {
        "FixedShare": FixedShare(arms),
        "AdaHedge": AdaHedge(arms),
        "Hedge": Hedge(arms),
    }
    means = after.utilities.mean(axis=0)
    stayed = means[before.utilities.mean(axis=0).argmax()]
    found = Recovery(float(1 - stayed / means.max()), {}, {})
    for name, learner in learners.items():
        run = run_selection(utilities, learner, np.random.default_rng(seed), ranges=ranges)
        earned = run.expected_dollars
        found.jobs[name] = recovery_jobs(earned, utilities, change)
        found.jobs_strict[name] = recovery_jobs(earned, utilities, change, tolerance=0.005)
    return found


def all_recoveries(jobs: int, seed: int) -> dict[str, Recovery]:
    """Run changes of the forecast and of the market, each after ``jobs`` jobs."""
    normal = play(all_kinds(seed), GOOD, jobs, seed + 1)
    dear = play(all_kinds(seed + 7, price_level=2.5), "last", jobs, seed + 2)
    return {
        "forecast turns bad": recovery(normal, play(all_kinds(seed), BAD, jobs, seed + 3), seed),
        "market turns scarce and dear": recovery(
            normal,
            play(
                all_kinds(seed + 8, price_level=1.8, availability_level=0.35), GOOD, jobs, seed + 4
            ),
            seed,
        ),
        "market turns cheap, no forecast": recovery(
            normal, play(all_kinds(seed + 9, price_level=0.3), "last", jobs, seed + 5), seed
        ),
        "dear market turns normal": recovery(dear, normal, seed),
    }


def behind_best(run: SelectionRun, played: Played, first: int) -> float:
    """Return how far the mean utility from job ``first`` on is below the best fixed policy's."""
    best = played.utilities[first:].mean(axis=0).max()
    return 1 - float(run.expected_dollars[first:].mean() / best)


def recovery_table(changes: dict[str, Recovery]) -> str:
    """Return one row per change; columns say how close to the new best a learner must come."""
    rows = [
        [
            change,
            f"{found.loss_of_staying:.2%}",
            *(_jobs(found.jobs[name]) for name in LEARNERS),
            *(_jobs(found.jobs_strict[name]) for name in LEARNERS),
        ]
        for change, found in changes.items()
    ]
    header = (
        "change midway",
        "loss of staying",
        *(f"{name}, 2%" for name in LEARNERS),
        *(f"{name}, 0.5%" for name in LEARNERS),
    )
    return markdown_table(header, rows)


def _jobs(found: int | None) -> str:
    return "never" if found is None else str(found)


def main() -> None:
    options = arguments(__doc__.splitlines()[0]).parse_args()
    jobs, half = (1500, 400) if options.quick else (10_000, 2000)
    seed = options.seed
    played = play(all_kinds(seed), "noisy:proportional-uniform:0.3", jobs, seed)
    runs = growth(played, seed)
    rows = [
        [
            name,
            float(run.regret[-1]),
            float(run.bound[-1]),
            "yes" if (run.regret <= run.bound).all() else "NO",
            run.slope().fit,
            run.slope().envelope,
            f"{behind_best(run, played, CHECKED_AT):.2%}",
            float(run.regret_dollars[-1]),
        ]
        for name, run in runs.items()
    ]
    header = (
        "learner",
        f"regret after {jobs:,} jobs",
        "bound",
        "always under it",
        "log-log slope",
        "slope of envelope",
        "behind best after 1,000 jobs",
        "regret ($)",
    )
    changes = all_recoveries(half, seed)
    notes = (
        f"The pool has {len(compiled_pool())} policies. Regret is that of the expected utility "
        "against the policy that is best in hindsight on the jobs so far, in units of one job's "
        "range. " + RECOVERY_NOTE
    )
    write = not (options.quick or options.no_write)
    publish(
        "selection",
        "Online policy selection",
        "How fast do the learners find the best policy, and how fast do they follow a change?",
        [
            markdown_table(header, rows),
            recovery_table(changes),
            notes,
            "![Weights and regret of AdaHedge](selection.png)",
        ],
        write=write,
    )
    ada = runs["AdaHedge"]
    if write:
        title, names = "AdaHedge: weights over jobs", played.tournament.policies
        figure = selection_figure(ada, names, unit="job ranges", title=title)
        save_pictures({"selection.png": figure})
    finish(
        {
            "jobs": jobs,
            "regret_slope": {name: run.slope().fit for name, run in runs.items()},
            "under_bound": all(bool((run.regret <= run.bound).all()) for run in runs.values()),
            "behind_best_after_1000": {
                name: behind_best(run, played, CHECKED_AT) for name, run in runs.items()
            },
            "recovery_jobs": {change: found.jobs for change, found in changes.items()},
            "recovery_jobs_strict": {
                change: found.jobs_strict for change, found in changes.items()
            },
        }
    )


if __name__ == "__main__":
    main()
