"""The baselines of the paper: on-demand only, maximal spot utilisation, uniform progress."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from duetune.core.decision import Allocation, Decision
from duetune.errors import InvalidInput
from duetune.policies.compiled_policy import CompiledPolicy, policy_record
from duetune.policies.policy_kernel import Guard, PolicyKind

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from duetune.core.decision import View


class OnDemandOnly(CompiledPolicy, frozen=True):
    """The fewest on-demand GPUs that meet the deadline, from start to end."""

    @property
    def name(self) -> str:
        return "on_demand"

    def record(self) -> NDArray[np.void]:
        return policy_record(PolicyKind.ON_DEMAND, guard=Guard.NEVER)


class MaximalSpot(CompiledPolicy, frozen=True):
    """All the spot there is, nothing else, until the deadline forces the maximum.

    ``thrifty`` is ours: in the slot that finishes the work, no more than that takes.
    """

    thrifty: bool = False

    @property
    def name(self) -> str:
        return "maximal_spot:thrifty" if self.thrifty else "maximal_spot"

    def record(self) -> NDArray[np.void]:
        return policy_record(PolicyKind.MAXIMAL_SPOT, guard=Guard.WORTHWHILE, thrifty=self.thrifty)


class UniformProgress(CompiledPolicy, frozen=True):
    """Keep to the pace t L / d (Wu et al., NSDI'24).

    Elastic by default: any number of GPUs, mixed. ``gang`` is the original: a fixed number on
    one kind, or nothing.
    """

    gang: bool = False
    hysteresis: bool = True

    def __post_init__(self) -> None:
        if self.gang and not self.hysteresis:
            raise InvalidInput(
                "hysteresis", self.hysteresis, "true for a gang, whose rules have it"
            )

    @property
    def name(self) -> str:
        if self.gang:
            return "uniform_progress:gang"
        return "uniform_progress" if self.hysteresis else "uniform_progress:eager"

    def record(self) -> NDArray[np.void]:
        kind = PolicyKind.GANG_UNIFORM_PROGRESS if self.gang else PolicyKind.UNIFORM_PROGRESS
        return policy_record(kind, guard=Guard.WORTHWHILE, hysteresis=self.hysteresis)


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
