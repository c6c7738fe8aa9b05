"""What each event does to a job's state, and which events may come in which status.

This is the one state machine: the engine, every replay and the store's read models go through
``after``. It imports no policy, so that reading a job's state stays cheap.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, assert_never

import msgspec

from duetune.core.decision import Allocation
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
    UserRequested,
)
from duetune.core.fleet import Node, NodeEnd, NodeKind, NodeState
from duetune.core.progress import Phase
from duetune.engine.curve import calibrated
from duetune.engine.state import Ending, JobState
from duetune.errors import Bug, InvalidInput

if TYPE_CHECKING:
    from collections.abc import Iterable

    from duetune.core.events import Event
    from duetune.core.job import Job

STALL_SLOTS = 6
"""A job fails after this many slots in a row with GPUs and without progress."""

NOT_FINISHED = "the hard deadline has passed"

_LIVE = frozenset({UserRequested, Reported, Observed, Decided, Requested, Ended})
_STOPPING = frozenset({UserRequested, Reported, Requested, Ended})
_OVER = frozenset({UserRequested, Learned})
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


def after(
    state: JobState | None, event: Event, *, stream: str, story: Iterable[str] = ()
) -> JobState:
    """The state of job ``stream`` after ``event``: ``state`` itself, changed, or a new one if the
    event is its submission. Called once for every event, in the journal's order.

    An event that may not come now is a ``Bug``, which tells ``story``; nothing has changed then.
    """
    status = None if state is None else state.status
    if type(event) not in LEGAL[status]:
        raise Bug(f"job {stream}: {type(event).__name__} in status {status}", tuple(story))
    if isinstance(event, Submitted):
        return JobState(stream, event, event.job, updated_at=event.at)
    if state is None:
        raise Bug(f"job {stream} was never submitted", tuple(story))
    state.position += 1
    state.updated_at = max(state.updated_at, event.at)
    _take_effect(state, event)
    return state


def _take_effect(
    state: JobState,
    event: UserRequested | Reported | Observed | Decided | Requested | Ended | Learned,
) -> None:
    match event:
        case UserRequested():
            _wish(state, event)
        case Reported():
            _report(state, event)
        case Observed():
            _observe(state, event)
        case Decided():
            if event.allocation.total != state.wanted.total and state.slot > 1:
                state.resizes += 1
            state.wanted, state.memo = event.allocation, event.memo
            state.reason = event.reason
            if state.status is not Status.PAUSED:
                state.memo_gpus = state.most_gpus
        case Requested():
            _request(state, event)
        case Ended():
            state.status, state.reason, state.ended = event.status, event.reason, event
        case Learned():
            state.learned_at = event.at
        case _:
            assert_never(event)


def _stop(state: JobState, status: Status, reason: str) -> None:
    """The first reason to stop is the one that counts."""
    if state.ending is None:
        state.ending = Ending(status, reason)
        state.status, state.reason = Status.STOPPING, reason
        state.wanted = Allocation()


def _wish(state: JobState, event: UserRequested) -> None:
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
        state.amended_deadline = wish.deadline or state.amended_deadline
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
        if node.state is NodeState.RELEASED and node.end is NodeEnd.HOPELESS:
            said = state.progress.message if event.progress is None else event.progress.message
            _stop(state, Status.FAILED, said or "the training command cannot work; see the logs")
    if event.progress is not None and not state.progress.phase.final:
        state.lost_steps += max(0, state.progress.step - event.progress.step)
        state.progress = event.progress
        state.loss = state.loss if event.progress.loss is None else event.progress.loss
        state.progress_at = event.progress_at if event.progress_at is not None else event.at
    if state.progress.phase is Phase.FINISHED:
        _stop(state, Status.SUCCEEDED, "finished")
    elif state.progress.phase is Phase.FAILED:
        _stop(state, Status.FAILED, state.progress.message or "training failed; see the logs")


def _done_by_exit(state: JobState, node: Node) -> bool:
    """An own command that ends well is done, whether or not it has reported so."""
    own = bool(state.submitted.task.command)
    return own and node.state is NodeState.RELEASED and node.end is NodeEnd.FINISHED


def _refused(state: JobState, node: Node) -> None:
    """Decide once more in this slot, knowing that there is no more spot than we have."""
    wanted = node.kind is NodeKind.SPOT and node.id not in state.releasing
    if wanted and state.refused_in != state.slot:
        state.refused_in = state.slot
        state.due = True


def _observe(state: JobState, event: Observed) -> None:
    state.watched.look(event.slot, event.market)
    if state.status is Status.QUEUED and event.begins:
        state.status = Status.RUNNING
    if event.slot > state.slot:
        busy = event.held.total > 0 and state.slot > 0 and not state.waited
        stuck = busy and event.progress <= state.progress_at_slot
        state.stalled_slots = state.stalled_slots + 1 if stuck else 0
        state.progress_at_slot = event.progress
        state.waited = False
    state.slot, state.due = event.slot, False
    state.share, state.share_reason, state.wish = event.share, event.share_reason, event.wish
    state.waited = state.waited or state.waits
    state.slot_began = max(event.at, state.moment(event.slot - 1))
    if event.pace:
        state.job = job_observed(state, event)
        state.pace.update(event.pace)
    if over := time_is_up(state, event):
        _stop(state, Status.FAILED, f"{over}{_where(state)}")
    elif state.stalled_slots >= STALL_SLOTS:
        _stop(state, Status.FAILED, f"no step done in {STALL_SLOTS} slots; see the logs")


def time_is_up(state: JobState, event: Observed) -> str:
    """Why the job ends in the slot that ``event`` begins, done or not; else nothing."""
    stop_at = state.submitted.stop_at
    if event.slot > state.job.hard_deadline:
        return NOT_FINISHED
    return "max_duration has passed" if stop_at is not None and event.at >= stop_at else ""


def job_observed(state: JobState, event: Observed) -> Job:
    """With the curve as measured, and a value that was derived from it derived anew. The same
    before and after ``event`` was handled.
    """
    if not event.pace:
        return state.job
    prior = state.submitted.job
    curve = calibrated(prior.throughput, state.pace | event.pace)
    value = prior.value
    if not state.submitted.value_given:
        value *= prior.throughput[-1] / curve[-1]
    return msgspec.structs.replace(state.job, throughput=curve, value=value)


def _where(state: JobState) -> str:
    progress = state.progress
    if not state.nodes:
        return "; it never had a GPU"
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
