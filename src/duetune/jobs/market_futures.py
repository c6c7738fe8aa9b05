"""The market futures that a quote rests on, the result of a policy on them, and their optimum."""

from __future__ import annotations

import math
from statistics import NormalDist, mean
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import numpy as np

from duetune.core.job import Reconfiguration
from duetune.core.market import MarketTrace
from duetune.core.physics import job_physics, unused_share
from duetune.jobs.quote_document import Bound, LineRole, QuoteLine
from duetune.jobs.terms import Terms
from duetune.knowledge.estimate import DEVIATIONS
from duetune.market.forecast.forecast_source import ForecastSource
from duetune.market.forecast.simple import WEEK_HOURS
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
    from duetune.core.ports import Policy
    from duetune.jobs.quote_document import LineRole
    from duetune.simulate.tournament import Tournament


class Settled(NamedTuple):
    """What a simulated run is billed. ``elapsed`` is in slots, infinite if the job never
    finishes.
    """

    cost: float
    elapsed: float


def settled(job: Job, outcome: Outcome) -> Settled:
    """Return a simulated run as it will be billed: GPUs are released when the work is done, not at
    the end of the slot.
    """
    if outcome.finished is None:
        return Settled(outcome.cost, math.inf)
    last = outcome.entries[-1]
    unused = unused_share(job_physics(job), outcome.progress, last.allocation.total)
    return Settled(outcome.cost - unused * last.charge, outcome.finished - unused)


def line_of(
    terms: Terms, role: LineRole, outcomes: Sequence[Outcome], jobs: Sequence[Job]
) -> QuoteLine:
    """Return one line of a quote: the outcomes of one policy, with the job of each scenario."""
    runs = [settled(job, outcome) for job, outcome in zip(jobs, outcomes, strict=True)]
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
        gpus=terms.gpus_per_member * held / len(entries),
        spot_share=spot / held if held else 0.0,
        utility=float(np.mean([outcome.value for outcome in outcomes]) - costs.mean()),
    )


def _quantile(elapsed: NDArray[np.float64], share: float) -> float | None:
    """Return a quantile that occurs in the data, so that "never" stays later than any slot; None
    for never.
    """
    value = float(np.quantile(elapsed, share, method="inverted_cdf"))
    return value if math.isfinite(value) else None


LONGEST = 150
STEPS = 500
"""The optimum is computed for jobs of at most LONGEST slots, on a grid of STEPS steps. On a longer
job this grid would be too coarse, and a finer one too slow.
"""


class Futures(msgspec.Struct, frozen=True, eq=False):
    """The scenarios of a quote: markets in which the present slot has index ``start``, and how
    fast the job trains in each, as a multiple of its expected throughput.
    """

    terms: Terms
    markets: tuple[MarketTrace, ...]
    paces: tuple[float, ...]
    start: int
    history_slots: int
    source: ForecastSource

    def play(self, policies: Sequence[Policy]) -> Tournament:
        """Return the tournament of the policies on all scenarios, at the expected pace."""
        cases = [Case(self.terms.job, place, self.start) for place in range(len(self.markets))]
        return run_tournament(policies, cases, self.markets, self.source)

    def line(self, role: LineRole, policy: Policy) -> QuoteLine:
        """Return the line of one policy, simulated slot by slot on every scenario."""
        # At one pace, a policy without spot has the same result in all scenarios.
        alike = policy.name == OnDemandOnly().name and len(set(self.paces)) == 1
        jobs = [self._at(pace) for pace in self.paces][: 1 if alike else None]
        # A policy knows the pace: it is measured soon after the job has begun.
        outcomes = [
            simulate(job, market, policy, self.source, start=self.start)
            for job, market in zip(jobs, self.markets, strict=False)
        ]
        return line_of(self.terms, role, outcomes, jobs)

    def _at(self, pace: float) -> Job:
        """Return the job as it is at a multiple of its expected throughput."""
        job = self.terms.job
        if pace == 1.0:
            return job
        curve = tuple(pace * each for each in job.throughput)
        return msgspec.structs.replace(job, throughput=curve)


def draw_futures(
    terms: Terms,
    history: MarketTrace | None,
    now: MarketReport,
    count: int,
    seed: int,
    source: ForecastSource,
) -> Futures:
    """Return ``count`` scenarios up to the hard deadline. Each begins with the same last week of
    history, which policies may see, and has its own pace.
    """
    hours = now.slot_s / 3600
    past = None if history is None else history.pool()
    drawn = scenarios(
        past, now.slot, terms.job.hard_deadline, count=count, seed=seed, slot_hours=hours
    )
    start = 0 if past is None else min(past.slots, round(WEEK_HOURS / hours))
    highest = (
        math.inf if terms.max_price is None else terms.max_price * terms.gpus_per_member * hours
    )
    return Futures(
        terms=terms,
        markets=tuple(_joined(past, start, future, highest) for future in drawn),
        paces=_paces(terms.pace or (1.0, 1.0), count, seed),
        start=start,
        history_slots=0 if past is None else past.slots,
        source=source,
    )


def _paces(pace: tuple[float, float], count: int, seed: int) -> tuple[float, ...]:
    """Return a pace for each scenario: the quantiles of a distribution whose 5% and 95% quantiles
    are ``pace``, in random order. Below and above 1 it is log-normal, each side with its own width.
    """
    low, high = (math.log(each) / DEVIATIONS for each in pace)
    if low == high == 0.0:
        return (1.0,) * count
    normal = NormalDist()
    drawn = [normal.inv_cdf((place + 0.5) / count) for place in range(count)]
    factors = [math.exp(each * (high if each > 0 else -low)) for each in drawn]
    order = np.random.default_rng([seed, count]).permutation(count).tolist()
    return tuple(factors[place] for place in order)


def _joined(
    past: MarketTrace | None, slots: int, future: MarketTrace, highest: float
) -> MarketTrace:
    """Return the last ``slots`` of the past followed by a future. Spot above the highest price
    counts as unavailable.
    """
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


def hindsight(futures: Futures) -> Bound | None:
    """Return the offline optimum where only the number of GPUs counts and there is no budget; None
    if the job is too long.

    No change costs more work than in the job's own physics, so no policy can do better.
    """
    job, start = futures.terms.job, futures.start
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
    for market in futures.markets:
        window = market.window(start, job.hard_deadline)
        best = offline_optimum(freer, window, max_steps=STEPS, by_second=True)
        utilities.append(best.upper_bound)
        costs.append(best.cost)
    return Bound(cost=mean(costs), utility=mean(utilities))
