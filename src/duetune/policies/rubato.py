"""Rubato: exact stochastic dynamic programming against the market as it was learned.

In music, tempo rubato is time stolen here and given back there, so that the end falls where it
should. The policy waits and hurries in the same way: in every slot it holds the GPUs with the best
mean over all markets that may follow, each as likely as what was seen makes it, and the guard
keeps the deadline.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import numpy as np

from duetune.core.compiled import compiled
from duetune.core.decision import Allocation, Decision
from duetune.core.physics import (
    JobPhysics,
    affordable,
    charge,
    efficiency,
    is_done,
    job_physics,
)
from duetune.errors import InvalidInput
from duetune.optimise.stochastic import value_at
from duetune.policies.compiled_policy import on_demand_to_go
from duetune.policies.horizon import planning_grid
from duetune.policies.kernel import Guard, guarded
from duetune.policies.prospect import STEPS, Prospect, best_plan, prospect_of
from duetune.policies.rules import keeps_deadline, now_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from duetune.core.decision import View
    from duetune.policies.rules import Now

LARGEST_STEPS = 8192
HASTE = 0.1
"""What having done more work is worth beyond the model, in on-demand prices of one GPU and slot: a
market can turn worse than any that was seen.
"""


class Rubato(msgspec.Struct, frozen=True):
    """``steps``: on how fine a grid of work left it plans, at most."""

    steps: int = STEPS

    def __post_init__(self) -> None:
        if not 1 <= self.steps <= LARGEST_STEPS:
            raise InvalidInput("steps", self.steps, f"1 to {LARGEST_STEPS:,}")

    @property
    def name(self) -> str:
        return "rubato" if self.steps == STEPS else f"rubato:{self.steps}"

    def decide(self, view: View) -> Decision:
        job, now = job_physics(view.job), now_of(view)
        prospect = prospect_of(view)
        plan = best_plan(view.job, prospect.key, now.on_demand_price, self.steps)
        pairs = plan.pairs(now)
        values = _values(
            job, pairs, plan.tables[view.slot + 1], plan.unit, plan.reserve, now, prospect.chances
        )
        best = _hasty(pairs, values, HASTE * now.on_demand_price)
        spot, on_demand = int(pairs[best, 0]), int(pairs[best, 1])
        words = _reason(view, prospect, pairs, values, best)
        if view.slot <= job.deadline and not keeps_deadline(job, now, spot, on_demand):
            spot, on_demand, changed = guarded(
                job,
                planning_grid(view.job),
                on_demand_to_go(view.job, now.on_demand_price),
                Guard.WORTHWHILE,
                now,
                now.available,
                spot + on_demand,
            )
            if changed:
                words += (
                    f"; the guard holds {spot} spot and {on_demand} on demand: else on-demand "
                    f"could no longer meet the deadline in slot {job.deadline}"
                )
        spot, on_demand = affordable(
            job, spot, on_demand, now.spot_price, now.on_demand_price, view.spent
        )
        return Decision(Allocation(spot=int(spot), on_demand=int(on_demand)), words)


@compiled
def _values(
    job: JobPhysics,
    pairs: NDArray[np.int64],
    following: NDArray[np.float32],
    unit: float,
    reserve: float,
    now: Now,
    chances: NDArray[np.float64],
) -> NDArray[np.float64]:
    """The mean value of holding each pair in the present slot; -inf where it is not to be had."""
    values = np.full(pairs.shape[0], -np.inf)
    for place in range(pairs.shape[0]):
        spot, on_demand = pairs[place]
        if spot > now.available or 0 < spot + on_demand < job.min_gpus:
            continue
        fraction = efficiency(
            job, now.held_spot, now.held_on_demand, spot, on_demand, now.available
        )
        progress = now.progress + fraction * job.throughput[spot + on_demand]
        value = -charge(spot, on_demand, now.spot_price, now.on_demand_price)
        if is_done(job, progress):
            value += job.values[now.slot]
        else:
            left = (job.work - progress + reserve) / unit
            for state in range(chances.size):
                if chances[state] > 0:
                    value += chances[state] * value_at(following[state, place], left)
        values[place] = value
    return values


def _hasty(pairs: NDArray[np.int64], values: NDArray[np.float64], haste: float) -> int:
    """Of choices nearly as good as the best, with no more on demand, the one with most GPUs."""
    best = int(values.argmax())
    nearly = (values >= values[best] - haste) & (pairs[:, 1] <= pairs[best, 1])
    totals = np.where(nearly, pairs.sum(axis=1), -1)
    return int(np.lexsort((values, totals))[-1])


def _reason(
    view: View,
    prospect: Prospect,
    pairs: NDArray[np.int64],
    values: NDArray[np.float64],
    best: int,
) -> str:
    market = view.market
    offer = f"{market.available} spot at {market.spot_price / market.on_demand_price:.0%}"
    spot = int(pairs[best, 0])
    words = f"{offer}: {_pair(pairs[best])} worth ${values[best]:.2f} in the mean of what may come"
    others = np.where(np.arange(values.size) == best, -np.inf, values)
    rival = int(np.argmax(others))
    if np.isfinite(others[rival]):
        words += f", ${max(0.0, values[best] - values[rival]):.2f} more than {_pair(pairs[rival])}"
    if spot > 0:
        stays = float(prospect.chances[prospect.available >= spot].sum())
        words += f"; {stays:.0%} that the spot is there in the next slot"
    return words


def _pair(pair: NDArray[np.int64]) -> str:
    spot, on_demand = int(pair[0]), int(pair[1])
    if spot + on_demand == 0:
        return "to wait"
    parts = [f"{spot} spot"] if spot else []
    return " and ".join([*parts, f"{on_demand} on demand"] if on_demand else parts)
