"""What an exact method returns: the plan, what it comes to, and how far from the best it can be."""

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
    """``utility`` is reached by ``plan``; no plan whatever can reach more than ``upper_bound``."""

    method: str
    utility: float
    cost: float
    finished: int | None
    upper_bound: float
    plan: tuple[Allocation, ...]

    @property
    def gap(self) -> float:
        """The certified distance to the true optimum, in dollars."""
        return self.upper_bound - self.utility


def optimum_of_plan(
    method: str, job: Job, market: MarketWindow, plan: list[tuple[int, int]], upper_bound: float
) -> Optimum:
    """Settle a plan by the physics, so that its utility is what a simulation would give."""
    spot = np.array([pair[0] for pair in plan], dtype=np.int64)
    on_demand = np.array([pair[1] for pair in plan], dtype=np.int64)
    utility, cost, finished, _ = play(job_physics(job), market, spot, on_demand)
    used = plan[: finished or len(plan)]
    return Optimum(
        method=method,
        utility=utility,
        cost=cost,
        finished=finished or None,
        # Rounding of the last bits must not make a plan better than its own bound.
        upper_bound=max(upper_bound, utility),
        plan=tuple(Allocation(spot=pair[0], on_demand=pair[1]) for pair in used),
    )
