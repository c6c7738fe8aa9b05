"""Summaries: a tournament, one line per policy; online selection; the optimum as a run."""

from __future__ import annotations

import csv
import math
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from duetune.core.decision import Allocation, Decision
from duetune.market.forecast.forecast_source import ForecastSource
from duetune.policies.pool import baselines
from duetune.policies.select.utility_ranges import job_utility_range
from duetune.simulate.episode import simulate

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import IO

    from numpy.typing import NDArray

    from duetune.core.decision import View
    from duetune.core.job import Job
    from duetune.core.ledger import Outcome
    from duetune.core.market import MarketTrace
    from duetune.policies.select.selection_run import RegretSlope, SelectionRun
    from duetune.policies.select.utility_ranges import UtilityRange
    from duetune.policies.solve.optimum import Optimum
    from duetune.simulate.cases import Case
    from duetune.simulate.tournament import Tournament


BASELINES = tuple(policy.name for policy in baselines())
_TWO_SIDED_95 = 1.96


class Standing(msgspec.Struct, frozen=True):
    """One policy over all jobs. Money is in dollars per job.

    - ``low`` and ``high`` are the 95% interval of the mean utility. If the optimum is known, it is
      the interval of the distance to it, so differences between jobs do not widen it.
    - ``fraction_of_optimum`` is a ratio of sums, so a job that is worth nothing does no harm.
    - ``gap_closed`` is the part of the distance from the best baseline to the optimum.
    """

    policy: str
    mean_utility: float
    low: float
    high: float
    mean_cost: float
    on_time: float
    spot_share: float
    fraction_of_optimum: float | None = None
    gap_closed: float | None = None


def standings(tournament: Tournament) -> tuple[Standing, ...]:
    """Return the standing of every policy, the best first."""
    means = tournament.utility.mean(axis=0)
    # Relative to the bound: where the optimum is not exact, a policy may exceed it.
    bound = tournament.upper_bound
    optimum = None if bound is None else float(bound.mean())
    rivals = [
        float(means[place]) for place, name in enumerate(tournament.policies) if name in BASELINES
    ]
    spot = tournament.spot_slots.sum(axis=0)
    held = spot + tournament.on_demand_slots.sum(axis=0)
    paired = 0.0 if bound is None else bound[:, np.newaxis]
    on_time = tournament.on_time.mean(axis=0)
    margins = margin_of_mean(tournament.utility - paired)
    rows = [
        Standing(
            policy=name,
            mean_utility=float(means[place]),
            low=float(means[place] - margins[place]),
            high=float(means[place] + margins[place]),
            mean_cost=float(tournament.cost[:, place].mean()),
            on_time=float(on_time[place]),
            spot_share=float(spot[place] / held[place]) if held[place] else 0.0,
            fraction_of_optimum=fraction(float(means[place]), optimum),
            gap_closed=_gap_closed(float(means[place]), rivals, optimum),
        )
        for place, name in enumerate(tournament.policies)
    ]
    return tuple(sorted(rows, key=lambda row: -row.mean_utility))


