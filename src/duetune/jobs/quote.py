"""The quote: the pool of policies played on many futures of the market, before anything runs."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import msgspec
import numpy as np
from numpy.typing import NDArray

from duetune.errors import InvalidInput
from duetune.jobs.market_futures import Futures, draw_futures, hindsight
from duetune.jobs.quote_document import LineRole, QuoteDocument, QuoteLine
from duetune.jobs.terms import ON_DEMAND, SPOT_ONLY
from duetune.market.forecast.simple import outlook_at
from duetune.market.scenarios import ENOUGH_HOURS
from duetune.policies.baselines import OnDemandOnly, SpotOnly
from duetune.simulate.episode import LAST_VALUE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from duetune.core.fleet import MarketReport
    from duetune.core.market import MarketTrace
    from duetune.core.ports import Policy
    from duetune.jobs.quote_document import Bound
    from duetune.jobs.terms import Terms
    from duetune.market.forecast.forecast_source import ForecastSource
    from duetune.simulate.tournament import Tournament

MOST_SLOTS, LEAST_SCENARIOS = 15_000, 20
NEARLY = 1e-3
"""Utilities that differ by less than this share of the value are taken for equal."""


class Quote(msgspec.Struct, frozen=True, eq=False):
    """What every policy of the pool came to on the scenarios, and the one that was chosen.

    ``utilities`` has one row per scenario and one column per policy of the pool.
    """

    futures: Futures
    pool: tuple[str, ...]
    utilities: NDArray[np.float64]
    document: QuoteDocument

    @property
    def policy(self) -> str:
        """The name of the chosen policy."""
        return self.document.chosen.policy

    def with_policy(self, policy: Policy) -> Quote:
        """The same quote for another policy, in the pool or not."""
        if policy.name == self.policy:
            return self
        line = self.futures.line(LineRole.CHOSEN, policy)
        others = tuple(other for other in self.document.lines if other.role is not LineRole.CHOSEN)
        document = _with_lines(self.futures, self.document, (line, *others))
        return msgspec.structs.replace(self, document=document)


def make_quote(
    terms: Terms,
    policies: Sequence[Policy],
    *,
    market_history: MarketTrace | None,
    now: MarketReport,
    scenarios: int = 100,
    seed: int = 0,
    source: ForecastSource = LAST_VALUE,
) -> Quote:
    """Play every policy of the pool on so many futures of the market, and choose the best.

    ``market_history`` ends with the slot before ``now``. Of policies with nearly the same mean
    utility the one that is most often on time is chosen. Where the terms leave only one policy,
    that one is. A job of more than 150 slots or so is played on fewer scenarios, to be answered in
    seconds. Refuses a budget that no plan could keep to.
    """
    if not policies:
        raise InvalidInput("policies", "none", "at least one policy")
    count = min(scenarios, max(LEAST_SCENARIOS, MOST_SLOTS // terms.job.hard_deadline))
    chances = draw_futures(terms, market_history, now, count, seed, source)
    bound = hindsight(chances)
    _check_budget(terms, chances, bound)
    played = chances.play(policies)
    only: dict[str, Policy] = {ON_DEMAND: OnDemandOnly(), SPOT_ONLY: SpotOnly()}
    chosen = policies[_best(terms, played)] if terms.policy is None else only[terms.policy]
    lines = (
        chances.line(LineRole.CHOSEN, chosen),
        chances.line(LineRole.ON_DEMAND_ONLY, OnDemandOnly()),
        chances.line(LineRole.SPOT_ONLY, SpotOnly()),
    )
    job = terms.job
    document = QuoteDocument(
        at=now.at,
        origin=terms.origin,
        slot_s=terms.slot_s,
        work=job.work,
        value=job.value,
        budget=job.budget,
        deadline_slot=job.deadline,
        deadline_at=terms.moment(job.deadline),
        hard_deadline_slot=job.hard_deadline,
        hard_deadline_at=terms.moment(job.hard_deadline),
        scenarios=count,
        history_slots=chances.history_slots,
        outlook=outlook_at(chances.markets[0], chances.start),
        bound=bound,
    )
    return Quote(
        futures=chances,
        pool=played.policies,
        utilities=played.utility,
        document=_with_lines(chances, document, lines),
    )


def _best(terms: Terms, played: Tournament) -> int:
    means, on_time = played.utility.mean(axis=0), played.on_time.mean(axis=0)
    best = float(means.max())
    nearly = best - NEARLY * max(terms.job.value, abs(best))
    eligible = np.flatnonzero(means >= nearly)
    return int(max(eligible, key=lambda place: (on_time[place], means[place])))


def _check_budget(terms: Terms, chances: Futures, bound: Bound | None) -> None:
    """No plan is cheaper than all the work at the best number of GPUs and the lowest price."""
    job = terms.job
    if job.budget is None:
        return
    lowest = min(float(market.on_demand_price.min()) for market in chances.markets)
    if terms.policy != ON_DEMAND:
        lowest = min(lowest, *(float(market.spot_price.min()) for market in chances.markets))
    gpu_slots = min(
        gpus * job.work / job.throughput[gpus] for gpus in range(job.min_gpus, job.max_gpus + 1)
    )
    least = gpu_slots * lowest
    if job.budget < least:
        likely = "" if bound is None else f"; about ${bound.cost:.2f} is likely to be needed"
        raise InvalidInput(
            "budget",
            job.budget,
            f"at least ${math.ceil(100 * least) / 100:.2f}, the work at the lowest price "
            f"seen{likely}",
        )


def _with_lines(
    chances: Futures, document: QuoteDocument, lines: tuple[QuoteLine, ...]
) -> QuoteDocument:
    """Whatever follows from the lines, anew."""
    chosen = next(line for line in lines if line.role is LineRole.CHOSEN)
    on_demand = next(line for line in lines if line.role is LineRole.ON_DEMAND_ONLY)
    return msgspec.structs.replace(
        document,
        lines=lines,
        saving=1 - chosen.cost / on_demand.cost if on_demand.cost > 0 else 0.0,
        notes=_notes(chances, chosen),
    )


def _notes(chances: Futures, chosen: QuoteLine) -> tuple[str, ...]:
    job, notes = chances.terms.job, [*chances.terms.notes]
    hours = chances.history_slots * chances.terms.slot_s / 3600
    if hours < ENOUGH_HOURS:
        notes.append(
            f"only {hours:g} hours of the market's past are known: the forecast is a wide one"
        )
    if chances.terms.policy_reason:
        notes.append(f"the policy is {chosen.policy}, since {chances.terms.policy_reason}")
    if chosen.finished < 1:
        why = "the budget or the hard deadline" if job.budget is not None else "the hard deadline"
        notes.append(f"in {1 - chosen.finished:.0%} of the scenarios {why} ends it unfinished")
    if chosen.on_time < 0.9:
        notes.append(f"on time in {chosen.on_time:.0%} of the scenarios only")
    if chosen.utility < 0:
        notes.append("it costs more than finishing it is worth")
    return tuple(notes)
