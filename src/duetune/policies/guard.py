"""The deadline guard: wraps any policy and keeps every deadline that on-demand GPUs can still meet.

The compiled test itself is ``policy_kernel.guarded``.
"""

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
    """A built-in policy under the guard, still one record of the fast kernel."""

    policy: CompiledPolicy

    @property
    def name(self) -> str:
        """Return ``guarded:`` and the name of the policy inside."""
        return f"guarded:{self.policy.name}"

    @property
    def lookahead(self) -> int:
        """Return how many slots of forecast the policy inside uses."""
        return self.policy.lookahead

    def record(self) -> NDArray[np.void]:
        """Return the record of the policy inside, with the guard always on."""
        record = self.policy.record()
        record["guard"] = Guard.ALWAYS
        return record


class PolicyGuard(msgspec.Struct, frozen=True):
    """Any other policy under the guard, for example one from a plug-in."""

    policy: Policy

    @property
    def name(self) -> str:
        """Return ``guarded:`` and the name of the policy inside."""
        return f"guarded:{self.policy.name}"

    def decide(self, view: View) -> Decision:
        """Return the decision of the policy inside, changed only if it would lose the deadline."""
        decision = self.policy.decide(view)
        asked = checked_allocation(decision.allocation, view, self.policy.name)
        job, market = job_physics(view.job), view.market
        now = now_of(view)
        if view.slot > job.deadline or keeps_deadline(job, now, asked.spot, asked.on_demand):
            return decision
        grid = planning_grid(view.job)
        unused = np.empty((0, 0, 0))
        spot, on_demand, changed = guarded(
            job, grid, unused, Guard.ALWAYS, now, market.available, asked.total
        )
        if not (changed or keeps_deadline(job, now, spot, on_demand)):
            return decision
        wanted = allocation_text(asked.spot, asked.on_demand)
        return Decision(
            allocation=Allocation(spot=spot, on_demand=on_demand),
            reason=f"{decision.reason}; {guard_text(spot, on_demand, job.deadline, wanted)}",
            memo=decision.memo,
        )


def deadline_guard(policy: Policy) -> CompiledGuard | PolicyGuard:
    """Return ``policy`` under the guard; a guarded policy is returned unchanged.

    The guarded policy never misses a deadline that on-demand GPUs could still meet. The guard looks
    at time only. A budget remains a hard cap above it.
    """
    if isinstance(policy, CompiledGuard | PolicyGuard):
        return policy
    if isinstance(policy, CompiledPolicy):
        return CompiledGuard(policy)
    return PolicyGuard(policy)
