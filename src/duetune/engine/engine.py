"""The engine of one job: ``Engine.handle`` is the only way to change the job's state.

It also asks the policy for decisions (``consultation``). What an event changes is in ``effects``.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

import msgspec

from duetune.core.decision import Allocation, Decision, Forecast, View
from duetune.core.events import DOUBTS, Decided, Doubt, Ended, Observed, Status
from duetune.core.fleet import Launch, Limit, NodeKind, NodeState, Release
from duetune.core.physics import value_of_finishing
from duetune.engine.consultation import decide
from duetune.engine.effects import after, job_observed, late_target, time_is_up
from duetune.engine.node_requests import requested
from duetune.engine.rescue import faster, given_up, measure_early, probe
from duetune.engine.state import offered, seen_by
from duetune.errors import Bug, DuetuneError, NotFound

if TYPE_CHECKING:
    from collections.abc import Callable

    from duetune.core.decision import Outlook
    from duetune.core.events import Event, GivenUp, Requested
    from duetune.core.fleet import Command
    from duetune.core.job import Job
    from duetune.core.market import Slot
    from duetune.core.ports import Policy
    from duetune.engine.node_requests import Room
    from duetune.engine.state import JobState


STORY = 12
"""The message of a ``Bug`` lists at most this many of the last events."""

FALLBACK = "on_demand"
"""The policy that decides when the chosen one fails; it needs no forecast and no memory."""


MOST_PROBE_SLOTS = 3
"""The pace is measured again until a step is done, but for at most this many slots."""

MEASURED_DOUBT = 2.0
"""A measured pace may be this many times too slow, because the machine was busy."""


class Engine:
    """The engine of job ``stream``.

    ``policy_named``: returns the policy of a name.
    ``fallback``: name of the policy that decides when the chosen one fails. With None the failure
    is raised instead, which is what a simulation wants.
    """

    def __init__(
        self,
        stream: str,
        policy_named: Callable[[str], Policy],
        *,
        fallback: str | None = FALLBACK,
    ) -> None:
        self.stream = stream
        self._policy_named = policy_named
        self._fallback = fallback
        self._state: JobState | None = None
        self._story: deque[str] = deque(maxlen=STORY)

    @property
    def state(self) -> JobState:
        """Return the state of the job; raise ``NotFound`` before its submission."""
        if self._state is None:
            raise NotFound("job", self.stream)
        return self._state

    @property
    def position(self) -> int:
        """Return the number of events that were handled."""
        return 0 if self._state is None else self._state.position

    def is_over(self) -> bool:
        """Return whether the job has ended."""
        return self.state.status.final

    def handle(self, event: Event) -> tuple[Command, ...]:
        """Apply ``event`` to the state and return all commands that the fleet should now get."""
        status = None if self._state is None else self._state.status
        self._state = after(self._state, event, stream=self.stream, story=self._story)
        self._story.append(f"{type(event).__name__} ({status})")
        return self.outstanding()

    def outstanding(self) -> tuple[Command, ...]:
        """Return all commands that the fleet has not confirmed; repeating them is harmless."""
        state = self.state
        task, highest = state.submitted.task, state.submitted.max_price
        launches = [
            Launch(
                node=node.id,
                job=state.stream,
                kind=node.kind,
                epoch=state.epochs[node.id],
                task=task,
                max_price=highest if node.kind is NodeKind.SPOT else None,
                priority=state.priority,
            )
            for node in state.nodes.values()
            if node.state is NodeState.REQUESTED
            and node.id not in state.confirmed
            and node.id not in state.releasing
        ]
        releases = [
            Release(node=node, job=state.stream)
            for node in sorted(state.releasing)
            if state.nodes[node].state.alive
        ]
        budget = state.job.budget
        limited = budget is not None or state.submitted.job.budget is not None
        limits = [Limit(state.stream, budget)] if limited else []
        return (*limits, *releases, *launches)

    def observed(
        self,
        *,
        at: float,
        market: Slot,
        forecast: Forecast,
        outlook: Outlook,
        pace: dict[int, float],
    ) -> Observed:
        """Return the observation of the slot that contains ``at``; the caller may handle it.

        ``market`` and ``forecast`` count GPUs. The observation, and so the policy, counts members.
        """
        state = self.state
        gpus = state.submitted.task.gpus
        return Observed(
            at=at,
            slot=state.slot_at(at),
            progress=float(state.progress.step),
            held=state.held(),
            market=_after_refusal(state, market.in_members(gpus, state.running().spot), at),
            forecast_price=tuple((forecast.spot_price * gpus).tolist()),
            forecast_available=tuple((forecast.available // gpus).tolist()),
            spent=state.spent,
            outlook=outlook,
            pace=pace,
        )

    def decide(self, observed: Observed) -> Decided | None:
        """Return the decision for a slot that was observed; None if the job is stopping.

        Nothing changes here: the caller handles the returned event.
        """
        state = self.state
        if state.ending is not None:
            return None
        if state.status is Status.PAUSED:
            return _decided(observed, Decision(Allocation(), "paused", state.memo))
        return self._choice(observed)

    def wish(self, observed: Observed) -> Allocation:
        """Return what the job would hold if it were alone; called where jobs compete.

        ``observed`` need not have been handled. Nothing changes here.
        """
        state = self.state
        if state.status is Status.PAUSED or time_is_up(state, observed):
            return Allocation()
        alone = msgspec.structs.replace(observed, share=None, share_reason="")
        return self._choice(alone).allocation

    def _choice(self, observed: Observed) -> Decided:
        """Return the decision within the job's share, and whether the policy gives the job up."""
        state = self.state
        if observed.share is not None and observed.share < state.job.min_gpus:
            alone = self.view(msgspec.structs.replace(observed, share=None))
            lost = given_up(alone, state.submitted) if observed.wish == 0 else None
            waits = Decision(Allocation(), f"waits: {observed.share_reason}")
            return _decided(observed, waits, lost)
        view = self.view(observed)
        chosen = _decided(observed, self._decision(view))
        if not chosen.allocation.total:
            lost = given_up(view, state.submitted)
            measuring = self._measuring(observed, view, lost)
            chosen = measuring or msgspec.structs.replace(chosen, given_up=lost)
        notes = [chosen.reason]
        if (target := late_target(state, observed, job_observed(state, observed))) is not None:
            notes.insert(0, f"late: finishing at the least cost, by slot {target}")
        if observed.share_reason:
            gpus = (observed.share or 0) * state.submitted.task.gpus
            plural = "" if gpus == 1 else "s"
            most = "" if observed.share is None else f"at most {gpus} GPU{plural}: "
            notes.append(f"{most}{observed.share_reason}")
        return msgspec.structs.replace(chosen, reason="; ".join(notes))

    def _measuring(self, observed: Observed, view: View, lost: GivenUp | None) -> Decided | None:
        """Return the decision to measure the pace: early if it was only estimated, and again before
        a job is given up.

        None if the pace has been measured since the job came into doubt, or if the job would be
        given up even at the planned pace or the fastest likely one.
        """
        state = self.state
        estimated = not (state.pace or observed.pace)
        doubt = state.submitted.slowdown if estimated else MEASURED_DOUBT
        gpus = probe(view, state.submitted)
        total = gpus.total * state.submitted.task.gpus
        count = f"{total} GPU{'s' if total > 1 else ''}"
        if lost is None:
            if not (estimated and measure_early(view, gpus, doubt)):
                return None
            reason = f"holds {count} to measure the speed, which was only estimated"
            return _decided(observed, Decision(gpus, reason, view.memo), probing=True)
        if lost.because not in {Doubt.LATE, Doubt.WORTHLESS} or doubt <= 1:
            return None
        lasted = observed.slot - state.probe_since
        stepped = observed.progress > state.probe_from
        if state.probe_since and lasted > 0 and (stepped or lasted >= MOST_PROBE_SLOTS):
            return None
        fast = faster(view, state.submitted.job.throughput, doubt)
        saved = self._decision(fast).allocation.total or not given_up(fast, state.submitted)
        if not gpus.total or not saved:
            return None
        again = "" if estimated else "again "
        reason = (
            f"measuring the pace {again}with {count} "
            f"before the job is given up ({DOUBTS[lost.because]})"
        )
        return _decided(observed, Decision(gpus, reason, view.memo), probing=True)

    def _decision(self, view: View) -> Decision:
        """Ask the policy, or the fallback if it fails: a failure must not cost the deadline."""
        name = self.state.submitted.policy
        try:
            return decide(self._policy_named(name), view)
        except DuetuneError as error:
            if self._fallback is None:
                raise
            safe = decide(self._policy_named(self._fallback), view)
            reason = f"{name} failed ({error}); {self._fallback} instead: {safe.reason}"
            return Decision(safe.allocation, reason)

    def view(self, observed: Observed) -> View:
        """Return what the policy is shown: a job that can use no more GPUs than its share.

        The deadline of a job that is late and goes on at the least cost is its present target.
        """
        state = self.state
        market, forecast = offered(observed, state.submitted)
        job = job_observed(state, observed)
        target = late_target(state, observed, job)
        if target is not None:
            # Without a price for being late the target would slip again and again.
            job = msgspec.structs.replace(job, deadline=target, hard_deadline_factor=1.0)
        job = _job_within(job, observed.share)
        return View(
            job=job,
            slot=observed.slot,
            progress=min(observed.progress, job.work),
            held=_held_within(observed.held, job.max_gpus),
            market=market,
            forecast=forecast,
            outlook=observed.outlook,
            spent=observed.spent,
            # Plans that were made for another number of GPUs may ask for more than the share.
            memo=state.memo if state.memo_gpus == job.max_gpus else (),
            seen=seen_by(state.submitted, state.watched, observed.slot, market),
        )

    def request(self, at: float, *, room: Room | None = None) -> Requested | None:
        """Return the nodes to launch and release now; the caller journals them before it acts."""
        return requested(self.state, at, room=room)

    def end(self, at: float) -> Ended | None:
        """Return the end of a job that is stopping, once its last node is gone; else None."""
        state = self.state
        if state.ending is None or any(node.state.alive for node in state.nodes.values()):
            return None
        finished = state.ending.status is Status.SUCCEEDED
        finished_at = state.progress_at or at
        slot = state.slot_at(finished_at)
        return Ended(
            at=at,
            status=state.ending.status,
            reason=state.ending.reason,
            cost=state.spent,
            value=self._worth(slot) if finished else 0.0,
            finished_at=finished_at if finished else None,
            output=state.progress.output if finished else "",
        )

    def _worth(self, slot: int) -> float:
        """Return the dollars for finishing in ``slot``; a soft deadline takes nothing from them."""
        job = self.state.job
        return job.value if self.state.submitted.soft else value_of_finishing(job, slot)

    def validate(self) -> None:
        """Raise ``Bug`` if the state breaks an invariant; tests call it after every event."""
        state = self.state
        names = tuple(self._story)
        if state.status.final and any(node.state.alive for node in state.nodes.values()):
            raise Bug(f"job {self.stream} is over and holds nodes", names)
        if (state.status is Status.STOPPING) != (
            state.ending is not None and not state.status.final
        ):
            raise Bug(f"job {self.stream}: {state.status} with ending {state.ending}", names)
        if not set(state.releasing) <= set(state.nodes):
            raise Bug(f"job {self.stream} releases nodes it never had", names)
        if state.wanted.total > state.job.max_gpus:
            raise Bug(f"job {self.stream} wants {state.wanted}", names)


def _decided(
    observed: Observed,
    decision: Decision,
    given_up: GivenUp | None = None,
    *,
    probing: bool = False,
) -> Decided:
    return Decided(
        at=observed.at,
        slot=observed.slot,
        allocation=decision.allocation,
        reason=decision.reason,
        memo=decision.memo,
        given_up=given_up,
        probing=probing,
    )


def _job_within(job: Job, share: int | None) -> Job:
    """Return the job limited to ``share`` GPUs; unchanged if it cannot run on so few."""
    if share is None or not job.min_gpus <= share < job.max_gpus:
        return job
    return msgspec.structs.replace(job, throughput=job.throughput[: share + 1])


def _held_within(held: Allocation, most: int) -> Allocation:
    """Return what can be kept of ``held``: spot GPUs first, because they are cheaper."""
    if held.total <= most:
        return held
    spot = min(held.spot, most)
    return Allocation(spot=spot, on_demand=most - spot)


def _after_refusal(state: JobState, market: Slot, at: float) -> Slot:
    """Return the market without the spot GPUs that the fleet has just refused in this slot."""
    if state.refused_in != state.slot_at(at):
        return market
    available = min(market.available, len(state.alive(NodeKind.SPOT)))
    return msgspec.structs.replace(market, available=available)
