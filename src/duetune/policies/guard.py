"""The deadline guard: wraps any policy and holds every deadline that on-demand can still hold."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import numpy as np

from duetune.core.decision import Allocation, Decision, checked_allocation
from duetune.core.physics import job_physics
from duetune.core.ports import Policy
from duetune.policies.compiled_policy import CompiledPolicy
from duetune.policies.policy_kernel import Guard, guarded
from duetune.policies.reasons import allocation_text, guard_text
from duetune.policies.rules import keeps_deadline, now_of
from duetune.policies.window_plan import planning_grid

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from duetune.core.decision import View


class CompiledGuard(CompiledPolicy, frozen=True):
    """A built-in policy under the guard, still one record of the kernel."""

    policy: CompiledPolicy

    @property
    def name(self) -> str:
        return f"guarded:{self.policy.name}"

    @property
    def lookahead(self) -> int:
        return self.policy.lookahead

    def record(self) -> NDArray[np.void]:
        record = self.policy.record()
        record["guard"] = Guard.ALWAYS
        return record


class PolicyGuard(msgspec.Struct, frozen=True):
    """Anybody's policy under the guard."""

    policy: Policy

    @property
    def name(self) -> str:
        return f"guarded:{self.policy.name}"

    def decide(self, view: View) -> Decision:
        decision = self.policy.decide(view)
        wish = checked_allocation(decision.allocation, view, self.policy.name)
        job, market = job_physics(view.job), view.market
        now = now_of(view)
        if view.slot > job.deadline or keeps_deadline(job, now, wish.spot, wish.on_demand):
            return decision
        grid = planning_grid(view.job)
        unused = np.empty((0, 0, 0))
        spot, on_demand, changed = guarded(
            job, grid, unused, Guard.ALWAYS, now, market.available, wish.total
        )
        if not (changed or keeps_deadline(job, now, spot, on_demand)):
            return decision
        wanted = allocation_text(wish.spot, wish.on_demand)
        return Decision(
            allocation=Allocation(spot=spot, on_demand=on_demand),
            reason=f"{decision.reason}; {guard_text(spot, on_demand, job.deadline, wanted)}",
            memo=decision.memo,
        )


def deadline_guard(policy: Policy) -> CompiledGuard | PolicyGuard:
    """Never misses a deadline that on-demand GPUs could still meet, whatever ``policy`` wants.

    The guard looks at time only. A budget stays a hard cap above it.
    """
    if isinstance(policy, CompiledGuard | PolicyGuard):
        return policy
    if isinstance(policy, CompiledPolicy):
        return CompiledGuard(policy)
    return PolicyGuard(policy)
