"""Asks a policy for its decision, live and in simulations, and checks the answer."""

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

USUAL_HORIZON = 24
"""Slots of forecast that a policy is shown, unless it is known to use more."""


def decide(policy: Policy, view: View) -> Decision:
    """Return the policy's decision, checked and cut to the budget.

    The simulator and the controller both decide through this function. An allocation that the job
    or the market does not allow raises ``InvalidInput``.
    """
    decision = _answer(policy, view)
    asked = checked_allocation(decision.allocation, view, policy.name)
    market = view.market
    spot, on_demand = affordable(
        job_physics(view.job),
        asked.spot,
        asked.on_demand,
        market.spot_price,
        market.on_demand_price,
        view.spent,
    )
    allowed = Allocation(spot=int(spot), on_demand=int(on_demand))
    if allowed == asked:
        return decision
    paid = f"only {allowed.total}" if allowed.total else "no GPU"
    reason = f"{decision.reason}; the budget pays for {paid}"
    return msgspec.structs.replace(decision, allocation=allowed, reason=reason)


def lookahead(policy: Policy) -> int:
    """Return how many slots of forecast a policy is known to use."""
    return policy.lookahead if isinstance(policy, CompiledPolicy) else 0


def horizon(policy: Policy) -> int:
    """Return how many slots of forecast a policy is shown, live and in simulations."""
    return max(USUAL_HORIZON, lookahead(policy))


def _answer(policy: Policy, view: View) -> Decision:
    """Ask the policy; an exception of a plug-in becomes ``InvalidInput`` that names the policy."""
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
