"""Rows of the read models, computed from a job's state by pure functions.

Only the engine (``duetune.engine.effects``) decides the state of a job; nothing here derives a
status from an event. The rows are written in ``database_journal``.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import msgspec

from duetune.core.events import Reported, Submitted
from duetune.core.fleet import NodeKind, NodeState
from duetune.engine.effects import after
from duetune.engine.state import JobState
from duetune.errors import Bug
from duetune.store.rows import Charge, JobRow

if TYPE_CHECKING:
    from collections.abc import Iterable

    from duetune.core.events import Event

_MOST = 2**63 - 1
# Columns of GPUs have 32 bits.
_MOST_GPUS = 2**31 - 1


class Follower(msgspec.Struct):
    """A stream after its first ``length`` events.

    ``state`` is None if no job was submitted: the stream then has no row and no charges.
    """

    stream: str
    length: int = 0
    state: JobState | None = None

    @property
    def over(self) -> bool:
        """Return whether no event can follow: the job ended and the selector learned from it."""
        return self.state is not None and self.state.learned_at is not None

    def take(self, events: Iterable[Event]) -> dict[str, Charge]:
        """Apply the next ``events`` of the stream; return the charges in them, by node.

        An event that the engine refuses is counted and changes nothing else. The journal keeps it,
        and a replay reports it.
        """
        fresh: dict[str, Charge] = {}
        for event in events:
            self.length += 1
            try:
                self.state = after(self.state, event, stream=self.stream)
            except Bug:
                continue
            fresh.update(_charges_in(event, job=self.stream))
        return fresh

    def row(self) -> JobRow | None:
        """Return the job's row after the events so far."""
        return None if self.state is None else _row_of(self.state, events=self.length)


def _row_of(state: JobState, *, events: int) -> JobRow:
    """Return the row of a job in ``state``, whose stream has ``events`` events."""
    submitted, progress, ended = state.submitted, state.progress, state.ended
    glance = _glance(submitted)
    running = dict.fromkeys(NodeKind, 0)
    for node in state.nodes.values():
        if node.state is NodeState.RUNNING:
            running[node.kind] = max(0, min(running[node.kind] + node.gpus, _MOST_GPUS))
    steps = submitted.steps or math.ceil(submitted.job.work)
    return JobRow(
        id=state.stream,
        name=_plain(submitted.job.name),
        status=state.status,
        reason=_plain(state.reason),
        policy=_plain(submitted.policy),
        model=_plain(glance.model or ""),
        tags=tuple(_plain(f"{key}={value}") for key, value in glance.tags.items()),
        submitted_at=submitted.at,
        deadline_at=state.deadline_at,
        budget=state.job.budget,
        step=_count(progress.step),
        total_steps=_count(progress.total_steps or steps),
        loss=state.loss,
        spot=running[NodeKind.SPOT],
        on_demand=running[NodeKind.ON_DEMAND],
        preemptions=state.preemptions,
        spent=state.spent,
        cost=None if ended is None else ended.cost,
        value=None if ended is None else ended.value,
        output=_plain(progress.output if ended is None else ended.output),
        finished_at=None if ended is None else ended.finished_at,
        ended_at=None if ended is None else ended.at,
        learned_at=state.learned_at,
        updated_at=state.updated_at,
        events=events,
        priority=_count(state.priority),
        project=_plain(submitted.project),
        share=None if state.share is None else _count(state.share * submitted.task.gpus),
        wish=None if state.wish is None else _count(state.wish * submitted.task.gpus),
        given_up=None if state.status.final else state.given_up,
        fleet=_plain(submitted.fleet),
    )


def _charges_in(event: Event, *, job: str) -> dict[str, Charge]:
    """Return the charges in an event, by node; nodes that never started cost nothing."""
    if not isinstance(event, Reported):
        return {}
    return {
        _plain(node.id): Charge(
            job=job,
            node=_plain(node.id),
            kind=node.kind,
            state=node.state,
            dollars=node.billed,
            from_at=node.requested_at if node.started_at is None else node.started_at,
            to_at=event.at if node.ended_at is None else node.ended_at,
        )
        for node in event.nodes
        if node.state is NodeState.RUNNING or node.started_at is not None or node.billed > 0
    }


def _plain(text: str) -> str:
    """Return text that PostgreSQL can store: it has no NUL character."""
    return text.replace("\0", "\N{REPLACEMENT CHARACTER}")


class _Glance(msgspec.Struct):
    """The fields of the user's spec that the read models show, where they exist."""

    model: str | None = None
    tags: dict[str, str | int | float | bool | None] = msgspec.field(default_factory=dict)


def _glance(submitted: Submitted) -> _Glance:
    try:
        return msgspec.json.decode(submitted.spec, type=_Glance)
    except msgspec.MsgspecError:
        return _Glance()


def _count(number: int) -> int:
    """Return a number that fits a 64-bit column, because workers may report anything."""
    return max(-_MOST, min(number, _MOST))
