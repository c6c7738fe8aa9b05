"""``SingleInstance`` where spot can only be found by asking, in one pool or in several as if one.

With one pool it decides as ``SingleInstance`` does. With several it asks for spot in the order
that it is given, and takes all of them together for one pool: the policy of one pool, with
failover.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from duetune.policies.multi_region_step import Attempt, Otherwise, PoolStep
from duetune.policies.single_instance import Instance, SingleInstance

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from duetune.core.multi_region_physics import MultiRegionJob
    from duetune.policies.multi_region_step import PoolPrice

_PRICE_CHANGED = 0.05  # tables are filled again when a price has changed by this share


class SinglePoolPolicy:
    """A policy over pools that asks for spot in ``order``, and for on-demand in the first pool.

    Prices, pace and restart are those of the first pool. It has no guard for the other pools.
    """

    def __init__(self, job: MultiRegionJob, order: Sequence[int]) -> None:
        self._job = job
        self._home = job.pools[order[0]]
        self._names = [job.pools[pool].name for pool in order]
        self._step: SingleInstance | None = None
        self._prices = (0.0, 0.0)
        self._asked_at: float | None = None

    def __call__(
        self,
        elapsed_s: float,
        work_left_s: float,
        active: Attempt | None,
        pending_s: float,
        prices: Mapping[str, PoolPrice],
        last_answer: Attempt | None,
        there: bool | None = None,
    ) -> PoolStep:
        """Return what ``SingleInstance`` would do if it knew; called once per tick.

        ``there`` says whether there is spot, if the host knows without asking.
        """
        single = self._single(*prices[self._home.name])
        if self._asked_at is not None:
            granted = last_answer is not None and last_answer.kind is Instance.SPOT
            single.look(self._asked_at, there=granted)
            self._asked_at = None
        left = work_left_s / self._home.pace
        current = active.kind if active is not None else Instance.WAIT
        view = (elapsed_s, left, current, pending_s)
        if current is Instance.SPOT or there is not None:
            return self._planned(single(*view, current is Instance.SPOT or bool(there)), active)
        if single.choice_if(*view, True) is Instance.SPOT:
            self._asked_at = elapsed_s
            step = self._planned(single.choice_if(*view, False), active)
            spots = tuple(Attempt(name, Instance.SPOT) for name in self._names)
            return PoolStep((*spots, *step.attempts), step.otherwise)
        return self._planned(single.choice_if(*view, False), active)

    def _planned(self, choice: Instance, active: Attempt | None) -> PoolStep:
        """Return the step that leads to a choice other than a start of spot."""
        if choice is Instance.WAIT:
            return PoolStep((), Otherwise.WAIT)
        if active is not None and active.kind is choice:
            return PoolStep((), Otherwise.STAY)
        return PoolStep((Attempt(self._home.name, choice),), Otherwise.WAIT)

    def _single(self, spot: float, on_demand: float) -> SingleInstance:
        """Return the step function for the prices of now; beliefs survive a change of prices."""
        same = all(
            abs(now - before) <= _PRICE_CHANGED * before
            for now, before in zip((spot, on_demand), self._prices, strict=True)
        )
        if self._step is None:
            self._step = SingleInstance(
                work_s=self._job.work_s / self._home.pace,
                deadline_s=self._job.deadline_s,
                restart_overhead_s=self._home.restart_overhead_s,
                tick_s=self._job.tick_s,
                spot_price=spot,
                on_demand_price=on_demand,
            )
            self._prices = (spot, on_demand)
        elif not same:
            self._step.reprice(spot_price=spot, on_demand_price=on_demand)
            self._prices = (spot, on_demand)
        return self._step
