"""From events to read models, as pure functions: the same events give the same rows."""

from __future__ import annotations

import math
from collections import ChainMap
from typing import TYPE_CHECKING, assert_never

import msgspec

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
from duetune.core.fleet import NodeKind, NodeState
from duetune.core.progress import Phase
from duetune.store.rows import Charge, JobRow

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from duetune.core.events import Event, Wish
    from duetune.core.progress import Progress

FAILED = "training failed; see the logs"

_MOST = 2**63 - 1


def fold(
    row: JobRow | None, events: Iterable[Event], *, job: str, known: Mapping[str, Charge]
) -> tuple[JobRow | None, dict[str, Charge]]:
    """The row after ``events``, and the charges that are new or changed, by node."""
    fresh: dict[str, Charge] = {}
    before = ChainMap(fresh, dict(known))
    for event in events:
        row = project(row, event, job=job, before=before)
        if row is not None:
            fresh.update(charges_in(event, job=job))
    return row, fresh


def project(
    row: JobRow | None, event: Event, *, job: str, before: Mapping[str, Charge]
) -> JobRow | None:
    """The row after ``event``. ``before`` has the charges so far of the nodes the event tells of.

    A stream that was never submitted has no row. The engine alone knows every reason to stop; here
    a job that stops for lack of progress or time is RUNNING until it has ended.
    """
    if row is None:
        return _submitted(event, job) if isinstance(event, Submitted) else None
    row = msgspec.structs.replace(
        row, events=row.events + 1, updated_at=max(row.updated_at, event.at)
    )
    match event:
        case Wished():
            return _wished(row, event.wish)
        case Reported():
            row = _billed(row, event, before)
            if event.progress is not None:
                row = _progressed(row, event.progress)
            return _hopeless(row, event)
        case Observed():
            row = msgspec.structs.replace(
                row, share=_known_count(event.share), wish=_known_count(event.wish)
            )
            queued = row.status is Status.QUEUED
            return _set(row, Status.RUNNING) if queued and event.begins else row
        case Decided():
            return msgspec.structs.replace(row, reason=plain(event.reason))
        case Ended():
            return msgspec.structs.replace(
                row,
                status=event.status,
                reason=plain(event.reason),
                cost=event.cost,
                value=event.value,
                output=plain(event.output),
                finished_at=event.finished_at,
                ended_at=event.at,
            )
        case Learned():
            return msgspec.structs.replace(row, learned_at=event.at)
        case Submitted() | Requested():
            return row
        case _:
            assert_never(event)


def charges_in(event: Event, *, job: str) -> dict[str, Charge]:
    """What an event says about the bills, by node. Nodes that never started cost nothing."""
    if not isinstance(event, Reported):
        return {}
    return {
        plain(node.id): Charge(
            job=job,
            node=plain(node.id),
            kind=node.kind,
            state=node.state,
            dollars=node.billed,
            from_at=node.requested_at if node.started_at is None else node.started_at,
            to_at=event.at if node.ended_at is None else node.ended_at,
        )
        for node in event.nodes
        if node.started_at is not None or node.billed > 0
    }


def plain(text: str) -> str:
    """Text that PostgreSQL can hold: it knows no NUL."""
    return text.replace("\0", "\N{REPLACEMENT CHARACTER}")


class _Glance(msgspec.Struct):
    """What the read models want of the user's own document, if it is there."""

    model: str | None = None
    tags: dict[str, str | int | float | bool | None] = msgspec.field(default_factory=dict)


def _submitted(event: Submitted, job: str) -> JobRow:
    try:
        glance = msgspec.json.decode(event.spec, type=_Glance)
    except msgspec.MsgspecError:
        glance = _Glance()
    return JobRow(
        id=job,
        name=plain(event.job.name),
        status=Status.QUEUED,
        policy=plain(event.policy),
        model=plain(glance.model or ""),
        tags=tuple(plain(f"{key}={value}") for key, value in glance.tags.items()),
        submitted_at=event.at,
        deadline_at=(
            event.origin + event.slot_s * event.job.deadline
            if event.deadline_at is None
            else event.deadline_at
        ),
        budget=event.job.budget,
        updated_at=event.at,
        total_steps=_count(event.steps or math.ceil(event.job.work)),
        events=1,
        priority=_count(event.priority),
        project=plain(event.project),
    )


def _wished(row: JobRow, wish: Wish) -> JobRow:
    if _stopped(row):
        return row
    match wish:
        case Cancel():
            return _set(row, Status.STOPPING, "cancelled")
        case Pause():
            return _set(row, Status.PAUSED, "paused")
        case Resume():
            return _set(row, Status.RUNNING, "") if row.status is Status.PAUSED else row
        case Amend():
            return msgspec.structs.replace(
                row,
                deadline_at=row.deadline_at if wish.deadline is None else wish.deadline,
                budget=row.budget if wish.budget is None else wish.budget,
            )
        case _:
            assert_never(wish)


def _billed(row: JobRow, event: Reported, before: Mapping[str, Charge]) -> JobRow:
    spent = row.spent
    running = {NodeKind.SPOT: row.spot, NodeKind.ON_DEMAND: row.on_demand}
    lost = row.preemptions
    for node, charge in charges_in(event, job=row.id).items():
        old = before.get(node)
        spent += charge.dollars - (0.0 if old is None else old.dollars)
        running[charge.kind] += charge.running
        if old is not None:
            running[old.kind] -= old.running
        lost += charge.state is NodeState.LOST and (old is None or old.running)
    return msgspec.structs.replace(
        row,
        spent=spent,
        spot=running[NodeKind.SPOT],
        on_demand=running[NodeKind.ON_DEMAND],
        preemptions=lost,
    )


def _progressed(row: JobRow, progress: Progress) -> JobRow:
    step = _count(progress.step)
    row = msgspec.structs.replace(
        row,
        # A worker that starts once more, not knowing that all is done, has done nothing.
        step=max(row.step, step) if _stopped(row) else step,
        total_steps=_count(progress.total_steps) or row.total_steps,
        loss=row.loss if progress.loss is None else progress.loss,
        output=plain(progress.output) or row.output,
    )
    if _stopped(row):
        return row
    if progress.phase is Phase.FINISHED:
        return _set(row, Status.STOPPING, "finished")
    if progress.phase is Phase.FAILED:
        return _set(row, Status.STOPPING, plain(progress.message) or FAILED)
    return row


def _hopeless(row: JobRow, event: Reported) -> JobRow:
    """A node was given back because its command can never work."""
    hopeless = any(
        node.state is NodeState.RELEASED and node.reason == "hopeless" for node in event.nodes
    )
    return _set(row, Status.STOPPING, FAILED) if hopeless and not _stopped(row) else row


def _stopped(row: JobRow) -> bool:
    return row.status.final or row.status is Status.STOPPING


def _set(row: JobRow, status: Status, reason: str | None = None) -> JobRow:
    return msgspec.structs.replace(
        row, status=status, reason=row.reason if reason is None else reason
    )


def _count(number: int) -> int:
    """A number the databases can hold: workers may report anything."""
    return max(-_MOST, min(number, _MOST))


def _known_count(number: int | None) -> int | None:
    return None if number is None else _count(number)
