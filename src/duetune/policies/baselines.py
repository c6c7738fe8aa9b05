"""Simple policies: the paper's three baselines, and spot only.

Their rules are compiled functions in ``rules``.
"""

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
    """Hold the fewest on-demand GPUs that meet the deadline, from start to end."""

    @property
    def name(self) -> str:
        """Return ``on_demand``."""
        return "on_demand"

    def record(self) -> NDArray[np.void]:
        """Return the kernel's record of this policy."""
        return policy_record(PolicyKind.ON_DEMAND, guard=Guard.NEVER)


class MaximalSpot(CompiledPolicy, frozen=True):
    """Hold all usable spot and nothing else, until the deadline forces the maximum.

    ``thrifty`` is our addition: in the slot that finishes the work, it holds no more GPUs than that
    takes.
    """

    thrifty: bool = False

    @property
    def name(self) -> str:
        """Return the name that the registry turns back into this policy."""
        return "maximal_spot:thrifty" if self.thrifty else "maximal_spot"

    def record(self) -> NDArray[np.void]:
        """Return the kernel's record of this policy."""
        return policy_record(PolicyKind.MAXIMAL_SPOT, guard=Guard.WORTHWHILE, thrifty=self.thrifty)


class UniformProgress(CompiledPolicy, frozen=True):
    """Keep to the schedule t L / d (Wu et al., NSDI'24).

    By default it is elastic: any number of GPUs of both kinds. ``gang`` is the original: a fixed
    number of one kind, or nothing. ``hysteresis`` avoids leaving on-demand too early.
    """

    gang: bool = False
    hysteresis: bool = True

    def __post_init__(self) -> None:
        if self.gang and not self.hysteresis:
            raise InvalidInput(
                "hysteresis", self.hysteresis, "true for a gang, because its rules include it"
            )

    @property
    def name(self) -> str:
        """Return the name that the registry turns back into this policy."""
        if self.gang:
            return "uniform_progress:gang"
        return "uniform_progress" if self.hysteresis else "uniform_progress:eager"

    def record(self) -> NDArray[np.void]:
        """Return the kernel's record of this policy."""
        kind = PolicyKind.GANG_UNIFORM_PROGRESS if self.gang else PolicyKind.UNIFORM_PROGRESS
        return policy_record(kind, guard=Guard.WORTHWHILE, hysteresis=self.hysteresis)


class SpotOnly(msgspec.Struct, frozen=True):
    """Hold all usable spot while it costs less than on-demand, and never on-demand GPUs.

    ``maximal_spot`` buys on-demand GPUs at the last moment; this policy would rather be late. In
    the slot that finishes the work it holds no more GPUs than that takes.
    """

    @property
    def name(self) -> str:
        """Return ``spot_only``."""
        return "spot_only"

    def decide(self, view: View) -> Decision:
        """Return the spot GPUs to hold in this slot and the reason."""
        job, market = view.job, view.market
        gpus = min(market.available, job.max_gpus)
        if gpus < job.min_gpus:
            few = f"{market.available} spot available, fewer than the job needs"
            return Decision(Allocation(), f"holding no GPU: {few}")
        if market.spot_price >= market.on_demand_price:
            return Decision(Allocation(), "holding no GPU: spot costs as much as on-demand")
        left = job.work - view.progress
        # The costliest change that may apply, so that the slot suffices in every case.
        rule = job.reconfiguration
        fraction = min(rule.grow, rule.shrink, rule.preempted)
        for fewer in range(job.min_gpus, gpus):
            if fraction * job.throughput[fewer] >= left:
                return Decision(Allocation(spot=fewer), f"{fewer} spot: enough to finish the work")
        return Decision(Allocation(spot=gpus), f"{gpus} spot: all that the job can use")