def margin_of_mean(samples: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return half the width of the 95% interval of each column's mean; 0 for one sample."""
    count = len(samples)
    if count < 2:
        return np.zeros(samples.shape[1:])
    spread: NDArray[np.float64] = samples.std(axis=0, ddof=1)
    return _TWO_SIDED_95 * spread / math.sqrt(count)


def fraction(utility: float, optimum: float | None) -> float | None:
    """Return ``utility`` as a share of the optimum; None if the optimum is worth nothing."""
    return utility / optimum if optimum is not None and optimum > 0 else None


def dollars(amount: float) -> str:
    """Return the amount as text: ``$12.30``, ``-$4.00``."""
    return f"-${-amount:,.2f}" if amount < -0.005 else f"${abs(amount):,.2f}"


def write_rows(tournament: Tournament, cases: Sequence[Case], file: IO[str]) -> None:
    """Write a CSV file with one row per job and policy."""
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(
        (
            *("job", "market", "start", "policy", "utility", "cost", "finished", "deadline"),
            *("on_time", "spot_gpu_slots", "on_demand_gpu_slots", "optimum"),
        )
    )
    on_time = tournament.on_time
    for row, case in enumerate(cases):
        best = "" if tournament.optimum is None else repr(float(tournament.optimum[row]))
        for place, policy in enumerate(tournament.policies):
            writer.writerow(
                (
                    *(case.job.name, case.market, case.start, policy),
                    repr(float(tournament.utility[row, place])),
                    repr(float(tournament.cost[row, place])),
                    int(tournament.finished[row, place]) or "",
                    case.job.deadline,
                    int(on_time[row, place]),
                    int(tournament.spot_slots[row, place]),
                    int(tournament.on_demand_slots[row, place]),
                    best,
                )
            )


class PlannedRun(msgspec.Struct, frozen=True):
    """A policy that holds the planned allocations whatever happens."""

    name: str
    allocations: tuple[Allocation, ...]

    def decide(self, view: View) -> Decision:
        """Return the planned allocation of the slot, and none after the end of the plan."""
        place = view.slot - 1
        planned = place < len(self.allocations)
        return Decision(
            allocation=self.allocations[place] if planned else Allocation(),
            reason="follows the plan",
        )


def replay(optimum: Optimum, job: Job, trace: MarketTrace, *, start: int = 0) -> Outcome:
    """Return the optimal plan as an outcome of the simulator, with an entry for each slot."""
    plan = PlannedRun(f"optimum ({optimum.method})", optimum.plan)
    return simulate(job, trace, plan, ForecastSource(), start=start)


def _gap_closed(utility: float, rivals: list[float], optimum: float | None) -> float | None:
    if optimum is None or not rivals:
        return None
    best = max(rivals)
    return (utility - best) / (optimum - best) if optimum > best else None


TOP_WEIGHTS = 5
_LATE_SHARE = 0.2


class Earnings(msgspec.Struct, frozen=True):
    """The result of one way to choose policies, in dollars per job.

    ``late_utility`` is the mean over the last fifth of the jobs, after most of the learning.
    """

    name: str
    mean_utility: float
    late_utility: float
    mean_cost: float
    on_time: float


class Weight(msgspec.Struct, frozen=True):
    """The probability that a policy is chosen for the next job."""

    policy: str
    weight: float


class SelectionSummary(msgspec.Struct, frozen=True):
    """The result of online selection beside the best single policy and the baselines.

    - ``selected`` is what the choices that were made earned.
    - ``expected_utility`` is what choosing by the same weights earns on average; ``regret`` and its
      ``bound`` refer to it.
    - ``regret`` is against the best single policy of the pool, in the unit that was learned from;
      ``regret_usd`` is in dollars.
    """

    selected: Earnings
    expected_utility: float
    best_fixed: Earnings
    baselines: tuple[Earnings, ...]
    regret: float
    bound: float
    regret_usd: float
    slope: float | None
    weights: tuple[Weight, ...]


def selection_summary(run: SelectionRun, tournament: Tournament) -> SelectionSummary:
    """Return the summary of a selection run on the outcomes of ``tournament``.

    The first policies of ``tournament`` are the pool; baselines may follow.
    """

    def earned(name: str, chosen: NDArray[np.int64]) -> Earnings:
        every = np.arange(chosen.size)
        utility = tournament.utility[every, chosen]
        late = max(1, round(_LATE_SHARE * utility.size))
        return Earnings(
            name=name,
            mean_utility=float(utility.mean()),
            late_utility=float(utility[-late:].mean()),
            mean_cost=float(tournament.cost[every, chosen].mean()),
            on_time=float(tournament.on_time[every, chosen].mean()),
        )

    def fixed(place: int) -> Earnings:
        return earned(tournament.policies[place], np.full(run.jobs, place))

    slope = regret_slope(run)
    heaviest = np.argsort(-run.final_weights, kind="stable")[:TOP_WEIGHTS]
    return SelectionSummary(
        selected=earned("selected", run.chosen),
        expected_utility=float(run.expected_dollars.mean()),
        best_fixed=fixed(run.best),
        baselines=tuple(
            fixed(place) for place, name in enumerate(tournament.policies) if name in BASELINES
        ),
        regret=float(run.regret[-1]),
        bound=float(run.bound[-1]),
        regret_usd=float(run.regret_dollars[-1]),
        slope=None if slope is None else slope.fit,
        weights=tuple(
            Weight(tournament.policies[arm], float(run.final_weights[arm])) for arm in heaviest
        ),
    )


def regret_slope(run: SelectionRun) -> RegretSlope | None:
    """Return the slope of regret over jobs; None with too few jobs or with equal policies."""
    return run.slope() if run.jobs >= 4 and run.spread > 0 else None


def case_ranges(cases: Sequence[Case], markets: Sequence[MarketTrace]) -> tuple[UtilityRange, ...]:
    """Return bounds on each job's utility that are known in advance; some learners need them."""
    return tuple(
        job_utility_range(
            case.job,
            min_price=float(markets[case.market].spot_price[0].min()),
            on_demand_price=float(markets[case.market].on_demand_price[0].max()),
        )
        for case in cases
    )
