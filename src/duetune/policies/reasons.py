"""The reasons of decisions, as users read them in ``explain``, ``status`` and ``simulate``.

A reason says what is held, how far the job is from its schedule, and what spot costs as a share of
the on-demand price. The schedule is uniform progress: the same amount of work in every slot.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from duetune.core.physics import job_physics
from duetune.policies.rules import Rule, ahead_by

if TYPE_CHECKING:
    from duetune.core.decision import View
    from duetune.policies.policy_kernel import KernelChoice


_PACED_AT_END = frozenset(
    {Rule.AHEAD_SPOT, Rule.AHEAD_WAIT, Rule.AHEAD_KEEP, Rule.BEHIND_CHEAP, Rule.BEHIND_PACE}
)
_WHOLE_FROM = 10.0
"""Amounts of work from this size on are shown without decimals."""


def reason(view: View, choice: KernelChoice, horizon: int, threshold: float) -> str:
    """Return the reason of a compiled decision; called once for each decision.

    The guard and the budget are named only if they changed the decision.
    """
    parts = [_rule_text(view, Rule(choice.rule), int(choice.wanted), horizon, threshold)]
    held = int(choice.spot + choice.on_demand)
    if choice.guarded:
        parts.append(guard_text(choice.spot, choice.on_demand, view.job.deadline))
    elif view.job.budget is not None and held < choice.wanted:
        only = " only" if held else ""
        parts.append(f"the budget of ${view.job.budget:.2f} pays for {_gpus(held)}{only}")
    if choice.on_demand and view.market.available and not _saves(view):
        parts.append("on-demand, because spot costs no less")
    return "; ".join(parts)


def allocation_text(spot: int, on_demand: int) -> str:
    """Return an allocation in words, such as ``2 spot + 1 on-demand`` or ``no GPU``."""
    counts = ((int(spot), "spot"), (int(on_demand), "on-demand"))
    return " + ".join(f"{count} {kind}" for count, kind in counts if count) or "no GPU"


def guard_text(spot: int, on_demand: int, deadline: int, instead_of: str = "") -> str:
    """Return what the deadline guard holds and why; called where it changed a decision."""
    instead = f" instead of {instead_of}" if instead_of else ""
    return (
        f"the deadline guard holds {allocation_text(spot, on_demand)}{instead}: otherwise "
        f"on-demand GPUs could no longer meet the deadline in slot {deadline}"
    )


def _rule_text(view: View, rule: Rule, wanted: int, horizon: int, threshold: float) -> str:
    """Return the clause for one rule; ``wanted`` is the number of GPUs that the rule asked for."""
    job, market = view.job, view.market
    # Elastic rules compare with the schedule at the slot's end; plans and gangs, at its start.
    by = view.slot if rule in _PACED_AT_END else view.slot - 1
    schedule = _schedule(ahead_by(job_physics(job), by, view.progress), job.unit)
    offer = f"{market.available} spot at {market.spot_price / market.on_demand_price:.0%}"
    offer = f"{offer} of on-demand" if market.available else "no spot available"
    few = "fewer than the job needs" if _saves(view) else "no cheaper than on-demand"
    unusable = f"{offer}, {few}" if market.available else offer
    limit = f"within the limit of {threshold:.0%}"
    # The GPUs may be too few: the job's maximum, or all that its share of the fleet allows.
    left = (job.deadline - view.slot + 1) * float(job.throughput[min(wanted, job.max_gpus)])
    meets = "meets" if view.progress + left >= job.work * (1 - 1e-9) else "cannot meet"
    gpus = _gpus(wanted)
    plan = f" by the plan to slot {view.slot + horizon}" if horizon else ""
    texts = {
        Rule.STEADY: f"holding {gpus} on-demand until the end {meets} the deadline",
        Rule.SPOT_ALL: f"holding all spot that the job can use: {offer}",
        Rule.SPOT_NONE: f"holding no GPU: {unusable}",
        Rule.LAST_MOMENT: f"only {gpus} from now on can still meet the deadline",
        Rule.AHEAD_SPOT: f"holding {gpus}, spot only; {schedule}, {offer}",
        Rule.AHEAD_WAIT: f"holding no GPU; {schedule}, {offer}",
        Rule.AHEAD_KEEP: f"keeping {gpus}; {schedule}, too little to pay for a change",
        Rule.BEHIND_CHEAP: f"catching up with {gpus}; {schedule}, {offer}, {limit}",
        Rule.BEHIND_PACE: f"catching up with {gpus}, spot first; {schedule}, {offer}",
        Rule.PLAN: f"holding {gpus}{plan}; {schedule}, {offer}",
        Rule.BANK: f"working ahead with {gpus}; {schedule}, {offer}, {limit}",
        Rule.OVERTIME: f"deadline in slot {job.deadline}: holding {gpus} now has the highest value",
        Rule.GANG_SPOT: f"the gang of {wanted} runs on spot: {offer}",
        Rule.GANG_STAY: f"{schedule}: the gang stays on-demand until two changeovers ahead",
        Rule.GANG_CATCH_UP: f"the gang of {wanted} runs on-demand; {schedule}, {unusable}",
        Rule.GANG_WAIT: f"the gang waits; {schedule}, {unusable}",
        Rule.GANG_SAFETY_NET: f"safety net: {wanted} on-demand until the work is done",
    }
    return texts[rule]


def _schedule(lead: float, unit: str) -> str:
    work = abs(lead)
    amount = f"{work:,.0f}" if work >= _WHOLE_FROM else f"{work:.1f}"
    return f"{amount} {unit} {'ahead of' if lead >= 0 else 'behind'} schedule"


def _saves(view: View) -> bool:
    return view.market.spot_price < view.market.on_demand_price


def _gpus(count: int) -> str:
    if count == 0:
        return "no GPU"
    return "1 GPU" if count == 1 else f"{count} GPUs"
