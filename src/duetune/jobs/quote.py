"""The quote: every policy is simulated on many possible futures of the market before anything runs.

The document that is shown is in ``quote_document``, the futures are in ``market_futures``.
"""

from __future__ import annotations

import math
from datetime import timedelta
from typing import TYPE_CHECKING

import msgspec
import numpy as np
from numpy.typing import NDArray

from duetune.errors import InvalidInput
from duetune.jobs.market_futures import Futures, draw_futures, hindsight
from duetune.jobs.quote_document import LineRole, QuoteDocument, QuoteLine
from duetune.jobs.spec.values import written_duration
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
"""Utilities that differ by less than this share of the value count as equal."""


class Quote(msgspec.Struct, frozen=True, eq=False):
    """The result of every policy on the scenarios, and the chosen policy.

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
        """Return the same quote for another policy, which need not be in the pool."""
        if policy.name == self.policy:
            return self
        line = self.futures.line(LineRole.CHOSEN, policy)
        rest = tuple(row for row in self.document.lines if row.role is not LineRole.CHOSEN)
        document = _with_lines(self.futures, self.document, (line, *rest))
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
    """Simulate every policy on ``scenarios`` futures of the market and choose the best.

    ``market_history`` ends with the slot before ``now``. Among policies with nearly the same mean
    utility the one that is most often on time is chosen. If the terms leave only one policy, that
    one is chosen. Jobs of more than about 150 slots are simulated on fewer scenarios, so that the
    answer takes seconds. Refuses a budget that no plan could keep.
    """
    if not policies:
        raise InvalidInput("policies", "none", "at least one policy")
    count = min(scenarios, max(LEAST_SCENARIOS, MOST_SLOTS // terms.job.hard_deadline))
    futures = draw_futures(terms, market_history, now, count, seed, source)
    bound = hindsight(futures)
    _check_budget(terms, futures, bound)
    played = futures.play(policies)
    only: dict[str, Policy] = {ON_DEMAND: OnDemandOnly(), SPOT_ONLY: SpotOnly()}
    chosen = policies[_best(terms, played)] if terms.policy is None else only[terms.policy]
    lines = (
        futures.line(LineRole.CHOSEN, chosen),
        futures.line(LineRole.ON_DEMAND_ONLY, OnDemandOnly()),
        futures.line(LineRole.SPOT_ONLY, SpotOnly()),
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
        history_slots=futures.history_slots,
        outlook=outlook_at(futures.markets[0], futures.start),
        bound=bound,
        soft=terms.soft,
    )
    return Quote(
        futures=futures,
        pool=played.policies,
        utilities=played.utility,
        document=_with_lines(futures, document, lines),
    )


def _best(terms: Terms, played: Tournament) -> int:
    """Return the index of the best policy in the pool."""
    means, on_time = played.utility.mean(axis=0), played.on_time.mean(axis=0)
    best = float(means.max())
    nearly = best - NEARLY * max(terms.job.value, abs(best))
    eligible = np.flatnonzero(means >= nearly)
    return int(max(eligible, key=lambda place: (on_time[place], means[place])))


def _check_budget(terms: Terms, futures: Futures, bound: Bound | None) -> None:
    """Refuse a budget below the cheapest possible plan: all work at the most efficient number of
    GPUs and the lowest price.
    """
    job = terms.job
    if job.budget is None:
        return
    lowest = min(float(market.on_demand_price.min()) for market in futures.markets)
    if terms.policy != ON_DEMAND:
        lowest = min(lowest, *(float(market.spot_price.min()) for market in futures.markets))
    gpu_slots = min(
        gpus * job.work / job.throughput[gpus] for gpus in range(job.min_gpus, job.max_gpus + 1)
    )
    least = gpu_slots * lowest
    if job.budget < least:
        likely = "" if bound is None else f"; about ${bound.cost:.2f} is needed"
        raise InvalidInput(
            "budget",
            job.budget,
            f"at least ${math.ceil(100 * least) / 100:.2f}, the cost at the lowest price "
            f"seen{likely}",
        )


def _with_lines(
    futures: Futures, document: QuoteDocument, lines: tuple[QuoteLine, ...]
) -> QuoteDocument:
    """Return the document with other lines, and everything that follows from them."""
    chosen = next(line for line in lines if line.role is LineRole.CHOSEN)
    on_demand = next(line for line in lines if line.role is LineRole.ON_DEMAND_ONLY)
    return msgspec.structs.replace(
        document,
        lines=lines,
        saving=1 - chosen.cost / on_demand.cost if on_demand.cost > 0 else 0.0,
        notes=_notes(futures, chosen),
    )


def _notes(futures: Futures, chosen: QuoteLine) -> tuple[str, ...]:
    """Return remarks for the reader of the quote."""
    job, notes = futures.terms.job, [*futures.terms.notes]
    known = timedelta(seconds=round(futures.history_slots * futures.terms.slot_s))
    if known < timedelta(hours=ENOUGH_HOURS):
        words = f"only {written_duration(known)} of market history is known"
        notes.append(
            f"{words if known else 'no market history is known yet'}, so the forecast is uncertain"
        )
    if futures.terms.policy_reason:
        notes.append(f"the policy is {chosen.policy}, because {futures.terms.policy_reason}")
    if chosen.finished < 1:
        why = "the budget or the hard deadline" if job.budget is not None else "the hard deadline"
        ends = f"{why} ends the job unfinished"
        if futures.terms.soft:
            factor = job.hard_deadline / job.deadline
            ends = f"the job is not finished by {factor:.2g} times its deadline"
        notes.append(f"in {1 - chosen.finished:.0%} of the scenarios {ends}")
    if chosen.on_time < 0.9:
        notes.append(f"on time in only {chosen.on_time:.0%} of the scenarios")
    if chosen.utility < 0:
        notes.append("the job costs more than finishing it is worth")
    return tuple(notes)
