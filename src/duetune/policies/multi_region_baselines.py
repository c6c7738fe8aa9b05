"""Simple policies for one instance over several pools, to compare with.

They are meant to run behind ``MultiRegionGuard``, which starts on-demand at the last safe moment.
All learn from their own looks only.
"""

from __future__ import annotations

import math
from enum import StrEnum
from typing import TYPE_CHECKING

import numpy as np

from duetune.policies.multi_region_step import Attempt, Otherwise, PoolPrice, PoolStep
from duetune.policies.single_instance import Instance

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from duetune.core.multi_region_physics import MultiRegionJob


class PoolOrder(StrEnum):
    """How uniform progress orders the pools in which it asks for spot.

    - ``PRICE``: by price per unit of work.
    - ``AVAILABILITY_AND_PRICE``: by that price over the share of looks that found spot.
    """

    PRICE = "price"
    AVAILABILITY_AND_PRICE = "availability and price"


class UniformProgressOverPools:
    """Uniform progress that changes the pool when its instance is lost: UP(S) and UP(AP).

    A spot instance is kept until it is lost. Then all pools are asked in order. Without spot the
    job starts on-demand where it is cheapest if it is behind the even pace, and waits if it is not.
    On-demand is left for spot once the job is ahead of the even pace by two restarts.
    ``pools`` restricts it to some pools: with one it is uniform progress in that pool.
    """

    def __init__(
        self,
        job: MultiRegionJob,
        *,
        order: PoolOrder = PoolOrder.PRICE,
        pools: Sequence[int] | None = None,
    ) -> None:
        self._job, self._order = job, order
        self._pools = list(range(len(job.pools)) if pools is None else pools)
        self._found = dict.fromkeys((pool.name for pool in job.pools), (1.0, 1.0))
        self._asked: tuple[Attempt, ...] = ()
        self._kept: Attempt | None = None

    def __call__(
        self,
        elapsed_s: float,
        work_left_s: float,
        active: Attempt | None,
        pending_s: float,  # noqa: ARG002 - the view of every policy
        prices: Mapping[str, PoolPrice],
        last_answer: Attempt | None,
    ) -> PoolStep:
        """Return what to do in this tick; called once per tick."""
        self._count(active, last_answer)
        job = self._job
        rate, done = job.work_s / job.deadline_s, job.work_s - work_left_s
        spots = self._ordered(prices)
        home = min(spots, key=lambda each: self._per_work(each.pool, prices[each.pool].on_demand))
        step = PoolStep(tuple(spots), Otherwise.WAIT)
        if active is not None and active.kind is Instance.SPOT:
            step = PoolStep((), Otherwise.STAY)
        elif active is not None:
            restart = max(pool.restart_overhead_s for pool in job.pools)
            ahead = done > (elapsed_s + 2 * restart) * rate
            step = PoolStep(tuple(spots) if ahead else (), Otherwise.STAY)
        elif done < elapsed_s * rate:
            step = PoolStep((*spots, Attempt(home.pool, Instance.ON_DEMAND)), Otherwise.WAIT)
        self._asked = step.attempts
        self._kept = active if step.otherwise is Otherwise.STAY else None
        return step

    def _ordered(self, prices: Mapping[str, PoolPrice]) -> list[Attempt]:
        """Return spot in the pools where it is cheaper than on-demand, best first."""
        names = [self._job.pools[pool].name for pool in self._pools]
        least = min(self._per_work(name, prices[name].on_demand) for name in names)
        scores = {}
        for name in names:
            cost = self._per_work(name, prices[name].spot)
            found, looks = self._found[name]
            share = found / looks if self._order is PoolOrder.AVAILABILITY_AND_PRICE else 1.0
            if cost < least:
                scores[name] = cost / max(share, 1e-9)
        ordered = sorted(scores, key=lambda name: scores[name])
        return [Attempt(name, Instance.SPOT) for name in ordered] or [
            Attempt(names[0], Instance.SPOT)
        ]

    def _per_work(self, name: str, price: float) -> float:
        return price / self._job.pools[self._job.index(name)].pace

    def _count(self, active: Attempt | None, answer: Attempt | None) -> None:
        """Count the looks of the last tick, and how many found spot."""
        looks = []
        for attempt in self._asked:
            looks.append((attempt, attempt == answer))
            if attempt == answer:
                self._kept = attempt
                break
        if self._kept is not None:
            looks.append((self._kept, active == self._kept))
        for attempt, found in looks:
            if attempt.kind is Instance.SPOT:
                there, asked = self._found[attempt.pool]
                self._found[attempt.pool] = (there + found, asked + 1)


