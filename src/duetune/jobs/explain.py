"""Why a job held what it held: what was seen, what was expected, what was decided, what else
could have been, and what that would have cost.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from duetune.core.decision import Allocation
from duetune.core.events import Decided, Ended, Observed
from duetune.core.physics import charge
from duetune.engine.engine import Engine, decide
from duetune.errors import InvalidInput
from duetune.notebook import html_table
from duetune.simulate.journal_replay import alternatives, job_lived

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from duetune.core.events import Recorded
    from duetune.core.ledger import Outcome
    from duetune.core.ports import Policy

OTHERS = ("on_demand", "maximal_spot", "uniform_progress", "ahanp", "ahap")
SHOWN_AHEAD = 6


class Alternative(msgspec.Struct, frozen=True):
    """What another policy would have held in the same place, and what that costs for the slot."""

    policy: str
    allocation: Allocation
    charge: float
    reason: str


class SlotExplained(msgspec.Struct, frozen=True):
    """One decision. Prices are dollars per GPU and hour; ``expected`` are (price, available) of
    the next slots. ``charge`` is what the decision costs if held for the whole slot. ``share`` of
    the ``wish`` GPUs that it would have held alone are what the queue left it, for that reason.
    """

    slot: int
    at: float
    spot_price: float
    available: int
    on_demand_price: float
    expected: tuple[tuple[float, int], ...]
    step: float
    work: float
    pace: dict[int, float]
    spent: float
    held: Allocation
    decided: Allocation
    reason: str
    charge: float
    others: tuple[Alternative, ...] = ()
    share: int | None = None
    wish: int | None = None
    share_reason: str = ""


class WholeRun(msgspec.Struct, frozen=True):
    """A policy on the whole of the job's market, by simulation."""

    policy: str
    cost: float
    finished: int | None
    on_time: bool
    utility: float


class Explanation(msgspec.Struct, frozen=True):
    job: str
    policy: str
    chosen: str
    slots: tuple[SlotExplained, ...]
    cost: float | None
    whole_runs: tuple[WholeRun, ...] = ()

    def _repr_html_(self) -> str:
        return html_table(
            ("slot", "spot $/GPU-h", "available", "spot", "on-demand", "step", "spent", "why"),
            (
                (
                    slot.slot,
                    f"{slot.spot_price:.2f}",
                    slot.available,
                    slot.decided.spot,
                    slot.decided.on_demand,
                    f"{slot.step:.0f}",
                    f"${slot.spent:.2f}",
                    slot.reason,
                )
                for slot in self.slots
            ),
            f"{self.job}: policy {self.policy} ({self.chosen})",
        )


def explained(
    job: str,
    story: Sequence[Recorded],
    policy_named: Callable[[str], Policy],
    *,
    slot: int | None = None,
) -> Explanation:
    """All decisions in short, or one slot in full with what others would have done there."""
    engine = Engine(job, policy_named)
    found: list[SlotExplained] = []
    seen: Observed | None = None
    for recorded in story:
        event = recorded.event
        if isinstance(event, Decided) and seen is not None:
            wanted = slot is not None and event.slot == slot
            others = _others(engine, seen, policy_named) if wanted else ()
            found.append(_explained(engine, seen, event, others))
        engine.handle(event)
        if isinstance(event, Observed):
            seen = event
    decided = sorted({each.slot for each in found})
    if slot is not None and slot not in decided:
        allowed = (
            f"a slot with a decision, {decided[0]} to {decided[-1]}" if decided else "none yet"
        )
        raise InvalidInput("slot", slot, allowed)
    submitted = engine.state.submitted
    ended = [each.event.cost for each in story if isinstance(each.event, Ended)]
    return Explanation(
        job=job,
        policy=submitted.policy,
        chosen=submitted.chosen,
        slots=tuple(each for each in found if slot is None or each.slot == slot),
        cost=ended[0] if ended else None,
        whole_runs=_whole_runs(story, policy_named) if found else (),
    )


def _explained(
    engine: Engine, seen: Observed, decided: Decided, others: tuple[Alternative, ...]
) -> SlotExplained:
    state, market = engine.state, seen.market
    hours = state.submitted.slot_s / 3600
    ahead = zip(seen.forecast_price, seen.forecast_available, strict=True)
    return SlotExplained(
        slot=decided.slot,
        at=seen.at,
        spot_price=market.spot_price / hours,
        available=market.available,
        on_demand_price=market.on_demand_price / hours,
        expected=tuple((price / hours, count) for price, count in list(ahead)[:SHOWN_AHEAD]),
        step=seen.progress,
        work=state.progress.total_steps or state.submitted.steps or state.job.work,
        pace=dict(sorted(state.pace.items())),
        spent=seen.spent,
        held=seen.held,
        decided=decided.allocation,
        reason=decided.reason,
        charge=_charge(decided.allocation, seen),
        others=others,
        share=seen.share,
        wish=seen.wish,
        share_reason=seen.share_reason,
    )


def _others(
    engine: Engine, seen: Observed, policy_named: Callable[[str], Policy]
) -> tuple[Alternative, ...]:
    if engine.state.waits:
        return ()  # whoever decides, there are no GPUs
    # A policy's memo is its own: the others begin without one.
    view = msgspec.structs.replace(engine.view(seen), memo=())
    rows = []
    for name in OTHERS:
        if name == engine.state.submitted.policy:
            continue
        decision = decide(policy_named(name), view)
        cost = _charge(decision.allocation, seen)
        rows.append(Alternative(name, decision.allocation, cost, decision.reason))
    return tuple(rows)


def _charge(allocation: Allocation, seen: Observed) -> float:
    market = seen.market
    return float(
        charge(allocation.spot, allocation.on_demand, market.spot_price, market.on_demand_price)
    )


def _whole_runs(
    story: Sequence[Recorded], policy_named: Callable[[str], Policy]
) -> tuple[WholeRun, ...]:
    deadline = job_lived(story).deadline
    runs: Sequence[Outcome] = alternatives(story, [policy_named(name) for name in OTHERS])
    return tuple(
        WholeRun(
            policy=run.policy,
            cost=run.cost,
            finished=run.finished,
            on_time=run.finished is not None and run.finished <= deadline,
            utility=run.utility,
        )
        for run in runs
    )
