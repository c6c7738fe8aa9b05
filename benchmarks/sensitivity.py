"""How much a forecast error costs: AHAP as the error grows, with and without online selection.

In each error regime the forecasts are the truth plus errors of a level from 0 to 200%. Planners are
compared with policies that use no forecast on the same jobs. The selection learns on other, earlier
jobs of the same markets under the same errors.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import msgspec
import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import Progress

from duetune.core.market import MarketTrace
from duetune.market.datasets import data_folder, h100_counts
from duetune.market.forecast.forecast_source import ForecastSource
from duetune.market.forecast.noisy_oracle import ErrorRegime, better_than_it_is
from duetune.market.synthetic import synthetic_market
from duetune.policies.ahanp import Ahanp
from duetune.policies.ahap import Ahap
from duetune.policies.baselines import MaximalSpot, UniformProgress
from duetune.policies.pool import default_pool
from duetune.policies.rubato import Rubato
from duetune.policies.select import AdaHedge, job_utility_range, normalised, run_selection
from duetune.simulate.cases import Case, JobMix, draw_cases
from duetune.simulate.tournament import run_tournament
from reporting import arguments, finish, publish, rounded, save_pictures
from sensitivity_bound import BOUND_LEVELS, BoundPoint, bound_points
from sensitivity_figures import bound_figure, sensitivity_figure
from sensitivity_report import QUESTION, details, page

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from duetune.core.ports import Policy

LEVELS = (0.0, 0.1, 0.25, 0.5, 1.0, 1.5, 2.0)
QUICK_LEVELS = (0.0, 0.5, 1.0, 2.0)
SLOTS = 3000
HISTORY_PART, MEASURED_PART = (0.0, 0.4), (0.4, 1.0)
FAR = Ahap(window=24, threshold=0.0, outlook=0.0, patience=0.0)
"""Plans most jobs to their end on the forecast alone."""
NEAR = Ahap()
SPECIFIED = Ahap(outlook=0.0, patience=0.0, thrifty=False)
SELECTED = "selected"
SELECTED_ALL = "selected, with rubato"
PLANNERS = {"ahap_24": FAR, "ahap_5": NEAR, "ahap_5_as_specified": SPECIFIED}
SIMPLE = MaximalSpot(thrifty=True).name
PAPER_FREE = (Ahanp(), UniformProgress(), MaximalSpot())
FREE = (*PAPER_FREE, MaximalSpot(thrifty=True), Rubato())
"""What needs no forecast: rubato makes its own of what it has seen."""


def pool() -> tuple[Policy, ...]:
    """Return the default pool, which looks at most five slots ahead, and planners that look
    further.

    Rubato is left out: it is slow to play and does not depend on the forecast.
    """
    further = (
        Ahap(window=window, commitment=commitment, threshold=threshold, outlook=0.0, patience=0.0)
        for window in (12, 24)
        for commitment in (1, 3)
        for threshold in (0.0, 0.5)
    )
    return (*(policy for policy in default_pool() if not isinstance(policy, Rubato)), *further)


class Setting(msgspec.Struct, frozen=True, eq=False):
    """A set of markets and the jobs on them."""

    label: str
    markets: tuple[MarketTrace, ...]
    mix: JobMix


class Point(msgspec.Struct, frozen=True):
    """One policy at one error level.

    ``above`` is the difference to each policy without a forecast on the same jobs; ``width`` is
    half of a 95% interval against thrifty maximal spot. A selection is a mean over what it may
    choose and has no late jobs.
    """

    markets: str
    regime: str
    level: float
    policy: str
    utility: float
    fraction_of_optimum: float
    above: dict[str, float]
    width: float
    late_jobs: int | None


class Played(msgspec.Struct, frozen=True, eq=False):
    """The jobs of a setting, and what does not depend on forecasts."""

    past: tuple[Case, ...]
    cases: tuple[Case, ...]
    optimum: NDArray[np.float64]
    free: dict[str, NDArray[np.float64]]
    rubato_before: NDArray[np.float64]


def settings(seed: int) -> list[Setting]:
    """Return the sets of markets for which there is data."""
    synthetic = tuple(
        synthetic_market(kind, seed=seed + number, slots=SLOTS)
        for number in range(2)
        for kind in ("diurnal", "regime_switching")
    )
    found = [Setting("synthetic", synthetic, JobMix())]
    if (data_folder() / "README.md").is_file():
        counts = h100_counts(slot_hours=0.5)
        zones = tuple(counts.pool(pool.name) for pool in counts.pools)
        found.append(Setting("H100 counts", zones, JobMix(deadline=(12, 20))))
    return found


def prepare(setting: Setting, history: int, measured: int, seed: int) -> Played:
    """Draw the jobs of a setting and play what needs no forecast."""
    random = np.random.default_rng(seed)
    past = draw_cases(setting.mix, setting.markets, history, random, part=HISTORY_PART)
    cases = draw_cases(setting.mix, setting.markets, measured, random, part=MEASURED_PART)
    source = ForecastSource.parse("last", seed=seed)
    free = run_tournament(FREE, cases, setting.markets, source, optimum=True, workers=1)
    before = run_tournament((Rubato(),), past, setting.markets, source, workers=1)
    return Played(
        past=past,
        cases=cases,
        optimum=free.optimum,
        free={policy.name: free.utility[:, place] for place, policy in enumerate(FREE)},
        rubato_before=before.utility[:, 0],
    )


def measure(
    setting: Setting, ready: Played, regime: ErrorRegime, level: float, seed: int
) -> tuple[list[Point], dict[str, float]]:
    """Play all policies of one regime and level; biased errors also by direction."""
    source = ForecastSource.parse(f"noisy:{regime.value}:{level}", seed=seed)
    policies = pool()
    names = [policy.name for policy in policies]
    learnt, played = (
        run_tournament(policies, cases, setting.markets, source, workers=1)
        for cases in (ready.past, ready.cases)
    )
    utility = {
        policy.name: played.utility[:, names.index(policy.name)] for policy in PLANNERS.values()
    }
    late = {
        policy.name: int((~played.on_time[:, names.index(policy.name)]).sum())
        for policy in PLANNERS.values()
    }
    before, after = learnt.utility, played.utility
    utility[SELECTED] = select(setting, ready, before, after, seed)
    utility[SELECTED_ALL] = select(
        setting,
        ready,
        np.column_stack([before, ready.rubato_before]),
        np.column_stack([after, ready.free[Rubato().name]]),
        seed,
    )
    points = [
        Point(
            markets=setting.label,
            regime=regime.value,
            level=level,
            policy=name,
            utility=float(found.mean()),
            fraction_of_optimum=float(found.mean() / ready.optimum.mean()),
            above={rival: float((found - free).mean()) for rival, free in ready.free.items()},
            width=_width(found - ready.free[SIMPLE]),
            late_jobs=late.get(name),
        )
        for name, found in utility.items()
    ]
    by_direction: dict[str, float] = {}
    if regime.shape == "biased":
        begins = np.array([case.start for case in ready.cases])
        better = better_than_it_is(seed, begins)
        for word, those in (("too good", better), ("too bad", ~better)):
            by_direction[word] = float((utility[FAR.name] - ready.optimum)[those].mean())
    return points, by_direction


def select(
    setting: Setting,
    ready: Played,
    before: NDArray[np.float64],
    after: NDArray[np.float64],
    seed: int,
) -> NDArray[np.float64]:
    """Return what choosing by weights learned ``before`` earns on average ``after``, by job."""
    ranges = [
        [
            job_utility_range(
                case.job,
                min_price=0.0,
                on_demand_price=float(setting.markets[case.market].on_demand_price[0, case.start]),
            )
            for case in group
        ]
        for group in (ready.past, ready.cases)
    ]
    learner = AdaHedge(before.shape[1])
    for row in normalised(before, ranges[0]):
        learner.learn(row)
    run = run_selection(after, learner, np.random.default_rng(seed), ranges=ranges[1])
    return run.expected_dollars


def crossover(points: Sequence[Point], rivals: Sequence[str]) -> float | None:
    """Return the level from which the best rival earns as much, or None if none does up to 200%.

    Levels between those played are interpolated.
    """
    ordered = sorted(points, key=lambda each: each.level)
    leads = [(each.level, min(each.above[rival] for rival in rivals)) for each in ordered]
    if leads[0][1] <= 0:
        return 0.0
    for (level, lead), (next_level, next_lead) in itertools.pairwise(leads):
        if next_lead <= 0:
            return level + lead / (lead - next_lead) * (next_level - level)
    return None


def _width(differences: NDArray[np.float64]) -> float:
    return float(1.96 * differences.std(ddof=1) / np.sqrt(differences.size))


def main() -> None:
    options = arguments("How much a forecast error costs.").parse_args()
    history, measured, bounded = (40, 60, 6) if options.quick else (200, 400, 32)
    levels = QUICK_LEVELS if options.quick else LEVELS
    bound_levels = BOUND_LEVELS[::3] if options.quick else BOUND_LEVELS
    chosen = settings(options.seed)
    if len(chosen) == 1:
        print("the data folder is not here: synthetic markets only")
    points: list[Point] = []
    bounds: list[BoundPoint] = []
    directions: dict[str, dict[float, dict[str, float]]] = {}
    ready = {setting.label: prepare(setting, history, measured, options.seed) for setting in chosen}
    with Progress(console=Console(stderr=True)) as progress:
        steps = len(ErrorRegime) * (len(levels) + len(bound_levels))
        task = progress.add_task("errors", total=len(chosen) * steps)
        for setting in chosen:
            for regime in ErrorRegime:
                for level in levels:
                    same = [
                        each for each in points if (each.markets, each.level) == (setting.label, 0)
                    ]
                    if level == 0 and same and regime.shape != "biased":
                        # Without an error all regimes are one.
                        found = [
                            msgspec.structs.replace(each, regime=regime.value)
                            for each in same[: len(PLANNERS) + 2]
                        ]
                        by_direction = {}
                    else:
                        found, by_direction = measure(
                            setting, ready[setting.label], regime, level, options.seed
                        )
                    points += found
                    if by_direction:
                        name = f"{setting.label}, {regime.value}"
                        directions.setdefault(name, {})[level] = by_direction
                    progress.advance(task)
            bounds += bound_points(
                setting.label,
                ready[setting.label].cases[:bounded],
                setting.markets,
                bound_levels,
                options.seed,
                lambda: progress.advance(task),
            )
    free = {
        label: {name: float(found.mean()) for name, found in each.free.items()}
        for label, each in ready.items()
    }
    optimum = {label: float(each.optimum.mean()) for label, each in ready.items()}
    figures = _figures(points, bounds, free, optimum)
    write = not (options.quick or options.no_write)
    if write:
        drawn = sensitivity_figure(points, free, optimum)
        save_pictures({"sensitivity.png": drawn, "sensitivity-bound.png": bound_figure(bounds)})
    publish(
        "sensitivity",
        "How much a forecast error costs",
        QUESTION,
        page(points, bounds, free, optimum, figures, (history, measured, bounded)),
        write=write,
        details=details(points, bounds, free, optimum, directions, figures),
    )
    finish(figures)


def _figures(
    points: Sequence[Point],
    bounds: Sequence[BoundPoint],
    free: dict[str, dict[str, float]],
    optimum: dict[str, float],
) -> dict[str, object]:
    def everywhere(figure: Callable[[list[Point]], object]) -> dict[str, object]:
        """Apply a figure to the points of every set of markets, policy and regime."""
        by_key: dict[tuple[str, str, str], list[Point]] = {}
        for each in points:
            by_key.setdefault((each.markets, each.policy, each.regime), []).append(each)
        return {
            label: {
                short: {
                    x.value: figure(by_key.get((label, name, x.value), [])) for x in ErrorRegime
                }
                for short, name in policies.items()
            }
            for label in labels
        }

    labels = list(free)
    policies = {short: policy.name for short, policy in PLANNERS.items()} | {
        SELECTED: SELECTED,
        "selected_with_rubato": SELECTED_ALL,
    }
    rivals = {
        "best of ahanp, uniform_progress, maximal_spot": [each.name for each in PAPER_FREE],
        "also thrifty maximal_spot": [each.name for each in FREE if each.name != "rubato"],
        "also rubato": [each.name for each in FREE],
    }
    return {
        "crossover_level": everywhere(
            lambda found: {
                words: rounded(crossover(found, group)) for words, group in rivals.items()
            }
        ),
        "utility": everywhere(
            lambda found: {f"{each.level:g}": rounded(each.utility) for each in found}
        ),
        "utility_without_forecast": {
            label: {name: rounded(value) for name, value in each.items()}
            for label, each in free.items()
        },
        "optimum": {label: rounded(value) for label, value in optimum.items()},
        "bound_violated_share": sum(each.violated for each in bounds)
        / sum(each.cases for each in bounds),
        "bound_cases": sum(each.cases for each in bounds),
        "bound_over_loss": {
            label: {
                f"{level:g}": rounded(_ratio(bounds, label, level))
                for level in sorted({each.level for each in bounds})
            }
            for label in labels
        },
        "late_jobs": {
            short: sum(each.late_jobs or 0 for each in points if each.policy == name)
            for short, name in policies.items()
            if short in PLANNERS
        },
    }


def _ratio(bounds: Sequence[BoundPoint], label: str, level: float) -> float | None:
    those = [each for each in bounds if (each.markets, each.level) == (label, level)]
    loss = sum(each.loss for each in those)
    # A loss far below a cent is rounding.
    return sum(each.bound for each in those) / loss if loss > 1e-3 * len(those) else None


if __name__ == "__main__":
    main()
