"""Explains each decision of a job: what it saw and expected, what it decided, and what other
policies would have decided and cost.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import msgspec

from duetune.core.decision import Allocation
from duetune.core.events import Decided, Disturbance, Disturbed, Ended, GivenUp, Observed
from duetune.core.physics import charge
from duetune.engine.consultation import decide
from duetune.engine.engine import Engine
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
    """The GPUs that another policy would have held in the same slot, and their cost for it."""

    policy: str
    allocation: Allocation
    charge: float
    reason: str


class SlotExplained(msgspec.Struct, frozen=True):
    """One decision. Prices are in dollars per GPU and hour, and all counts are GPUs. Only the
    reason counts members of ``gpus_per_member`` GPUs, as the policy does.

    - ``expected`` are (price, available) of the next slots.
    - ``charge`` is what the decision costs if it is held for the whole slot.
    - ``given_up`` is set if the policy gave the job up; ``probing`` if its pace was measured again
      before that.
    - ``wish`` is how many GPUs the job would hold alone, ``share`` how many the queue left it, and
      ``share_reason`` why.
    """

    slot: int
    at: float
    slot_s: float
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
    given_up: GivenUp | None = None
    probing: bool = False
    gpus_per_member: int = 1

    @property
    def why(self) -> str:
        """Return the reason, and that the job is given up with what would save it."""
        if self.given_up is None:
            return self.reason
        ahead = math.ceil(((self.given_up.deadline or self.at) - self.at) / self.slot_s - 1e-9)
        return f"{self.given_up.text(f'in slot {self.slot - 1 + ahead}')}; {self.reason}"


class WholeRun(msgspec.Struct, frozen=True):
    """A policy simulated on the whole market that the job saw."""

    policy: str
    cost: float
    finished: int | None
    on_time: bool
    utility: float


class Explanation(msgspec.Struct, frozen=True):
    """All explained slots of a job; ``cost`` is None while it runs.

    ``disturbances`` are what went wrong around the job: the slot, and what happened. The job held
    members of ``gpus_per_member`` GPUs.
    """

    job: str
    policy: str
    chosen: str
    slots: tuple[SlotExplained, ...]
    cost: float | None
    whole_runs: tuple[WholeRun, ...] = ()
    disturbances: tuple[tuple[int, str], ...] = ()
    gpus_per_member: int = 1

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
                    slot.why,
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
    """Return all decisions in short, or one ``slot`` in full with what other policies would have
    done. ``duetune explain`` calls it.
    """
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
        disturbances=tuple(
            (engine.state.slot_at(each.event.at), _disturbance(each.event))
            for each in story
            if isinstance(each.event, Disturbed)
        ),
        gpus_per_member=submitted.task.gpus,
    )


def _disturbance(event: Disturbed) -> str:
    """Return what happened in one line."""
    match event.what:
        case Disturbance.FLEET_SILENT:
            return f"the fleet did not answer: {event.message}"
        case Disturbance.FLEET_ANSWERS:
            return f"the fleet answered again after {event.seconds:.0f} s"
        case Disturbance.CLOCK_SET:
            return f"the wall clock was set by {event.seconds:+.0f} s; market time went on"
        case Disturbance.STOOD_STILL:
            return f"the controller stood still for {event.seconds:.0f} s"


def _explained(
    engine: Engine, seen: Observed, decided: Decided, others: tuple[Alternative, ...]
) -> SlotExplained:
    """Return one decision with what was observed before it."""
    state, market = engine.state, seen.market
    gpus = state.submitted.task.gpus
    hours = state.submitted.slot_s / 3600 * gpus
    ahead = zip(seen.forecast_price, seen.forecast_available, strict=True)
    return SlotExplained(
        slot=decided.slot,
        at=seen.at,
        slot_s=state.submitted.slot_s,
        spot_price=market.spot_price / hours,
        available=market.available * gpus,
        on_demand_price=market.on_demand_price / hours,
        expected=tuple((price / hours, count * gpus) for price, count in list(ahead)[:SHOWN_AHEAD]),
        step=seen.progress,
        work=state.progress.total_steps or state.submitted.steps or state.job.work,
        pace={members * gpus: pace for members, pace in sorted(state.pace.items())},
        spent=seen.spent,
        held=_in_gpus(seen.held, gpus),
        decided=_in_gpus(decided.allocation, gpus),
        reason=decided.reason,
        charge=_charge(decided.allocation, seen),
        others=others,
        share=None if seen.share is None else seen.share * gpus,
        wish=None if seen.wish is None else seen.wish * gpus,
        share_reason=seen.share_reason,
        given_up=decided.given_up,
        probing=decided.probing,
        gpus_per_member=gpus,
    )


def _in_gpus(members: Allocation, gpus: int) -> Allocation:
    """Return the GPUs of an allocation of members with ``gpus`` GPUs each."""
    return Allocation(members.spot * gpus, members.on_demand * gpus)


def _others(
    engine: Engine, seen: Observed, policy_named: Callable[[str], Policy]
) -> tuple[Alternative, ...]:
    """Return what other policies would have decided from the same view."""
    if engine.state.waits:
        return ()  # no policy has GPUs to decide about
    # A memo belongs to its own policy, so the others start without one.
    view = msgspec.structs.replace(engine.view(seen), memo=())
    rows = []
    for name in OTHERS:
        if name == engine.state.submitted.policy:
            continue
        decision = decide(policy_named(name), view)
        cost = _charge(decision.allocation, seen)
        held = _in_gpus(decision.allocation, engine.state.submitted.task.gpus)
        rows.append(Alternative(name, held, cost, decision.reason))
    return tuple(rows)


def _charge(allocation: Allocation, seen: Observed) -> float:
    """Return the dollars of an allocation for one slot at the observed prices."""
    market = seen.market
    return float(
        charge(allocation.spot, allocation.on_demand, market.spot_price, market.on_demand_price)
    )


def _whole_runs(
    story: Sequence[Recorded], policy_named: Callable[[str], Policy]
) -> tuple[WholeRun, ...]:
    """Return the other policies simulated on the whole run."""
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
