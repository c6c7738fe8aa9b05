"""Rubato: stochastic dynamic programming against a market model learned from past slots.

In every slot the policy holds the GPUs with the highest expected value over all markets that may
follow, each weighted with its probability under the learned model. The deadline guard then makes
sure that on-demand GPUs can still meet the deadline. The value tables are in ``rubato_tables``; the
backward induction is in ``solve.stochastic``.

The name: in music, tempo rubato slows down in one place and hurries in another, so that the piece
still ends on time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import numpy as np

from duetune.core.compiled import compiled
from duetune.core.decision import Allocation, Decision
from duetune.core.physics import JobPhysics, affordable, job_physics, step
from duetune.errors import InvalidInput
from duetune.policies.baselines import MaximalSpot
from duetune.policies.compiled_policy import on_demand_to_go
from duetune.policies.policy_kernel import Guard, guarded
from duetune.policies.reasons import allocation_text, guard_text
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
"""The extra worth of work done early, in on-demand prices of one GPU for one slot.

The model does not see it: the market can become worse than anything observed so far.
"""
_TIE = 1e-6
_TOO_LARGE = MaximalSpot(thrifty=True)
"""The policy for jobs whose tables would not fit into memory."""


class Rubato(msgspec.Struct, frozen=True):
    """Plan every slot against the learned market and keep the deadline.

    ``steps`` is the largest number of grid steps for the work left. More steps plan more exactly
    and take more memory.
    """

    steps: int = STEPS

    def __post_init__(self) -> None:
        if not 1 <= self.steps <= LARGEST_STEPS:
            raise InvalidInput("steps", self.steps, f"1 to {LARGEST_STEPS:,}")

    @property
    def name(self) -> str:
        """Return the name that ``duetune.registry.policies`` turns back into this policy."""
        return "rubato" if self.steps == STEPS else f"rubato:{self.steps}"

    def decide(self, view: View) -> Decision:
        """Return the GPUs to hold in this slot and the reason; called once per slot.

        The first call for a job computes its tables. Later calls look the values up.
        """
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
        text = _reason(prospect, pairs, values, best)
        # If no choice earns anything, the deadline has no value that the guard could protect.
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
                wanted = allocation_text(spot, on_demand)
                spot, on_demand = int(safe_spot), int(safe_on_demand)
                text += "; " + guard_text(spot, on_demand, job.deadline, wanted)
        spot, on_demand = affordable(
            job, spot, on_demand, now.spot_price, now.on_demand_price, view.spent
        )
        return Decision(Allocation(spot=int(spot), on_demand=int(on_demand)), text)


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
    """Return the expected value of holding each pair now, and whether it finishes the job.

    The value is -inf where the market has too little spot or the job cannot run on so few GPUs.
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
    pairs: NDArray[np.int64], values: NDArray[np.float64], done: NDArray[np.bool_], haste: float
) -> int:
    """Return the choice: of all that are nearly as good as the best, the one with the most GPUs.

    The choice holds no more on-demand GPUs than the best one, and no more GPUs than finish the job.
    If nothing can be earned, or among equal values, it is the one with the fewest GPUs, then with
    the fewest on spot.
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
    prospect: RubatoTables, pairs: NDArray[np.int64], values: NDArray[np.float64], best: int
) -> str:
    """Return the expected value of the choice, its distance to the next best, and the risk."""
    spot, on_demand = pairs[best]
    text = f"{allocation_text(spot, on_demand)}: expected value ${values[best]:.2f}"
    others = np.where(np.arange(values.size) == best, -np.inf, values)
    rival = int(np.argmax(others))
    if np.isfinite(others[rival]):
        more, than = values[best] - values[rival], allocation_text(*pairs[rival])
        if more >= 0:
            text += f", ${more:.2f} better than {than}"
        else:
            text += f", ${-more:.2f} worse than {than} but does more work now"
    if spot > 0:
        stays = float(prospect.chances[prospect.available >= spot].sum())
        text += f"; spot stays available next slot with {stays:.0%} probability"
    return text