class LifetimeUtility:
    """The rule of SkyNomad (NSDI 2027): pools by the utility of a lifetime there.

    U = V eta - C - E / L, with eta = (L - d)+ / L the share of a lifetime L that does work after
    the overhead d, C the price, E the dollars of the move, and V = C_od theta / theta' the value of
    progress: theta is the rate that is needed from now on and theta' the rate until now. Lifetimes
    are Nelson-Aalen estimates from its own spells, given the age of what is held. Other pools are
    tried every two hours, and taken if their utility is higher by ``hysteresis`` of on-demand's
    price. An attempt takes the place of a probe, as a granted one is a running instance here.
    """

    def __init__(
        self,
        job: MultiRegionJob,
        *,
        probe_hours: float = 2.0,
        hysteresis: float = 0.02,
        usual_hours: float = 6.0,
    ) -> None:
        self._job, self._probe_s, self._hysteresis = job, probe_hours * 3600, hysteresis
        self._usual_s = usual_hours * 3600
        self._ended: dict[str, list[float]] = {pool.name: [] for pool in job.pools}
        self._since: float | None = None
        self._spell: Attempt | None = None
        self._place: int | None = None
        self._probed_at = 0.0

    def __call__(
        self,
        elapsed_s: float,
        work_left_s: float,
        active: Attempt | None,
        pending_s: float,  # noqa: ARG002 - the view of every policy
        prices: Mapping[str, PoolPrice],
        last_answer: Attempt | None,
    ) -> PoolStep:
        """Return what to do in this tick; called once per tick."""
        job = self._job
        self._watch(elapsed_s, active, last_answer)
        needed = work_left_s / max(job.tick_s, job.deadline_s - elapsed_s)
        until_now = (job.work_s - work_left_s) / elapsed_s if elapsed_s else needed
        on_demand = min(job.pools, key=lambda pool: prices[pool.name].on_demand / pool.pace)
        value = prices[on_demand.name].on_demand / on_demand.pace
        price, pressure = value, needed / max(until_now, 1e-3)
        value *= min(pressure, 10.0)
        utility = {
            Attempt(pool.name, Instance.SPOT): self._utility(
                place, value, prices[pool.name].spot, active, elapsed_s
            )
            for place, pool in enumerate(job.pools)
        }
        sure = Attempt(on_demand.name, Instance.ON_DEMAND)
        utility[sure] = value * on_demand.pace - prices[on_demand.name].on_demand
        if active is not None and active.kind is Instance.ON_DEMAND and active != sure:
            utility[active] = utility.pop(sure)
        base = max(0.0, utility.get(active, 0.0)) if active else 0.0
        tries = active is None or active.kind is Instance.ON_DEMAND
        tries = tries or elapsed_s - self._probed_at >= self._probe_s
        margin = self._hysteresis * price if active else 0.0
        better = [each for each in utility if utility[each] > base + margin and each != active]
        better.sort(key=lambda each: -utility[each])
        if not tries:
            better = [each for each in better if each.kind is Instance.ON_DEMAND]
        elif active is not None:
            self._probed_at = elapsed_s
        for place, each in enumerate(better):
            if each.kind is Instance.ON_DEMAND:
                better = better[: place + 1]
                break
        stays = active is not None and utility.get(active, -math.inf) > 0
        return PoolStep(tuple(better), Otherwise.STAY if stays else Otherwise.WAIT)

    def _utility(
        self, place: int, value: float, price: float, active: Attempt | None, elapsed: float
    ) -> float:
        """Return the utility per hour of spot in a pool."""
        terms, pool = self._job.terms, self._job.pools[place]
        here = active == Attempt(pool.name, Instance.SPOT)
        age = elapsed - self._since if here and self._since is not None else 0.0
        lifetime = self._lifetime(pool.name, age)
        overhead, egress = 0.0, 0.0
        if not here:
            overhead = pool.restart_overhead_s
            if self._place is not None:
                overhead += float(terms.move_time[self._place, place])
                egress = float(terms.move_price[self._place, place])
        share = max(0.0, lifetime - overhead) / lifetime
        return value * pool.pace * share - price - egress / (lifetime / 3600)

    def _lifetime(self, name: str, age: float) -> float:
        """Return the mean time that is left of a spell of an age, by Nelson and Aalen.

        Two spells of the usual length are added, so that the first pools are tried at all. Who
        outlives all spells that were seen lives as long as usual once more.
        """
        ends = np.sort([*self._ended[name], self._usual_s, self._usual_s])
        ends = ends[ends > age]
        if not ends.size:
            return self._usual_s
        survives = np.exp(-np.cumsum(1.0 / np.arange(ends.size, 0, -1)))
        steps = np.diff(np.concatenate(([age], ends)))
        seen = float(steps @ np.concatenate(([1.0], survives[:-1])))
        return max(self._job.tick_s, seen + float(survives[-1]) * self._usual_s)

    def _watch(self, elapsed: float, active: Attempt | None, answer: Attempt | None) -> None:
        """Follow the spell of what is held, and note its length when it ends by a preemption."""
        if answer is not None and answer != self._spell:
            self._spell, self._since = answer, elapsed - self._job.tick_s
            self._place = self._job.index(answer.pool)
        if self._spell is not None and active != self._spell:
            if active is None and self._spell.kind is Instance.SPOT and self._since is not None:
                self._ended[self._spell.pool].append(max(self._job.tick_s, elapsed - self._since))
            self._spell, self._since = active, elapsed if active else None
