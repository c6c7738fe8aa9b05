"""The futures of the market that a quote rests on, and how one policy does on them."""

from __future__ import annotations

import math
from statistics import mean
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import numpy as np

from duetune.core.job import Reconfiguration
from duetune.core.market import MarketTrace
from duetune.core.physics import charge, job_physics, play
from duetune.jobs.quote_document import Bound, LineRole, QuoteLine
from duetune.jobs.terms import Terms
from duetune.market.forecast.forecast_source import ForecastSource
from duetune.market.forecast.outlook import WEEK_HOURS
from duetune.market.scenarios import scenarios
from duetune.policies.baselines import OnDemandOnly
from duetune.policies.solve.dynamic import offline_optimum
from duetune.simulate.cases import Case
from duetune.simulate.episode import simulate
from duetune.simulate.tournament import run_tournament

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from duetune.core.fleet import MarketReport
    from duetune.core.job import Job
    from duetune.core.ledger import Outcome
    from duetune.core.market import MarketWindow
    from duetune.core.ports import Policy
    from duetune.jobs.quote_document import LineRole
    from duetune.policies.solve.optimum import Optimum
    from duetune.simulate.tournament import Tournament


class Settled(NamedTuple):
    """``elapsed`` is in slots, and infinite where the job is never finished."""

    cost: float
    elapsed: float


def settled(job: Job, outcome: Outcome) -> Settled:
    """A simulated run as it will be billed: GPUs are given back when the work is done, not when
    the slot is over.
    """
    if outcome.finished is None:
        return Settled(outcome.cost, math.inf)
    last = outcome.entries[-1]
    unused = unused_share(job, outcome.progress, last.allocation.total)
    return Settled(outcome.cost - unused * last.charge, outcome.finished - unused)


def unused_share(job: Job, progress: float, gpus: int) -> float:
    """Of the slot in which ``gpus`` GPUs finished the work and went beyond."""
    return max(0.0, progress - job.work) / job.throughput[gpus]


def line_of(terms: Terms, role: LineRole, outcomes: Sequence[Outcome]) -> QuoteLine:
    runs = [settled(terms.job, outcome) for outcome in outcomes]
    costs = np.array([run.cost for run in runs])
    low, high = np.quantile(costs, [0.1, 0.9])
    elapsed = np.array([run.elapsed for run in runs])
    middle, late = (_quantile(elapsed, share) for share in (0.5, 0.9))
    entries = [entry for outcome in outcomes for entry in outcome.entries]
    spot = sum(entry.allocation.spot for entry in entries)
    held = sum(entry.allocation.total for entry in entries)
    return QuoteLine(
        role=role,
        policy=outcomes[0].policy,
        cost=float(costs.mean()),
        cost_low=float(low),
        cost_high=float(high),
        finish_slot=None if middle is None else math.ceil(middle),
        finish_slot_late=None if late is None else math.ceil(late),
        finish_at=None if middle is None else terms.moment(middle) + terms.late_s,
        finish_late_at=None if late is None else terms.moment(late) + terms.late_s,
        on_time=float(np.mean([outcome.on_time for outcome in outcomes])),
        finished=float(np.isfinite(elapsed).mean()),
        gpus=held / len(entries),
        spot_share=spot / held if held else 0.0,
        utility=float(np.mean([outcome.value for outcome in outcomes]) - costs.mean()),
    )


def _quantile(elapsed: NDArray[np.float64], share: float) -> float | None:
    """One that occurs, so that never is later than any slot and nothing is between the two."""
    value = float(np.quantile(elapsed, share, method="inverted_cdf"))
    return value if math.isfinite(value) else None


LONGEST = 150
STEPS = 500
"""Slots to the hard deadline, and steps of the grid on which the optimum is found. On a longer job
so coarse a grid would mislead, and a finer one would take longer than all the rest.
"""


