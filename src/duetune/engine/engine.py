"""One job's engine: ``handle`` is the only door through which its state changes."""

from __future__ import annotations

import math
from collections import deque
from typing import TYPE_CHECKING, assert_never

import msgspec
import numpy as np

from duetune.core.decision import Allocation, Decision, Forecast, View
from duetune.core.events import (
    Amend,
    Cancel,
    Decided,
    Ended,
    Learned,
    Observed,
    Pause,
    Reported,
    Requested,
    Resume,
    Status,
    Submitted,
    Wished,
)
from duetune.core.fleet import Launch, Limit, Node, NodeKind, NodeState, Release
from duetune.core.physics import value_of_finishing
from duetune.core.progress import Phase
from duetune.engine.curve import calibrated
from duetune.engine.deciding import decide
from duetune.engine.requests import requested
from duetune.engine.state import Ending, JobState
from duetune.errors import Bug, DuetuneError, InvalidInput, NotFound

if TYPE_CHECKING:
    from collections.abc import Callable

    from duetune.core.decision import Outlook
    from duetune.core.events import Event
    from duetune.core.fleet import Command
    from duetune.core.job import Job
    from duetune.core.market import Slot
    from duetune.core.ports import Policy

STALL_SLOTS = 6
"""So many slots with GPUs and without a step, and the job has failed."""

STORY = 12
FALLBACK = "on_demand"

_LIVE = frozenset({Wished, Reported, Observed, Decided, Requested, Ended})
_STOPPING = frozenset({Wished, Reported, Requested, Ended})
_OVER = frozenset({Wished, Learned})
LEGAL: dict[Status | None, frozenset[type]] = {
    None: frozenset({Submitted}),
    Status.QUEUED: _LIVE,
    Status.RUNNING: _LIVE,
    Status.PAUSED: _LIVE,
    Status.STOPPING: _STOPPING,
    Status.SUCCEEDED: _OVER,
    Status.FAILED: _OVER,
    Status.CANCELLED: _OVER,
}
"""Which events may come in which status; any other is a bug."""

NOT_FINISHED = "the hard deadline has passed"


