"""What may become of the market from here, and the value tables of a job planned against it."""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from duetune.core.decision import Seen
from duetune.core.market import MarketChain
from duetune.core.physics import cheapest_spot, job_physics
from duetune.market.forecast.market_chain import (
    LEVELS,
    PRICES,
    learned_chain,
    number_of,
    price_state,
    with_prices,
)
from duetune.market.forecast.regimes import believe, first_belief, regime_chain
from duetune.policies.ahap_kernel import swap_reserve
from duetune.policies.solve.progress_grid import even_unit
from duetune.policies.solve.stochastic import fill_mix_tables, fill_tables, mixes

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from duetune.core.decision import View
    from duetune.core.job import Job
    from duetune.core.physics import JobPhysics
    from duetune.policies.rules import Now

STEPS = 512
FIRST_LESSON = 48
"""Slots that must have been seen before the market is learned anew within a job."""
MIX_GPUS = 16
"""Up to so many GPUs every pair of spot and on-demand is planned with, where swaps cost work."""
MIX_LEVELS = 9
"""Then fewer numbers of GPUs on spot are told apart: there are many more states as it is."""
_ENOUGH = 3.0
_FEWEST_STEPS = 16
_TABLE_CELLS = 60_000_000  # 240 MB: longer and larger jobs are planned on a coarser grid


class RubatoTables(NamedTuple):
    """``chances`` of each state of the market in the next slot, with so many GPUs ``available``."""

    key: ChainKey
    chances: NDArray[np.float64]
    available: NDArray[np.int64]


class ChainKey(NamedTuple):
    """A chain by value, and the slot of the job from which on it is used."""

    by_number: bytes
    by_price: bytes
    available: bytes
    spot_price: bytes
    begin: int

    @classmethod
    def of(cls, chain: MarketChain, begin: int) -> ChainKey:
        return cls(
            chain.by_number.tobytes(),
            chain.by_price.tobytes(),
            chain.available.tobytes(),
            chain.spot_price.tobytes(),
            begin,
        )

    def chain(self) -> MarketChain:
        return MarketChain(
            _square(self.by_number),
            _square(self.by_price),
            np.frombuffer(self.available, dtype=np.int64).copy(),
            np.frombuffer(self.spot_price, dtype=np.float64).copy(),
        )


class BestPlan(NamedTuple):
    """Value tables: ``tables[t, i, c, r]`` for state i of the market, choice c held before, and r
    steps of ``unit`` work left. A choice is a pair of ``held``, or, where only the number of GPUs
    counts, that number split as is cheapest. ``reserve``: work to leave room for. ``job`` as it was
    planned: a value beyond all costs is brought down, since it would drown them.
    """

    job: JobPhysics
    tables: NDArray[np.float32]
    unit: float
    reserve: float
    held: NDArray[np.int64] | None

    def pairs(self, now: Now) -> NDArray[np.int64]:
        """The choices as (spot, on-demand) in the present slot."""
        if self.held is not None:
            return self.held
        spot = [
            cheapest_spot(gpus, now.available, now.spot_price, now.on_demand_price)
            for gpus in range(self.tables.shape[2])
        ]
        return np.array([(there, gpus - there) for gpus, there in enumerate(spot)])


def _square(data: bytes) -> NDArray[np.float64]:
    numbers = np.frombuffer(data, dtype=np.float64)
    side = math.isqrt(numbers.size)
    return numbers.reshape(side, side).copy()


def prospect_of(view: View) -> RubatoTables:
    """From what was seen of the market up to now; from the present slot alone if that is all."""
    market, seen = view.market, view.seen
    if seen is None or seen.available.size == 0:
        seen = Seen(np.array([market.spot_price]), np.array([market.available]))
    kept, begin = _learned_from(seen.available.size, view.slot)
    chain = _chain(
        np.ascontiguousarray(seen.spot_price[:kept], dtype=np.float64).tobytes(),
        np.ascontiguousarray(seen.available[:kept], dtype=np.int64).tobytes(),
        view.job.max_gpus,
        MIX_LEVELS if _by_pairs(view.job) else LEVELS,
    )
    if view.job.max_gpus == 1:
        there = (seen.available >= 1).astype(np.int64)
        there[-1] = market.available >= 1
        numbers = believe(first_belief(), chain.by_number, there) @ chain.by_number
    else:
        numbers = chain.by_number[number_of(chain, market.available)]
    prices = chain.by_price[price_state(chain, market.spot_price)]
    chances = np.outer(numbers, prices).ravel()
    return RubatoTables(ChainKey.of(chain, begin), chances, chain.available)


@functools.lru_cache(maxsize=64)
def _chain(spot_price: bytes, available: bytes, max_gpus: int, levels: int) -> MarketChain:
    """Many slots in a row, and many futures of a quote, have the same past."""
    past = Seen(np.frombuffer(spot_price), np.frombuffer(available, dtype=np.int64))
    if max_gpus == 1:
        regimes = regime_chain()
        return with_prices(regimes.available, regimes.by_number, past)
    return learned_chain(past, max_gpus, most_levels=levels)


def _learned_from(seen: int, slot: int) -> tuple[int, int]:
    """How many of the slots seen the market is learned from, and from which slot of the job on.

    It is learned anew whenever twice as much was seen as the last time, and not before a day's
    worth was seen: in between the tables serve every slot, and all futures of a quote.
    """
    before = max(1, seen - (slot - 1))
    enough = max(before, FIRST_LESSON)
    if seen < enough:
        return before, 1
    kept = enough << ((seen // enough).bit_length() - 1)
    return kept, kept - before + 1


def plannable(job: Job) -> bool:
    """Whether the tables of a job fit into memory with at least a few steps."""
    choices = mixes(job.min_gpus, job.max_gpus).shape[0] if _by_pairs(job) else job.max_gpus + 1
    numbers = regime_chain().available.size if job.max_gpus == 1 else LEVELS
    cells = (job.hard_deadline + 2) * numbers * PRICES * choices
    return cells * _FEWEST_STEPS <= _TABLE_CELLS


def _by_pairs(job: Job) -> bool:
    return job_physics(job).by_composition and job.max_gpus <= MIX_GPUS


@functools.lru_cache(maxsize=4)
def best_plan(job: Job, key: ChainKey, on_demand_price: float, steps: int) -> BestPlan:
    """The same tables serve all slots of a job until the market is learned anew."""
    physics, chain = _sobered(job_physics(job), on_demand_price), key.chain()
    held = mixes(job.min_gpus, job.max_gpus) if _by_pairs(job) else None
    choices = job.max_gpus + 1 if held is None else held.shape[0]
    cells = (job.hard_deadline + 2) * chain.available.size * choices
    unit = even_unit(job, max(1, min(steps, _TABLE_CELLS // cells)))
    if held is None:
        tables = fill_tables(physics, chain, on_demand_price, unit, key.begin)
        return BestPlan(physics, tables, unit, swap_reserve(physics), None)
    tables = fill_mix_tables(physics, chain, held, on_demand_price, unit, key.begin)
    return BestPlan(physics, tables, unit, 0.0, held)


def _sobered(job: JobPhysics, on_demand_price: float) -> JobPhysics:
    """A value of several times the most that can be spent on demand says "it must be done", and
    more of it changes no plan.
    """
    highest = float(job.values.max(initial=0.0))
    enough = _ENOUGH * job.hard_deadline * job.max_gpus * on_demand_price
    if highest <= enough:
        return job
    values = job.values * (enough / highest)
    values.setflags(write=False)
    return job._replace(values=values)
