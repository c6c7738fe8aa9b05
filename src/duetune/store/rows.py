"""The read models: what is said about a job, and what its nodes cost."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from duetune.core.events import Status
from duetune.core.fleet import NodeKind, NodeState


class JobRow(msgspec.Struct, frozen=True, kw_only=True):
    """A job in one row. Times are market seconds; ``reason`` says why the status is what it is, or
    why it holds what it holds; ``spent`` grows with the bills, ``cost`` is the whole bill, known
    at the end. ``spot`` and ``on_demand`` are nodes that run. ``learned_at`` is when the selector
    learnt from it. ``events`` is the journal's length. Where jobs share a finite fleet, ``wish``
    is how many GPUs it would hold alone, and ``share`` the most it may; None: as many as it likes.
    """

    id: str
    name: str
    status: Status
    policy: str
    submitted_at: float
    deadline_at: float
    updated_at: float
    total_steps: int
    model: str = ""
    tags: tuple[str, ...] = ()
    budget: float | None = None
    reason: str = ""
    step: int = 0
    loss: float | None = None
    spot: int = 0
    on_demand: int = 0
    preemptions: int = 0
    spent: float = 0.0
    cost: float | None = None
    value: float | None = None
    output: str = ""
    finished_at: float | None = None
    ended_at: float | None = None
    learned_at: float | None = None
    events: int = 0
    priority: int = 0
    project: str = ""
    share: int | None = None
    wish: int | None = None

    @property
    def limited(self) -> bool:
        """Whether it may hold less than it would."""
        return not self.status.final and self.share is not None and self.share < (self.wish or 0)


class Charge(msgspec.Struct, frozen=True):
    """What a node has cost so far; ``to_at`` is when it ended, or the last word about it."""

    job: str
    node: str
    kind: NodeKind
    state: NodeState
    dollars: float
    from_at: float
    to_at: float

    @property
    def running(self) -> bool:
        return self.state is NodeState.RUNNING


class CostBy(StrEnum):
    JOB = "job"
    DAY = "day"
    KIND = "kind"
    TAG = "tag"


class CostLine(msgspec.Struct, frozen=True):
    """``key`` is a job id, a day (UTC), a kind of node or a tag; a job with two tags counts under
    both, one without under "".
    """

    key: str
    dollars: float
    gpu_hours: float
    nodes: int
