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
    job_physics,
    step,
)
from duetune.errors import InvalidInput
from duetune.policies.baselines import MaximalSpot
from duetune.policies.compiled_policy import on_demand_to_go
from duetune.policies.policy_kernel import Guard, guarded
from duetune.policies.rubato_tables import STEPS, RubatoTables, best_plan, plannable, prospect_of
from duetune.policies.rules import keeps_deadline, now_of
from duetune.policies.solve.stochastic import value_at
from duetune.policies.window_plan import planning_grid

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from duetune.core.decision import View
    from duetune.policies.rules import Now

LARGEST_STEPS = 8192
HASTE = 0.1
"""What having done more work is worth beyond the model, in on-demand prices of one GPU and slot: a
market can turn worse than any that was seen.
"""
_TIE = 1e-6
_TOO_LARGE = MaximalSpot(thrifty=True)
"""Decides for jobs whose tables would not fit into memory."""


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
        if not plannable(view.job):
            return _TOO_LARGE.decide(view)
        job, now = job_physics(view.job), now_of(view)
        prospect = prospect_of(view)
        plan = best_plan(view.job, prospect.key, now.on_demand_price, self.steps)
        pairs = plan.pairs(now)
        following = plan.tables[view.slot + 1]
        values, done = _values(
            plan.job, pairs, following, plan.unit, plan.reserve, now, prospect.chances
        )
        saves = now.spot_price < now.on_demand_price
        best = _hasty(pairs, values, done, HASTE * now.on_demand_price if saves else 0.0)
        spot, on_demand = int(pairs[best, 0]), int(pairs[best, 1])
        words = _reason(view, prospect, pairs, values, best)
        # Where nothing is to be earned whatever is done, there is no deadline to keep.
        kept = view.slot > job.deadline or values[best] <= 0
        if not kept and not keeps_deadline(job, now, spot, on_demand):
            safe_spot, safe_on_demand, changed = guarded(
                job,
                planning_grid(view.job),
                on_demand_to_go(view.job, now.on_demand_price),
                Guard.WORTHWHILE,
                now,
                now.available,
                spot + on_demand,
            )
            if changed:
                spot, on_demand = int(safe_spot), int(safe_on_demand)
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
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """The mean value of holding each pair in the present slot (-inf where it is not to be had),
    and whether it finishes the job.
    """
    values = np.full(pairs.shape[0], -np.inf)
    done = np.zeros(pairs.shape[0], dtype=np.bool_)
    for place in range(pairs.shape[0]):
        spot, on_demand = pairs[place]
        if spot > now.available or 0 < spot + on_demand < job.min_gpus:
            continue
        did = step(
            job,
            now.progress,
            now.held_spot,
            now.held_on_demand,
            spot,
            on_demand,
            now.spot_price,
            now.available,
            now.on_demand_price,
        )
        value = -did.charge
        if did.done:
            value += job.values[now.slot]
            done[place] = True
        else:
            left = (job.work - did.progress + reserve) / unit
            for state in range(chances.size):
                if chances[state] > 0:
                    value += chances[state] * value_at(following[state, place], left)
        values[place] = value
    return values, done


def _hasty(
    pairs: NDArray[np.int64],
    values: NDArray[np.float64],
    done: NDArray[np.bool_],
    haste: float,
) -> int:
    """Of choices nearly as good as the best, with no more on demand, the one with most GPUs.

    No more than finish the job, and none where nothing is to be earned: then, as between equals,
    the fewest GPUs, and of them the fewest on spot.
    """
    total, spot = pairs.sum(axis=1), pairs[:, 0]
    highest = float(values.max())
    equal = np.flatnonzero(values >= highest - _TIE)
    best = int(equal[np.lexsort((spot[equal], total[equal]))[0]])
    if highest <= _TIE or haste <= 0 or done[best]:
        return best
    enough = max(int(total[best]), int(total[done].min(initial=total.max())))
    nearly = np.flatnonzero(
        (values >= values[best] - haste) & (pairs[:, 1] <= pairs[best, 1]) & (total <= enough)
    )
    return int(nearly[np.lexsort((-spot[nearly], values[nearly], total[nearly]))[-1]])


def _reason(
    view: View,
    prospect: RubatoTables,
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
        more = values[best] - values[rival]
        than = f"than {_pair(pairs[rival])}"
        words += f", ${more:.2f} more {than}" if more >= 0 else _in_haste(-more, than)
    if spot > 0:
        stays = float(prospect.chances[prospect.available >= spot].sum())
        words += f"; {stays:.0%} that the spot is there in the next slot"
    return words


def _in_haste(less: float, than: str) -> str:
    return f", ${less:.2f} less {than}, but more is done by then"


def _pair(pair: NDArray[np.int64]) -> str:
    spot, on_demand = int(pair[0]), int(pair[1])
    if spot + on_demand == 0:
        return "to wait"
    parts = [f"{spot} spot"] if spot else []
    return " and ".join([*parts, f"{on_demand} on demand"] if on_demand else parts)
