"""Rubato for one instance over several pools, as a plain step function for other schedulers.

The job holds one instance in one pool at a time, or none (``core.multi_region_physics``). What may
be seen, and the order within a tick, are in ``multi_region_step``. In every tick::

    step = MultiRegionInstance(MultiRegionJob(work_s=48 * 3600, deadline_s=60 * 3600, pools=pools))
    todo = step(elapsed_s, work_left_s, active, pending_s, prices, last_answer)

Every look updates a belief about its pool (``forecast.pool_looks``). Tables of expected costs cover
the pools in which spot is the best buy (``multi_region_plan``). They are filled for a market that
is worse than believed and for one that is better, and the costs are averaged, because the belief
may be wrong. Attempts are made in the order of their value, as long as each, if granted, is worth
more than doing without. With one pool the step is that of ``SingleInstance``.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from duetune.core.multi_region_physics import SAME_TIME, billed_share, pool_tick
from duetune.core.single_instance_physics import ON_DEMAND, SPOT, WAIT
from duetune.errors import InvalidInput
from duetune.market.forecast.pool_looks import PoolLooks
from duetune.policies.multi_region_guard import PlaceTracker, Position, guarded, is_safe
from duetune.policies.multi_region_plan import PoolChoice, PoolsNow, PoolTables, tables_for
from duetune.policies.multi_region_single import SinglePoolPolicy
from duetune.policies.multi_region_step import (
    Attempt,
    Otherwise,
    PoolPrice,
    PoolStep,
    attempt_of,
)
from duetune.policies.multi_region_tables import expected_value
from duetune.policies.single_instance import USUAL_TICK_S, Instance

if TYPE_CHECKING:
    from collections.abc import Mapping

    from duetune.core.multi_region_physics import MultiRegionJob

_KINDS = {SPOT: Instance.SPOT, ON_DEMAND: Instance.ON_DEMAND}


class MultiRegionInstance:
    """The step function of one job over several pools. Use one object per job.

    ``most_pools``: the tables look at the spot of so many pools. ``max_attempts``: so many requests
    are made per tick at most, for hosts that limit them. ``host_safety_net`` is for a host that
    overrides steps near the deadline. The plan then ends one tick earlier.

    ``costs`` are the expected dollars of each choice, seen from the last step, None standing for
    waiting. A cost is infinite if the deadline could be lost.
    """

    def __init__(
        self,
        job: MultiRegionJob,
        *,
        host_safety_net: bool = False,
        most_pools: int = 4,
        max_attempts: int | None = None,
    ) -> None:
        if not 1 <= most_pools <= 6:
            raise InvalidInput("most_pools", most_pools, "1 to 6, as tables double with every pool")
        if max_attempts is not None and max_attempts < 1:
            raise InvalidInput("max_attempts", max_attempts, "1 or more")
        if host_safety_net and job.ticks > 1:
            job = msgspec.structs.replace(job, deadline_s=job.deadline_s - job.tick_s)
        self._job = job
        self._most_pools, self._max_attempts = most_pools, max_attempts
        self.costs: dict[Attempt | None, float] = {}
        self._begin()

    def look(self, pool: str, up: bool) -> None:
        """Tell whether a pool has spot now; for hosts that know, called just before a step."""
        self._told[self._job.index(pool)] = bool(up)

    def __call__(
        self,
        elapsed_s: float,
        work_left_s: float,
        active: Attempt | tuple[str, str] | None,
        pending_s: float,
        prices: Mapping[str, PoolPrice | tuple[float, float]],
        last_answer: Attempt | tuple[str, str] | None,
    ) -> PoolStep:
        """Return what to do in the tick that begins now; called once per tick.

        ``active`` is what is held: a preempted instance is not. ``pending_s`` is the rest of its
        overhead. ``last_answer`` is the attempt of the last step that was granted, even if it is
        lost by now, or None if none was.
        """
        job = self._job
        times = {"elapsed_s": elapsed_s, "work_left_s": work_left_s, "pending_s": pending_s}
        for field, number in times.items():
            if not math.isfinite(number):
                raise InvalidInput(field, number, "a number of seconds")
        missing = [pool.name for pool in job.pools if pool.name not in prices]
        if missing:
            raise InvalidInput("prices", sorted(prices), f"a price of pool {missing[0]} too")
        held, answer = attempt_of(active), attempt_of(last_answer)
        named = {pool.name: PoolPrice(*prices[pool.name]) for pool in job.pools}
        self._learn(elapsed_s, held, answer)
        told = dict(self._told)
        self._told.clear()
        for pool, up in told.items():
            self._looks.see(pool, up=up)
        ticks_left = job.ticks - round(elapsed_s / job.tick_s)
        now = self._places.position(
            ticks_left * job.tick_s, work_left_s, held, max(0.0, pending_s), answer
        )
        if work_left_s <= 0:
            return self._said(PoolStep((), Otherwise.STOP), held)
        if self._alone is not None:
            view = (elapsed_s, work_left_s, held, now.pending, named, answer)
            step = self._alone(*view, there=told.get(0))
        else:
            step = self._planned(now, held, named)
        return self._said(guarded(job, now, step, named, held), held)

    def _begin(self) -> None:
        """Forget everything: a new run begins."""
        job = self._job
        self._looks = PoolLooks(len(job.pools), USUAL_TICK_S / job.tick_s)
        self._places = PlaceTracker(job)
        self._alone = SinglePoolPolicy(job, [0]) if len(job.pools) == 1 else None
        self._tables: PoolTables | None = None
        self._told: dict[int, bool] = {}
        self._seen_at: float | None = None
        self._asked: tuple[Attempt, ...] = ()
        self._kept: Attempt | None = None

    def _said(self, step: PoolStep, held: Attempt | None) -> PoolStep:
        """Remember what was asked and kept, to learn from the answer."""
        if self._max_attempts is not None and len(step.attempts) > self._max_attempts:
            *others, last = step.attempts
            sure = [last] if last.kind is Instance.ON_DEMAND else []
            spots = (step.attempts if not sure else others)[: self._max_attempts - len(sure)]
            step = msgspec.structs.replace(step, attempts=(*spots, *sure))
        self._asked = step.attempts
        self._kept = held if step.otherwise is Otherwise.STAY else None
        return step

    def _learn(self, elapsed: float, held: Attempt | None, answer: Attempt | None) -> None:
        """Look at the answers to the last attempts, and at what has become of what was held."""
        if self._seen_at is not None:
            ticks = round((elapsed - self._seen_at) / self._job.tick_s)
            if ticks < 0:
                told = dict(self._told)
                self._begin()
                self._told |= told
            elif ticks == 0:
                return
            else:
                for attempt in self._asked:
                    granted = attempt == answer
                    if attempt.kind is Instance.SPOT:
                        self._looks.see(self._job.index(attempt.pool), up=granted)
                    if granted:
                        self._kept = attempt
                        break
                self._looks.advance(ticks)
                kept = self._kept
                if kept is not None and kept.kind is Instance.SPOT and held in {kept, None}:
                    self._looks.see(self._job.index(kept.pool), up=held == kept)
        self._seen_at = elapsed

    def _planned(
        self,
        now: Position,
        held: Attempt | None,
        prices: Mapping[str, PoolPrice],
    ) -> PoolStep:
        """Return the attempts in order of their value, and the best of doing without them."""
        job = self._job
        table = np.array([prices[pool.name] for pool in job.pools], dtype=np.float64) / 3600
        market = PoolsNow(table[:, 0], table[:, 1], self._looks.rates)
        self._tables = tables_for(job, now, market, self._most_pools, self._tables)
        values = _ChoiceValues(job, now, market, self._tables, self._looks)
        own = PoolChoice(now.held, now.place)
        others = [choice for choice in self._tables.choices if choice != own]
        attempts: list[Attempt] = []
        while True:
            without: dict[PoolChoice | None, float] = {None: values.of(PoolChoice(WAIT, now.place))}
            if now.held != WAIT:
                without[own] = values.of(own)
            without |= {each: values.of(each) for each in others if each.kind == ON_DEMAND}
            spots = {each: values.of(each) for each in others if values.may_be_granted(each)}
            if not attempts:
                costs = [*without.items(), *spots.items()]
                self.costs = {each and self._attempt(each): cost for each, cost in costs}
            base = min(without, key=lambda each: without[each])
            best = min(spots, key=lambda each: spots[each], default=None)
            if best is None or spots[best] >= without[base]:
                break
            attempts.append(self._attempt(best))
            others.remove(best)
            values.refuse(best.pool)
        if base is not None and base != own and math.isfinite(without[base]):
            return PoolStep((*attempts, self._attempt(base)), Otherwise.WAIT)
        stays = base == own or (held is not None and math.isinf(without[base]))
        return PoolStep(tuple(attempts), Otherwise.STAY if stays else Otherwise.WAIT)

    def _attempt(self, choice: PoolChoice) -> Attempt:
        return Attempt(self._job.pools[choice.pool].name, _KINDS[choice.kind])


class _ChoiceValues:
    """What each choice of a tick costs in the mean, as far as is known now."""

    def __init__(
        self,
        job: MultiRegionJob,
        now: Position,
        market: PoolsNow,
        tables: PoolTables,
        looks: PoolLooks,
    ) -> None:
        self._job, self._now, self._market, self._tables = job, now, market, tables
        self._chances = looks.chances
        if now.held == SPOT:
            self._chances[now.place] = 1.0
        self._if_up, self._if_down = looks.next_chances(up=True), looks.next_chances(up=False)

    def refuse(self, pool: int) -> None:
        """Go on as if spot in a pool had been asked for and refused."""
        self._chances[pool] = 0.0

    def may_be_granted(self, choice: PoolChoice) -> bool:
        """Return whether a choice is spot that is not known to be down."""
        return choice.kind == SPOT and self._chances[choice.pool] > 0

    def of(self, choice: PoolChoice) -> float:
        """Return the expected cost from now on if ``choice`` runs in this tick.

        Spot counts as granted. The cost is infinite if the deadline could be lost after it.
        """
        job, now, tables = self._job, self._now, self._tables
        kind, pool = choice
        tick, waits = job.tick_s, kind == WAIT
        did = pool_tick(job.terms, tick, now.held, now.place, now.pending, kind, pool)
        if not is_safe(job, now, kind, pool):
            return math.inf
        cost = tables.plans[0].rent * tick
        left, mode = now.work_left, 0
        if waits:
            mode = tables.places[pool]
        else:
            pace = job.terms.pace[pool]
            share = billed_share(tick, did.lost, left, did.work, pace, job.prorate_last_tick)
            cost = self._market.price(choice) * tick * share + did.egress
            left -= did.work
            if left <= SAME_TIME:
                return cost
            left += did.pending * pace
            mode = tables.mode(choice)
        up = self._chances.copy()
        if kind == SPOT:
            up[pool] = 1.0
        following = (up * self._if_up + (1 - up) * self._if_down)[tables.spot_pools]
        mean = sum(
            expected_value(values, plan, following, mode, now.time_left - tick, left)
            for plan, values in zip(tables.plans, tables.values, strict=True)
        )
        return float(cost + mean / len(tables.plans))
