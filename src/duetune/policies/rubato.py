"""Rubato: exact stochastic dynamic programming against the market as it was learned.

In music, tempo rubato is time stolen here and given back there, so that the end falls where it
should. The policy waits and hurries in the same way: in every slot it holds the number of GPUs
with the best mean over all markets that may follow, each with the probability that what was seen
gives it, and the guard keeps the deadline.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import numpy as np

from duetune.core.compiled import compiled
from duetune.core.decision import Allocation, Decision, Seen
from duetune.core.market import MarketChain
from duetune.core.physics import (
    JobPhysics,
    affordable,
    charge,
    cheapest_spot,
    efficiency,
    is_done,
    job_physics,
)
from duetune.errors import InvalidInput
from duetune.forecast.chain import learned_chain, state_of
from duetune.forecast.regimes import believe, first_belief, regime_chain
from duetune.optimise.grid import even_unit
from duetune.optimise.stochastic import fill_tables, value_at
from duetune.policies.committed import swap_reserve
from duetune.policies.compiled_policy import on_demand_to_go
from duetune.policies.horizon import planning_grid
from duetune.policies.kernel import Guard, guarded
from duetune.policies.rules import now_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from duetune.core.decision import View
    from duetune.core.job import Job
    from duetune.policies.rules import Now

STEPS = 512
LARGEST_STEPS = 8192
REFRESH = 48
"""Slots after which the market is learned anew; in between the tables serve every slot."""
_TABLE_CELLS = 60_000_000  # 240 MB: longer and larger jobs are planned on a coarser grid
_TIE = 1e-6


class Rubato(msgspec.Struct, frozen=True):
    """``steps``: on how fine a grid of work left it plans."""

    steps: int = STEPS

    def __post_init__(self) -> None:
        if not 1 <= self.steps <= LARGEST_STEPS:
            raise InvalidInput("steps", self.steps, f"1 to {LARGEST_STEPS:,}")

    @property
    def name(self) -> str:
        return "rubato" if self.steps == STEPS else f"rubato:{self.steps}"

    def decide(self, view: View) -> Decision:
        job = job_physics(view.job)
        prospect = _prospect(view)
        unit, tables = _tables(view.job, prospect.key, view.market.on_demand_price, self.steps)
        now = now_of(view)
        values = _values(job, tables[view.slot + 1], unit, now, prospect.chances)
        wanted = _best(values)
        grid, to_go = planning_grid(view.job), on_demand_to_go(view.job, now.on_demand_price)
        spot, on_demand, changed = guarded(
            job, grid, to_go, Guard.WORTHWHILE, now, now.available, wanted
        )
        spot, on_demand = affordable(
            job, spot, on_demand, now.spot_price, now.on_demand_price, view.spent
        )
        return Decision(
            allocation=Allocation(spot=int(spot), on_demand=int(on_demand)),
            reason=_reason(view, prospect, values, wanted, guard=bool(changed)),
        )


class _Prospect(NamedTuple):
    """The market's chain, and how likely each state is in the next slot."""

    key: _Key
    chances: NDArray[np.float64]
    available: NDArray[np.int64]


class _Key(NamedTuple):
    """A chain by value, and the first slot that it is used in."""

    transition: bytes
    available: bytes
    spot_price: bytes
    begin: int

    def chain(self) -> MarketChain:
        available = np.frombuffer(self.available, dtype=np.int64)
        states = available.size
        return MarketChain(
            np.frombuffer(self.transition, dtype=np.float64).reshape(states, states).copy(),
            available.copy(),
            np.frombuffer(self.spot_price, dtype=np.float64).copy(),
        )


def _prospect(view: View) -> _Prospect:
    market = view.market
    seen = view.seen
    if seen is None or seen.available.size == 0:
        seen = Seen(np.array([market.spot_price]), np.array([market.available]))
    fresh = (view.slot - 1) % REFRESH
    begin = view.slot - fresh
    kept = max(1, seen.available.size - fresh)
    if view.job.max_gpus == 1:
        chain = regime_chain()
        there = (seen.available >= 1).astype(np.int64)
        there[-1] = market.available >= 1
        belief = believe(first_belief(), chain.transition, there)
        price = np.full(chain.available.size, float(seen.spot_price[kept - 1]))
        chain = MarketChain(chain.transition, chain.available, price)
        chances = belief @ chain.transition
    else:
        past = Seen(seen.spot_price[:kept], seen.available[:kept])
        chain = learned_chain(past, view.job.max_gpus)
        chances = chain.transition[state_of(chain, market.available, market.spot_price)]
    key = _Key(
        chain.transition.tobytes(), chain.available.tobytes(), chain.spot_price.tobytes(), begin
    )
    return _Prospect(key, chances, chain.available)


@functools.lru_cache(maxsize=4)
def _tables(
    job: Job, key: _Key, on_demand_price: float, steps: int
) -> tuple[float, NDArray[np.float32]]:
    """The same tables serve all slots of a job until the market is learned anew."""
    physics, chain = job_physics(job), key.chain()
    cells = (job.hard_deadline + 2) * chain.available.size * (job.max_gpus + 1)
    unit = even_unit(job, max(1, min(steps, _TABLE_CELLS // cells)))
    return unit, fill_tables(physics, chain, on_demand_price, unit, key.begin)


@compiled
def _values(
    job: JobPhysics,
    following: NDArray[np.float32],
    unit: float,
    now: Now,
    chances: NDArray[np.float64],
) -> NDArray[np.float64]:
    """The mean value of holding each number of GPUs in the present slot; -inf where not allowed."""
    values = np.full(job.max_gpus + 1, -np.inf)
    reserve = swap_reserve(job)
    for gpus in range(job.max_gpus + 1):
        if 0 < gpus < job.min_gpus:
            continue
        spot = cheapest_spot(gpus, now.available, now.spot_price, now.on_demand_price)
        fraction = efficiency(
            job, now.held_spot, now.held_on_demand, spot, gpus - spot, now.available
        )
        progress = now.progress + fraction * job.throughput[gpus]
        value = -charge(spot, gpus - spot, now.spot_price, now.on_demand_price)
        if is_done(job, progress):
            value += job.values[now.slot]
        else:
            left = (job.work - progress + reserve) / unit
            for state in range(chances.size):
                if chances[state] > 0:
                    value += chances[state] * value_at(following[state, gpus], left)
        values[gpus] = value
    return values


def _best(values: NDArray[np.float64]) -> int:
    """The fewest GPUs of those that are as good."""
    return int(np.argmax(values >= values.max() - _TIE))


def _reason(
    view: View, prospect: _Prospect, values: NDArray[np.float64], wanted: int, *, guard: bool
) -> str:
    market = view.market
    offer = f"{market.available} spot at {market.spot_price / market.on_demand_price:.0%}"
    others = np.delete(values, wanted)
    gpus = "no GPU" if wanted == 0 else f"{wanted} GPU{'s' if wanted > 1 else ''}"
    words = f"{offer}: {gpus} now is worth ${values[wanted]:.2f} in the mean of what may follow"
    if np.isfinite(others).any():
        rival = int(np.argmax(np.where(np.arange(values.size) == wanted, -np.inf, values)))
        words += f", ${values[wanted] - values[rival]:.2f} more than {rival}"
    if wanted > 0:
        stays = float(prospect.chances[prospect.available >= wanted].sum())
        words += f"; spot for all of them in the next slot: {stays:.0%}"
    if guard:
        words += "; the guard holds more: else on-demand could no longer meet the deadline"
    return words
