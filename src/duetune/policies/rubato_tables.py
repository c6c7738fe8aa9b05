"""The market model and the value tables that rubato plans with.

``prospect_of`` learns a Markov chain from the observed market and gives the probabilities of the
next slot. ``best_plan`` computes a job's value tables for that chain. Both are cached, because many
slots of a job, and many futures of a quote, ask for the same ones.
"""

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
"""Number of observed slots before the market is learned again within a job."""
MIX_GPUS = 16
"""Largest number of GPUs for which every (spot, on-demand) pair is planned, if swaps cost work."""
MIX_LEVELS = 9
"""Number of spot levels with pairs: fewer than usual, because pairs make many more states."""
_ENOUGH = 3.0
_FEWEST_STEPS = 16
_TABLE_CELLS = 60_000_000  # 240 MB; longer and larger jobs get a coarser grid


class RubatoTables(NamedTuple):
    """The market as expected for the next slot.

    ``chances`` has the probability of each state of the chain; ``available`` has the number of spot
    GPUs in each state; ``key`` identifies the chain.
    """

    key: ChainKey
    chances: NDArray[np.float64]
    available: NDArray[np.int64]


class ChainKey(NamedTuple):
    """A Markov chain as a hashable value, with the slot of the job from which it is used."""

    by_number: bytes
    by_price: bytes
    available: bytes
    spot_price: bytes
    begin: int

    @classmethod
    def of(cls, chain: MarketChain, begin: int) -> ChainKey:
        """Return the key of a chain; called when a chain is learned."""
        return cls(
            chain.by_number.tobytes(),
            chain.by_price.tobytes(),
            chain.available.tobytes(),
            chain.spot_price.tobytes(),
            begin,
        )

    def chain(self) -> MarketChain:
        """Return the chain that this key was made from; called when tables are computed."""
        return MarketChain(
            _square(self.by_number),
            _square(self.by_price),
            np.frombuffer(self.available, dtype=np.int64).copy(),
            np.frombuffer(self.spot_price, dtype=np.float64).copy(),
        )


class BestPlan(NamedTuple):
    """The value tables of one job on one chain.

    - ``tables[t, i, c, r]``: the value from slot t on, in state i of the market, with choice c held
      before and r steps of ``unit`` work left.
    - ``held``: the (spot, on-demand) pair of each choice. None if only the number of GPUs matters;
      the choice is then that number, split in the cheapest way.
    - ``reserve``: the amount of work that plans leave room for.
    - ``job``: the job as planned. A value far above all costs is scaled down, because float32
      tables would lose the costs beside it.
    """

    job: JobPhysics
    tables: NDArray[np.float32]
    unit: float
    reserve: float
    held: NDArray[np.int64] | None

    def pairs(self, now: Now) -> NDArray[np.int64]:
        """Return the choices as (spot, on-demand) pairs in the present slot."""
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
    """Return the market as expected for the next slot; called once per decision.

    The chain is learned from the observed slots, or from the present slot if there are no others.
    """
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
    """Return the chain learned from these slots; consecutive slots share it."""
    past = Seen(np.frombuffer(spot_price), np.frombuffer(available, dtype=np.int64))
    if max_gpus == 1:
        regimes = regime_chain()
        return with_prices(regimes.available, regimes.by_number, past)
    return learned_chain(past, max_gpus, most_levels=levels)


def _learned_from(seen: int, slot: int) -> tuple[int, int]:
    """Return how many observed slots the chain is learned from, and the slot from which it is used.

    The chain is learned again whenever twice as many slots were observed as the last time, but not
    before a day was observed. In between the same tables serve all slots and all futures of a
    quote.
    """
    before = max(1, seen - (slot - 1))
    enough = max(before, FIRST_LESSON)
    if seen < enough:
        return before, 1
    kept = enough << ((seen // enough).bit_length() - 1)
    return kept, kept - before + 1


def plannable(job: Job) -> bool:
    """Return whether the job's tables fit into memory with at least a few steps."""
    choices = mixes(job.min_gpus, job.max_gpus).shape[0] if _by_pairs(job) else job.max_gpus + 1
    numbers = regime_chain().available.size if job.max_gpus == 1 else LEVELS
    cells = (job.hard_deadline + 2) * numbers * PRICES * choices
    return cells * _FEWEST_STEPS <= _TABLE_CELLS


def _by_pairs(job: Job) -> bool:
    """Return whether tables are over pairs: swaps cost work and the pairs are few."""
    return job_physics(job).by_composition and job.max_gpus <= MIX_GPUS


@functools.lru_cache(maxsize=4)
def best_plan(job: Job, key: ChainKey, on_demand_price: float, steps: int) -> BestPlan:
    """Return the value tables of a job on a chain, shared until the chain is learned again."""
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
    """Return the job with its value capped at three times the largest possible on-demand cost.

    A larger value changes no plan: in both cases the job must be finished.
    """
    highest = float(job.values.max(initial=0.0))
    enough = _ENOUGH * job.hard_deadline * job.max_gpus * on_demand_price
    if highest <= enough:
        return job
    values = job.values * (enough / highest)
    values.setflags(write=False)
    return job._replace(values=values)
