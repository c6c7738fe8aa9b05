"""The reason for a decision, in words and with the numbers it was made from."""

from __future__ import annotations

from typing import TYPE_CHECKING

from duetune.core.physics import job_physics
from duetune.policies.rules import Rule, ahead_by

if TYPE_CHECKING:
    from duetune.core.decision import View
    from duetune.policies.policy_kernel import KernelChoice


_PACED_AT_END = frozenset(
    {
        Rule.AHEAD_SPOT,
        Rule.AHEAD_WAIT,
        Rule.AHEAD_KEEP,
        Rule.BEHIND_CHEAP,
        Rule.BEHIND_PACE,
    }
)


def reason(view: View, choice: KernelChoice, horizon: int, threshold: float) -> str:
    """One or two clauses; the guard and the budget speak only when they changed something.

    Prices are shares of the on-demand price.
    """
    parts = [_rule_words(view, Rule(choice.rule), int(choice.wanted), horizon, threshold)]
    held = int(choice.spot + choice.on_demand)
    if choice.guarded:
        parts.append(
            f"the guard holds {choice.spot} spot and {choice.on_demand} on demand: else on-demand "
            f"could no longer meet the deadline in slot {view.job.deadline}"
        )
    if view.job.budget is not None and held < choice.wanted and not choice.guarded:
        parts.append(f"the budget of ${view.job.budget:.2f} leaves room for {_gpus(held)} only")
    if choice.on_demand and view.market.available and not _saves(view):
        parts.append("on demand, since spot costs no less")
    return "; ".join(parts)


def _rule_words(view: View, rule: Rule, wanted: int, horizon: int, threshold: float) -> str:
    job, market = view.job, view.market
    # The elastic rules ask for the pace at this slot's end, plans and gangs at its start.
    by = view.slot if rule in _PACED_AT_END else view.slot - 1
    lead = ahead_by(job_physics(job), by, view.progress)
    pace = f"{abs(lead):.1f} work {'ahead of' if lead >= 0 else 'behind'} the pace"
    few = "too few to run on" if _saves(view) else "no cheaper than on-demand"
    offer = f"{market.available} spot at {market.spot_price / market.on_demand_price:.0%}"
    limit = f"{threshold:.0%}"
    # They may be too few: as many as the job can use, or as it has for its share.
    left = (job.deadline - view.slot + 1) * float(job.throughput[min(wanted, job.max_gpus)])
    enough = view.progress + left >= job.work * (1 - 1e-9)
    steady = ("meets" if wanted == 1 else "meet") if enough else "cannot meet"
    words = {
        Rule.STEADY: f"{_gpus(wanted)} on demand from start to end {steady} the deadline",
        Rule.SPOT_ALL: f"all the spot there is: {offer}",
        Rule.SPOT_NONE: f"{offer}, {few}: wait",
        Rule.LAST_MOMENT: f"last moment: only {_gpus(wanted)} from now on meet the deadline",
        Rule.AHEAD_SPOT: f"{pace}, {offer}: spot only, {_gpus(wanted)}",
        Rule.AHEAD_WAIT: f"{pace}, {offer}: wait",
        Rule.AHEAD_KEEP: f"{pace}: too little to pay for a change, keep {_gpus(wanted)}",
        Rule.BEHIND_CHEAP: f"{pace}, {offer}, within {limit}: catch up with {_gpus(wanted)}",
        Rule.BEHIND_PACE: f"{pace}, {offer}: catch up with {_gpus(wanted)}, spot first",
        Rule.PLAN: f"plan to slot {view.slot + horizon}: {_gpus(wanted)} now; {pace}, {offer}",
        Rule.BANK: f"{pace} and {offer}, within {limit}: bank {_gpus(wanted)}",
        Rule.OVERTIME: f"deadline in slot {job.deadline}: {_gpus(wanted)} now is worth most",
        Rule.GANG_SPOT: f"the gang of {wanted} runs on spot: {offer}",
        Rule.GANG_STAY: f"{pace}: stay on demand until two changeovers ahead",
        Rule.GANG_CATCH_UP: f"{pace}, {offer}, {few}: the gang of {wanted} on demand",
        Rule.GANG_WAIT: f"{pace}, {offer}, {few}: the gang waits",
        Rule.GANG_SAFETY_NET: f"safety net: {wanted} on demand until the work is done",
    }
    return words[rule]


def _saves(view: View) -> bool:
    return view.market.spot_price < view.market.on_demand_price


def _gpus(count: int) -> str:
    if count == 0:
        return "no GPU"
    return "1 GPU" if count == 1 else f"{count} GPUs"
