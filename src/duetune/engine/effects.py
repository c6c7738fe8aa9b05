"""What each event does to a job's state, and which events are legal in which status.

This is the only state machine: the engine, every replay and the store's read models call ``after``.
It imports no policy, so reading a job's state stays cheap.
"""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING, assert_never

import msgspec

from duetune.core.decision import Allocation
from duetune.core.events import (
    Amend,
    Cancel,
    Decided,
    Disturbance,
    Disturbed,
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
from duetune.core.job import MAX_SLOTS
from duetune.core.progress import Phase
from duetune.engine.state import Ending, JobState
from duetune.errors import Bug, InvalidInput

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from duetune.core.events import Event
    from duetune.core.job import Job

STALL_SLOTS = 6
"""A job fails after this many consecutive slots in which it held GPUs and made no progress."""

PACE_NOISE = 1.1
"""A soft deadline counts as lost only if a pace this much faster than measured loses it too."""

LATE_SLACK = 2
"""A job that is late gets this many times the slots that on-demand GPUs need for the rest."""

LAST_TARGET = MAX_SLOTS // 2
"""The last slot in which a job that is late can go on."""

_LIVE = frozenset({UserRequested, Reported, Observed, Decided, Requested, Disturbed, Ended})
_STOPPING = frozenset({UserRequested, Reported, Requested, Disturbed, Ended})
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
"""The events that are legal in each status; any other event is a bug."""


def after(
    state: JobState | None, event: Event, *, stream: str, story: Iterable[str] = ()
) -> JobState:
    """Return the state of job ``stream`` after ``event``; called once per event, in journal order.

    ``state`` itself is changed and returned; a submission makes a new state. An illegal event
    raises ``Bug`` with ``story`` (the events before it) and changes nothing.
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
    event: UserRequested | Reported | Observed | Decided | Requested | Disturbed | Ended | Learned,
) -> None:
    match event:
        case UserRequested():
            _user_request(state, event)
        case Reported():
            _report(state, event)
        case Observed():
            _observe(state, event)
        case Decided():
            if event.allocation.total != state.wanted.total and state.slot > 1:
                state.resizes += 1
            state.wanted, state.memo = event.allocation, event.memo
            state.reason = event.reason
            _doubt(state, event)
            if state.status is not Status.PAUSED:
                state.memo_gpus = state.most_gpus
        case Requested():
            _node_request(state, event)
        case Disturbed():
            state.steady_at = None
            if event.what is Disturbance.FLEET_SILENT:
                state.silent_since = event.since
            elif event.what is Disturbance.FLEET_ANSWERS:
                state.silent_since = None
        case Ended():
            state.status, state.reason, state.ended = event.status, event.reason, event
        case Learned():
            state.learned_at = event.at
        case _:
            assert_never(event)


def _stop(state: JobState, status: Status, reason: str) -> None:
    """Start to stop the job; only the first reason counts."""
    if state.ending is None:
        state.ending = Ending(status, reason)
        state.status, state.reason = Status.STOPPING, reason
        state.wanted = Allocation()


def _user_request(state: JobState, event: UserRequested) -> None:
    if event.wish_id in state.user_requests:
        return
    state.user_requests.add(event.wish_id)
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


def _amend(state: JobState, terms: Amend) -> None:
    """Change the terms. Impossible terms change nothing: a replay must not fail on a request."""
    changes: dict[str, float | int] = {}
    try:
        if terms.deadline is not None:
            slots = int((terms.deadline - state.submitted.origin) / state.submitted.slot_s + 1e-9)
            changes["deadline"] = max(1, state.slot, slots)
        if terms.budget is not None:
            changes["budget"] = terms.budget
        if terms.value is not None:
            changes["value"] = terms.value
        state.job = msgspec.structs.replace(state.job, **changes)
        state.amended_deadline = terms.deadline or state.amended_deadline
        state.amended_value = state.amended_value if terms.value is None else terms.value
        if terms.priority is not None:
            state.amended_priority = terms.priority
        state.probe_since = 0
    except (InvalidInput, OverflowError, ValueError):
        return
    state.due = True


def _report(state: JobState, event: Reported) -> None:
    changed = False
    for node in event.nodes:
        before = state.nodes.get(node.id)
        if before is None:
            # The fleet has a node of this job that is not in the journal: release it.
            state.epochs[node.id] = 0
            state.releasing.add(node.id)
        elif node.state is NodeState.LOST and before.state.alive:
            state.preemptions += 1
        elif node.state is NodeState.REFUSED and before.state.alive:
            _refused(state, node)
        if (before is not None and before.state is NodeState.RUNNING) != (
            node.state is NodeState.RUNNING
        ):
            state.steady_at, changed = None, True
        state.nodes[node.id] = node
        state.confirmed.add(node.id)
        released = node.state is NodeState.RELEASED
        # A user's own command that exits with status 0 is done, even if it reported nothing.
        if released and node.end is NodeEnd.FINISHED and state.submitted.task.command:
            state.progress_at = node.ended_at
            _stop(state, Status.SUCCEEDED, "its command exited with status 0")
        if released and node.end is NodeEnd.HOPELESS:
            message = (event.progress or state.progress).message
            _stop(state, Status.FAILED, message or "the training command cannot run; see the logs")
    if event.progress is not None and not state.progress.phase.final:
        state.lost_steps += max(0, state.progress.step - event.progress.step)
        stepped = event.progress.step - state.progress.step
        if stepped > 0:
            state.stepped_at = event.at
        state.progress = event.progress
        state.loss = state.loss if event.progress.loss is None else event.progress.loss
        state.progress_at = event.progress_at if event.progress_at is not None else event.at
        if stepped < 0:
            state.steady_at = None
        elif stepped and state.steady_at is None and not changed:
            _steady(state)
    if state.progress.phase is Phase.FINISHED:
        _stop(state, Status.SUCCEEDED, "finished")
    elif state.progress.phase is Phase.FAILED:
        _stop(state, Status.FAILED, state.progress.message or "training failed; see the logs")


def _steady(state: JobState) -> None:
    """Count the steps of the nodes that train now from the latest report on."""
    state.steady_at, state.steady_step = state.progress_at, state.progress.step


def _refused(state: JobState, node: Node) -> None:
    """Ask for a new decision, once per slot. It sees only the spot GPUs that the job has."""
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
        if event.progress > state.progress_at_slot or not busy:
            state.stalled_slots = 0
        elif not _lost_in_slot(state):
            state.stalled_slots += 1
        state.progress_at_slot = event.progress
        state.waited = False
    state.slot, state.due = event.slot, False
    state.share, state.share_reason, state.wish = event.share, event.share_reason, event.wish
    state.waited = state.waited or state.waits
    state.slot_began = max(event.at, state.moment(event.slot - 1))
    if event.pace:
        state.job, state.pace = job_observed(state, event), _paces(state, event)
        if state.steady_at is not None:
            _steady(state)
    state.target = late_target(state, event, state.job)
    if over := time_is_up(state, event):
        _stop(state, Status.FAILED, f"{over}{_where(state)}")
    elif state.stalled_slots >= STALL_SLOTS:
        _stop(state, Status.FAILED, f"no step done in {STALL_SLOTS} slots; see the logs")


def _lost_in_slot(state: JobState) -> bool:
    """Return whether the slot that ends lost all its nodes: that is never the job's fault."""
    ran = [node for node in state.nodes.values() if node.started_at is not None]
    return not any(
        node.state is NodeState.RUNNING and (node.started_at or 0.0) <= state.slot_began
        for node in ran
    ) and any(
        (node.state is NodeState.LOST or node.end is NodeEnd.CRASHED)
        and (node.ended_at or 0.0) > state.slot_began
        for node in ran
    )


def _doubt(state: JobState, event: Decided) -> None:
    """Keep whether the job is given up, and since when its pace is measured again before that."""
    state.given_up = event.given_up
    if event.probing and not state.probe_since:
        state.probe_since, state.probe_from = event.slot, state.progress_at_slot
    elif event.given_up is None and not event.probing:
        state.probe_since = 0


def time_is_up(state: JobState, event: Observed) -> str:
    """Return why the job must end in the slot that ``event`` begins; empty if it need not.

    A soft deadline ends no job: one that is given up costs nothing, and new terms can save it.
    """
    stop_at = state.submitted.stop_at
    last = LAST_TARGET if state.submitted.soft else state.job.hard_deadline
    if event.slot > last:
        return "the hard deadline has passed"
    return "max_duration has passed" if stop_at is not None and event.at >= stop_at else ""


def job_observed(state: JobState, event: Observed) -> Job:
    """Return the job with its throughput curve corrected by the paces measured so far.

    If the user gave no value, it is computed again from the corrected curve. The result is the same
    before and after ``event`` was handled.
    """
    if not event.pace:
        return state.job
    prior = state.submitted.job
    curve = calibrated(prior.throughput, _paces(state, event))
    value = prior.value if state.amended_value is None else state.amended_value
    if not state.submitted.value_given and state.amended_value is None:
        value *= prior.throughput[-1] / curve[-1]
    return msgspec.structs.replace(state.job, throughput=curve, value=value)


def _paces(state: JobState, event: Observed) -> dict[int, float]:
    """Return the measured paces after ``event``.

    A measurement that was made because the job is in doubt corrects the older ones as well: they
    keep their proportions.
    """
    if not state.probe_since:
        return state.pace | event.pace
    believed = calibrated(state.submitted.job.throughput, state.pace)
    ratios = [
        pace / state.pace.get(gpus, believed[gpus])
        for gpus, pace in event.pace.items()
        if 0 < gpus < len(believed) and believed[gpus] > 0
    ]
    ratio = median(ratios) if ratios else 1.0
    return {gpus: ratio * pace for gpus, pace in state.pace.items()} | event.pace


def late_target(state: JobState, event: Observed, job: Job) -> int | None:
    """Return the slot by which a job with a soft deadline should finish once its deadline is lost.

    None if the deadline can still be met, or is not soft. The target leaves twice the time that
    on-demand GPUs need, so that spot can do most of the work. It then moves only by small slips,
    until the pace turns out much slower. The result is the same before and after ``event`` was
    handled.
    """
    if not state.submitted.soft:
        return None
    left = max(0.0, job.work - event.progress)
    before, target = event.slot - 1, state.target
    if before + job.fewest_slots(left / PACE_NOISE) <= job.deadline:
        return None
    needed = before + job.fewest_slots(left)
    stop_at = state.submitted.stop_at
    last = LAST_TARGET if stop_at is None else min(LAST_TARGET, state.slot_at(stop_at) - 1)
    if needed > last:
        return None
    if target is not None and before + job.fewest_slots(left / PACE_NOISE) <= target:
        return max(target, needed)
    return min(last, before + LATE_SLACK * job.fewest_slots(left))


def calibrated(prior: tuple[float, ...], measured: Mapping[int, float]) -> tuple[float, ...]:
    """Return the throughput curve ``prior``, corrected by ``measured`` paces per number of GPUs.

    A measured number of GPUs keeps its own measurement. The other entries are scaled by the median
    of measured over prior. An entry that would fall below the one before it is raised to it,
    because a job need not use a GPU that slows it down.
    """
    usable = {
        gpus: pace
        for gpus, pace in measured.items()
        if 0 < gpus < len(prior) and prior[gpus] > 0 and pace > 0
    }
    if not usable:
        return prior
    scale = median(pace / prior[gpus] for gpus, pace in usable.items())
    curve = [usable.get(gpus, work * scale) for gpus, work in enumerate(prior)]
    for gpus in range(1, len(curve)):
        curve[gpus] = max(curve[gpus], curve[gpus - 1])
    return tuple(curve)


def _where(state: JobState) -> str:
    progress = state.progress
    if not state.nodes:
        return "; the job never had a GPU"
    return f" at step {progress.step} of {progress.total_steps}" if progress.total_steps else ""


def _node_request(state: JobState, event: Requested) -> None:
    for request in event.launches:
        state.nodes[request.node] = Node(
            id=request.node,
            job=state.stream,
            kind=request.kind,
            state=NodeState.REQUESTED,
            requested_at=event.at,
            gpus=state.submitted.task.gpus,
        )
        state.epochs[request.node] = request.epoch
    state.releasing.update(event.releases)
