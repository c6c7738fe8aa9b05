"""What online selection came to, beside the best single policy and the baselines."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import numpy as np

from duetune.policies.select.utility_ranges import job_utility_range
from duetune.simulate.summary import BASELINES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from duetune.core.market import MarketTrace
    from duetune.policies.select.selection_run import RegretSlope, SelectionRun
    from duetune.policies.select.utility_ranges import UtilityRange
    from duetune.simulate.cases import Case
    from duetune.simulate.tournament import Tournament

TOP_WEIGHTS = 5
_LATE_SHARE = 0.2


class Earnings(msgspec.Struct, frozen=True):
    """Dollars per job; ``late_utility`` is over the last fifth of the jobs, after most learning."""

    name: str
    mean_utility: float
    late_utility: float
    mean_cost: float
    on_time: float


class Weight(msgspec.Struct, frozen=True):
    """How likely a policy is to be chosen for the next job."""

    policy: str
    weight: float


class SelectionSummary(msgspec.Struct, frozen=True):
    """``selected`` is what the choices made earned, ``expected_utility`` what choosing by the
    same weights earns on average, which ``regret`` and its ``bound`` are about.

    Regret is against the best single policy of the pool, in the unit that was learnt from;
    ``regret_usd`` in dollars.
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
    """The first policies of ``tournament`` are the pool; baselines may follow."""

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
    """None where there is nothing to fit: too few jobs, or all policies alike."""
    return run.slope() if run.jobs >= 4 and run.spread > 0 else None


def case_ranges(cases: Sequence[Case], markets: Sequence[MarketTrace]) -> tuple[UtilityRange, ...]:
    """Bounds on each job's utility as they are known beforehand, for learners that need them."""
    return tuple(
        job_utility_range(
            case.job,
            min_price=float(markets[case.market].spot_price[0].min()),
            on_demand_price=float(markets[case.market].on_demand_price[0].max()),
        )
        for case in cases
    )
