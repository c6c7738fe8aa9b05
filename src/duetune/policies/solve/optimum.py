"""The result of an exact method: the plan, its utility, and the certified gap to the best."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import numpy as np

from duetune.core.decision import Allocation
from duetune.core.physics import job_physics, play

if TYPE_CHECKING:
    from duetune.core.job import Job
    from duetune.core.market import MarketWindow


class Optimum(msgspec.Struct, frozen=True):
    """The best plan found. ``plan`` reaches ``utility``; none can exceed ``upper_bound``."""

    method: str
    utility: float
    cost: float
    finished: int | None
    upper_bound: float
    plan: tuple[Allocation, ...]

    @property
    def gap(self) -> float:
        """Return the certified distance to the true optimum, in dollars."""
        return self.upper_bound - self.utility


def optimum_of_plan(
    method: str, job: Job, market: MarketWindow, plan: list[tuple[int, int]], upper_bound: float
) -> Optimum:
    """Play a plan by the physics and return its result, as a simulation would give it."""
    spot = np.array([pair[0] for pair in plan], dtype=np.int64)
    on_demand = np.array([pair[1] for pair in plan], dtype=np.int64)
    utility, cost, finished, _ = play(job_physics(job), market, spot, on_demand)
    used = plan[: finished or len(plan)]
    return Optimum(
        method=method,
        utility=utility,
        cost=cost,
        finished=finished or None,
        # Rounding in the last bits must not make a plan better than its bound.
        upper_bound=max(upper_bound, utility),
        plan=tuple(Allocation(spot=pair[0], on_demand=pair[1]) for pair in used),
    )