class Engine:
    """The state of job ``stream``. ``policy_named`` turns the chosen policy's name into it."""

    def __init__(self, stream: str, policy_named: Callable[[str], Policy]) -> None:
        self.stream = stream
        self._policy_named = policy_named
        self._state: JobState | None = None
        self._story: deque[str] = deque(maxlen=STORY)

    @property
    def known(self) -> bool:
        return self._state is not None

    @property
    def state(self) -> JobState:
        if self._state is None:
            raise NotFound("job", self.stream)
        return self._state

    @property
    def position(self) -> int:
        return 0 if self._state is None else self._state.position

    def is_over(self) -> bool:
        return self.state.status.final

    def handle(self, event: Event) -> tuple[Command, ...]:
        """Let ``event`` take effect; returns all that the fleet should now be told."""
        status = None if self._state is None else self._state.status
        if type(event) not in LEGAL[status]:
            raise Bug(
                f"job {self.stream}: {type(event).__name__} in status {status}", tuple(self._story)
            )
        self._story.append(f"{type(event).__name__} ({status})")
        if isinstance(event, Submitted):
            self._state = JobState(self.stream, event, event.job)
        else:
            self.state.position += 1
            self._take(self.state, event)
        return self.outstanding()

    def outstanding(self) -> tuple[Command, ...]:
        """Everything asked for that the fleet has not confirmed. Saying it again is harmless."""
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
        limits = [Limit(state.stream, state.job.budget)] if self._limited else []
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
        """The slot that ``at`` is in, as the policy will be shown it."""
        state = self.state
        return Observed(
            at=at,
            slot=state.slot_at(at),
            progress=float(state.progress.step),
            held=state.held(),
            market=_for_sale(state, market, at),
            forecast_price=tuple(forecast.spot_price.tolist()),
            forecast_available=tuple(forecast.available.tolist()),
            spent=state.spent,
            outlook=outlook,
            pace=pace,
        )

    def decide(self, observed: Observed) -> Decided:
        """The decision on a slot whose observation was handled; changes nothing."""
        state = self.state
        if state.status is Status.PAUSED:
            decision = Decision(Allocation(), "paused", state.memo)
        else:
            decision = self._decision(self.view(observed))
        return Decided(
            at=observed.at,
            slot=observed.slot,
            allocation=decision.allocation,
            reason=decision.reason,
            memo=decision.memo,
        )

    def _decision(self, view: View) -> Decision:
        """A policy that fails must not cost the deadline: on-demand can hold it without one."""
        name = self.state.submitted.policy
        try:
            return decide(self._policy_named(name), view)
        except DuetuneError as error:
            safe = decide(self._policy_named(FALLBACK), view)
            reason = f"{name} failed ({error}); {FALLBACK} instead: {safe.reason}"
            return Decision(safe.allocation, reason)

    def view(self, observed: Observed) -> View:
        """What the policy sees. The curve is the one calibrated with this observation's pace."""
        state = self.state
        job = state.job
        pace = {**state.pace, **observed.pace}
        market, forecast = offered(observed, state.submitted)
        return View(
            job=msgspec.structs.replace(
                job, throughput=calibrated(state.submitted.job.throughput, pace)
            ),
            slot=observed.slot,
            progress=min(observed.progress, job.work),
            held=observed.held,
            market=market,
            forecast=forecast,
            outlook=observed.outlook,
            spent=observed.spent,
            memo=state.memo,
        )

    def request(self, at: float) -> Requested | None:
        """What to ask of the fleet now, to be written down first."""
        return requested(self.state, at)

    def end(self, at: float) -> Ended | None:
        """The end, once the job is stopping and its last node is gone and billed."""
        state = self.state
        if state.ending is None or any(node.state.alive for node in state.nodes.values()):
            return None
        finished = state.ending.status is Status.SUCCEEDED
        finished_at = (state.progress_at or at) if finished else None
        return Ended(
            at=at,
            status=state.ending.status,
            reason=state.ending.reason,
            cost=state.spent,
            value=self._value(finished_at),
            finished_at=finished_at,
            output=state.progress.output if finished else "",
        )

    def validate(self) -> None:
        """What must hold after every event; on in tests."""
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

    @property
    def _limited(self) -> bool:
        state = self.state
        return state.job.budget is not None or state.submitted.job.budget is not None

    def _value(self, finished_at: float | None) -> float:
        if finished_at is None:
            return 0.0
        return value_of_finishing(self.state.job, self.state.slot_at(finished_at))

    def _take(self, state: JobState, event: Event) -> None:
        match event:
            case Submitted():
                raise Bug(f"job {self.stream} was submitted twice", tuple(self._story))
            case Wished():
                _wish(state, event)
            case Reported():
                _report(state, event)
            case Observed():
                _observe(state, event)
            case Decided():
                if event.allocation.total != state.wanted.total and state.slot > 1:
                    state.resizes += 1
                state.wanted = event.allocation
                state.memo = event.memo
            case Requested():
                _request(state, event)
            case Ended():
                state.status, state.reason = event.status, event.reason
            case Learned():
                pass
            case _:
                assert_never(event)


def offered(observed: Observed, submitted: Submitted) -> tuple[Slot, Forecast]:
    """The market as far as this job can use it: spot above its highest price is not there."""
    highest = math.inf
    if submitted.max_price is not None:
        highest = submitted.max_price * submitted.slot_s / 3600
    market = observed.market
    if market.spot_price > highest:
        market = msgspec.structs.replace(market, available=0)
    price = np.array(observed.forecast_price, dtype=np.float64)
    available = np.array(observed.forecast_available, dtype=np.int64)
    available[price > highest] = 0
    return market, Forecast(spot_price=price, available=available)


def _for_sale(state: JobState, market: Slot, at: float) -> Slot:
    """The market as it is for this job: not above its highest price, and not what the fleet has
    just refused, whatever the feed says.
    """
    highest = state.submitted.max_price
    hourly = market.spot_price / state.submitted.slot_s * 3600
    available = market.available
    if highest is not None and hourly > highest:
        available = 0
    if state.refused_in == state.slot_at(at):
        available = min(available, len(state.alive(NodeKind.SPOT)))
    return msgspec.structs.replace(market, available=available)


def _stop(state: JobState, status: Status, reason: str) -> None:
    """The first reason to stop is the one that counts."""
    if state.ending is None:
        state.ending = Ending(status, reason)
        state.status, state.reason = Status.STOPPING, reason
        state.wanted = Allocation()


def _wish(state: JobState, event: Wished) -> None:
    if event.wish_id in state.wishes:
        return
    state.wishes.add(event.wish_id)
    if state.status.final or state.status is Status.STOPPING:
        return
    match event.wish:
        case Cancel():
            _stop(state, Status.CANCELLED, "cancelled")
        case Pause():
            state.status, state.reason = Status.PAUSED, "paused"
            state.wanted = Allocation()
        case Resume():
            if state.status is Status.PAUSED:
                state.status, state.reason = Status.RUNNING, ""
                state.due = True
        case Amend():
            _amend(state, event.wish)
        case _:
            assert_never(event.wish)


