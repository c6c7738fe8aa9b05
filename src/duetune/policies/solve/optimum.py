"""The result of an exact method: the plan, its utility, and the certified gap to the best."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import numpy as np

from duetune.core.decision import Allocation
from duetune.core.physics import charge, job_physics, play, unused_share

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
    method: str,
    job: Job,
    market: MarketWindow,
    plan: list[tuple[int, int]],
    upper_bound: float,
    *,
    by_second: bool = False,
) -> Optimum:
    """Play a plan by the physics and return its result, as a simulation would give it.

    ``by_second`` charges the last slot only until the work is done.
    """
    spot = np.array([pair[0] for pair in plan], dtype=np.int64)
    on_demand = np.array([pair[1] for pair in plan], dtype=np.int64)
    utility, cost, finished, progress = play(job_physics(job), market, spot, on_demand)
    if by_second and finished:
        last = finished - 1
        price, on_demand_price = market.spot_price[last], market.on_demand_price[last]
        paid = charge(spot[last], on_demand[last], price, on_demand_price)
        unused = unused_share(job_physics(job), progress, spot[last] + on_demand[last])
        utility, cost = utility + unused * paid, cost - unused * paid
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