class Futures(msgspec.Struct, frozen=True, eq=False):
    """The scenarios that a quote rests on: markets in which the present slot is ``start``."""

    terms: Terms
    markets: tuple[MarketTrace, ...]
    start: int
    history_slots: int
    source: ForecastSource

    def play(self, policies: Sequence[Policy]) -> Tournament:
        cases = [Case(self.terms.job, place, self.start) for place in range(len(self.markets))]
        return run_tournament(policies, cases, self.markets, self.source)

    def line(self, role: LineRole, policy: Policy) -> QuoteLine:
        """One policy on every scenario, slot by slot."""
        # Who does not look at the spot market fares the same in all of them.
        markets = self.markets[:1] if policy.name == OnDemandOnly().name else self.markets
        outcomes = [
            simulate(self.terms.job, market, policy, self.source, start=self.start)
            for market in markets
        ]
        return line_of(self.terms, role, outcomes)


def draw_futures(
    terms: Terms,
    history: MarketTrace | None,
    now: MarketReport,
    count: int,
    seed: int,
    source: ForecastSource,
) -> Futures:
    """Scenarios to the hard deadline, each after the same last week, which policies have seen."""
    hours = now.slot_s / 3600
    past = None if history is None else history.pool()
    drawn = scenarios(
        past, now.slot, terms.job.hard_deadline, count=count, seed=seed, slot_hours=hours
    )
    start = 0 if past is None else min(past.slots, round(WEEK_HOURS / hours))
    highest = math.inf if terms.max_price is None else terms.max_price * hours
    return Futures(
        terms=terms,
        markets=tuple(_joined(past, start, future, highest) for future in drawn),
        start=start,
        history_slots=0 if past is None else past.slots,
        source=source,
    )


def _joined(
    past: MarketTrace | None, slots: int, future: MarketTrace, highest: float
) -> MarketTrace:
    """The last slots of the past, then a future; spot above the highest price is not there."""
    price, available = future.spot_price[0], future.available[0]
    on_demand = future.on_demand_price[0]
    if past is not None and slots:
        price = np.append(past.spot_price[0, -slots:], price)
        available = np.append(past.available[0, -slots:], available)
        on_demand = np.append(past.on_demand_price[0, -slots:], on_demand)
    return MarketTrace.single(
        price,
        np.where(price <= highest, available, 0),
        on_demand,
        slot_hours=future.slot_hours,
        name=future.name,
    )


def hindsight(chances: Futures) -> Bound | None:
    """The offline optimum where only the number of GPUs counts and there is no budget; None for a
    job that is too long.

    No change costs more work than in the job's own physics, so nothing can do better.
    """
    job, start = chances.terms.job, chances.start
    if job.hard_deadline > LONGEST:
        return None
    rule = job.reconfiguration
    freer = msgspec.structs.replace(
        job,
        reconfiguration=Reconfiguration(
            grow=rule.grow, shrink=max(rule.shrink, rule.preempted), preempted=rule.preempted
        ),
        budget=None,
    )
    costs, utilities = [], []
    for market in chances.markets:
        window = market.window(start, job.hard_deadline)
        best = offline_optimum(freer, window, max_steps=STEPS)
        utilities.append(best.upper_bound)
        costs.append(best.cost - _unused(freer, window, best))
    return Bound(cost=mean(costs), utility=mean(utilities))


def _unused(job: Job, window: MarketWindow, best: Optimum) -> float:
    """Dollars for the part of the last slot in which the work is already done."""
    if best.finished is None:
        return 0.0
    spot = np.array([held.spot for held in best.plan], dtype=np.int64)
    on_demand = np.array([held.on_demand for held in best.plan], dtype=np.int64)
    *_, progress = play(job_physics(job), window, spot, on_demand)
    last = best.finished - 1
    share = unused_share(job, progress, best.plan[-1].total)
    price, on_demand_price = window.spot_price[last], window.on_demand_price[last]
    return share * float(charge(spot[-1], on_demand[-1], price, on_demand_price))