def _amend(state: JobState, wish: Amend) -> None:
    """Terms that no job can have change nothing: a wish in the journal must not stop a replay."""
    changes: dict[str, float | int] = {}
    try:
        if wish.deadline is not None:
            slots = int((wish.deadline - state.submitted.origin) / state.submitted.slot_s + 1e-9)
            changes["deadline"] = max(1, state.slot, slots)
        if wish.budget is not None:
            changes["budget"] = wish.budget
        state.job = msgspec.structs.replace(state.job, **changes)
    except (InvalidInput, OverflowError, ValueError):
        return
    state.due = True


def _report(state: JobState, event: Reported) -> None:
    for node in event.nodes:
        before = state.nodes.get(node.id)
        if before is None:
            # The fleet knows a node of ours that the journal does not: it must not be kept.
            state.epochs[node.id] = 0
            state.releasing.add(node.id)
        elif node.state is NodeState.LOST and before.state.alive:
            state.preemptions += 1
        elif node.state is NodeState.REFUSED and before.state.alive:
            _refused(state, node)
        state.nodes[node.id] = node
        state.confirmed.add(node.id)
        if _done_by_exit(state, node):
            state.progress_at = node.ended_at
            _stop(state, Status.SUCCEEDED, "its command has ended with status 0")
        if node.state is NodeState.RELEASED and node.reason == "hopeless":
            said = state.progress.message if event.progress is None else event.progress.message
            _stop(state, Status.FAILED, said or "the training command cannot work; see the logs")
    if event.progress is not None and not state.progress.phase.final:
        state.lost_steps += max(0, state.progress.step - event.progress.step)
        state.progress = event.progress
        state.progress_at = event.progress_at if event.progress_at is not None else event.at
    if state.progress.phase is Phase.FINISHED:
        _stop(state, Status.SUCCEEDED, "finished")
    elif state.progress.phase is Phase.FAILED:
        _stop(state, Status.FAILED, state.progress.message or "training failed; see the logs")


def _done_by_exit(state: JobState, node: Node) -> bool:
    """An own command that ends well is done, whether or not it has reported so."""
    own = bool(state.submitted.task.command)
    return own and node.state is NodeState.RELEASED and node.reason == "finished"


def _refused(state: JobState, node: Node) -> None:
    """Decide once more in this slot, knowing that there is no more spot than we have."""
    wanted = node.kind is NodeKind.SPOT and node.id not in state.releasing
    if wanted and state.refused_in != state.slot:
        state.refused_in = state.slot
        state.due = True


def _observe(state: JobState, event: Observed) -> None:
    if state.status is Status.QUEUED:
        state.status = Status.RUNNING
    if event.slot > state.slot:
        busy = event.held.total > 0 and state.slot > 0
        stuck = busy and state.progress.step <= state.step_at_slot
        state.stalled_slots = state.stalled_slots + 1 if stuck else 0
        state.step_at_slot = state.progress.step
    state.slot, state.due = event.slot, False
    state.slot_began = max(event.at, state.moment(event.slot - 1))
    if event.pace:
        state.pace.update(event.pace)
        state.job = _recalibrated(state)
    stop_at = state.submitted.stop_at
    if event.slot > state.job.hard_deadline:
        _stop(state, Status.FAILED, f"{NOT_FINISHED}{_where(state)}")
    elif stop_at is not None and event.at >= stop_at:
        _stop(state, Status.FAILED, f"max_duration has passed{_where(state)}")
    elif state.stalled_slots >= STALL_SLOTS:
        _stop(state, Status.FAILED, f"no step done in {STALL_SLOTS} slots; see the logs")


def _recalibrated(state: JobState) -> Job:
    """With the curve as measured, and a value that was derived from it derived anew."""
    prior = state.submitted.job
    curve = calibrated(prior.throughput, state.pace)
    value = prior.value
    if not state.submitted.value_given:
        value *= prior.throughput[-1] / curve[-1]
    return msgspec.structs.replace(state.job, throughput=curve, value=value)


def _where(state: JobState) -> str:
    progress = state.progress
    return f" at step {progress.step} of {progress.total_steps}" if progress.total_steps else ""


def _request(state: JobState, event: Requested) -> None:
    for request in event.launches:
        state.nodes[request.node] = Node(
            id=request.node,
            job=state.stream,
            kind=request.kind,
            state=NodeState.REQUESTED,
            requested_at=event.at,
        )
        state.epochs[request.node] = request.epoch
    state.releasing.update(event.releases)
