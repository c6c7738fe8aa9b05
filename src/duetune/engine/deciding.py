"""One decision of one policy, checked: the same in the simulator and in the controller."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from duetune.core.decision import Allocation, checked_allocation
from duetune.core.physics import affordable, job_physics
from duetune.errors import DuetuneError, InvalidInput
from duetune.policies.compiled_policy import CompiledPolicy

if TYPE_CHECKING:
    from duetune.core.decision import Decision, View
    from duetune.core.ports import Policy


def decide(policy: Policy, view: View) -> Decision:
    """What may be held: a policy from elsewhere is checked, and the budget is a hard cap."""
    decision = _asked(policy, view)
    wish = checked_allocation(decision.allocation, view, policy.name)
    spot, on_demand = affordable(
        job_physics(view.job),
        wish.spot,
        wish.on_demand,
        view.market.spot_price,
        view.market.on_demand_price,
        view.spent,
    )
    allowed = Allocation(spot=int(spot), on_demand=int(on_demand))
    if allowed == wish:
        return decision
    reason = f"{decision.reason}; the budget allows only {allowed.total}"
    return msgspec.structs.replace(decision, allocation=allowed, reason=reason)


def lookahead(policy: Policy) -> int:
    """How many slots of forecast a policy is known to use."""
    return policy.lookahead if isinstance(policy, CompiledPolicy) else 0


def _asked(policy: Policy, view: View) -> Decision:
    """A failure of somebody's policy is told as theirs."""
    try:
        return policy.decide(view)
    except DuetuneError:
        raise
    except Exception as error:
        if isinstance(policy, CompiledPolicy):
            raise
        problem = f"{type(error).__name__}: {error}"
        place = f"policy {policy.name} in slot {view.slot}"
        raise InvalidInput(place, problem, "a decision, not an exception") from error
