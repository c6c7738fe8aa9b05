"""The futures that a quote rests on, and the best that could be made of them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from duetune.core.job import Reconfiguration
from duetune.core.market import MarketTrace
from duetune.forecast.outlook import WEEK_HOURS
from duetune.forecast.source import ForecastSource
from duetune.market.scenarios import scenarios
from duetune.optimise.dynamic import offline_optimum
from duetune.quote.document import Bound
from duetune.quote.terms import Terms
from duetune.simulate.cases import Case
from duetune.simulate.tournament import run_tournament

if TYPE_CHECKING:
    from collections.abc import Sequence

    from duetune.core.fleet import MarketReport
    from duetune.core.ports import Policy
    from duetune.simulate.tournament import Tournament

BOUND_SCENARIOS = 20
BOUND_STEPS = 500


class Futures(msgspec.Struct, frozen=True, eq=False):
    """The scenarios that a quote rests on: markets in which the present slot is ``start``."""

    terms: Terms
    at: float
    markets: tuple[MarketTrace, ...]
    start: int
    history_slots: int
    source: ForecastSource

    def play(self, policies: Sequence[Policy]) -> Tournament:
        cases = [Case(self.terms.job, place, self.start) for place in range(len(self.markets))]
        return run_tournament(policies, cases, self.markets, self.source)


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
        at=now.at,
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


def hindsight(chances: Futures) -> Bound:
    """The offline optimum where only the number of GPUs counts and there is no budget.

    No change costs less work than in the job's own physics, so nothing can do better.
    """
    job, start = chances.terms.job, chances.start
    rule = job.reconfiguration
    freer = msgspec.structs.replace(
        job,
        reconfiguration=Reconfiguration(
            grow=rule.grow, shrink=max(rule.shrink, rule.preempted), preempted=rule.preempted
        ),
        budget=None,
    )
    some = chances.markets[:BOUND_SCENARIOS]
    optima = [
        offline_optimum(freer, market.window(start, job.hard_deadline), max_steps=BOUND_STEPS)
        for market in some
    ]
    return Bound(
        cost=math.fsum(best.cost for best in optima) / len(some),
        utility=math.fsum(best.upper_bound for best in optima) / len(some),
        scenarios=len(some),
    )
