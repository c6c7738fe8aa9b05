"""Spot and nothing else, whatever becomes of the deadline."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from duetune.core.decision import Allocation, Decision

if TYPE_CHECKING:
    from duetune.core.decision import View


class SpotOnly(msgspec.Struct, frozen=True):
    """All the spot there is while it costs less than on-demand, and never anything else.

    Not ``maximal_spot``, which buys on demand at the last moment: who asks for spot only would
    rather be late. In the slot that finishes the work, no more GPUs than that takes.
    """

    @property
    def name(self) -> str:
        return "spot_only"

    def decide(self, view: View) -> Decision:
        job, market = view.job, view.market
        gpus = min(market.available, job.max_gpus)
        if gpus < job.min_gpus:
            words = f"{market.available} spot GPUs available, fewer than the job can run on: wait"
            return Decision(Allocation(), words)
        if market.spot_price >= market.on_demand_price:
            return Decision(Allocation(), "spot costs as much as on-demand: wait")
        left = job.work - view.progress
        # The dearest change that could be due, so that the slot is enough whatever happened.
        rule = job.reconfiguration
        fraction = min(rule.grow, rule.shrink, rule.preempted)
        for fewer in range(job.min_gpus, gpus):
            if fraction * job.throughput[fewer] >= left:
                return Decision(Allocation(spot=fewer), f"{fewer} spot GPUs finish the work")
        return Decision(Allocation(spot=gpus), f"all {gpus} spot GPUs that the job can use")
