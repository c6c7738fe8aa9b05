"""The rows of the read models: jobs and charges, and the lines of the cost report."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from duetune.core.events import GivenUp, Status
from duetune.core.fleet import NodeKind, NodeState


class JobRow(msgspec.Struct, frozen=True, kw_only=True):
    """A job in one row. Times are seconds since the epoch by the fleet's clock.

    ``reason``: why the job has its status, or why it holds what it holds.
    ``spot``, ``on_demand``: nodes that are running.
    ``spent``: dollars so far. ``cost``: the whole bill, known when the job has ended.
    ``learned_at``: when the selector learned from the job.
    ``events``: length of the job's stream.
    ``share``: the most GPUs that the job may hold where jobs compete; None means no limit.
    ``wish``: the GPUs that the job would hold if it were alone.
    ``given_up``: set if the policy has given the job up; it has the terms that would save the job.
    ``fleet``: the fleet of the job; "" means the one that ``[site] fleet`` names.
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
    given_up: GivenUp | None = None
    fleet: str = ""

    @property
    def limited(self) -> bool:
        """Return whether the job may hold fewer GPUs than it would hold alone."""
        return not self.status.final and self.share is not None and self.share < (self.wish or 0)


class Charge(msgspec.Struct, frozen=True):
    """What a node has cost so far; ``to_at`` is when it ended or was last reported."""

    job: str
    node: str
    kind: NodeKind
    state: NodeState
    dollars: float
    from_at: float
    to_at: float

    @property
    def running(self) -> bool:
        """Return whether the node is still running."""
        return self.state is NodeState.RUNNING


class CostBy(StrEnum):
    """How the cost report adds up charges."""

    JOB = "job"
    DAY = "day"
    KIND = "kind"
    TAG = "tag"
    FLEET = "fleet"


class CostLine(msgspec.Struct, frozen=True):
    """One line of the cost report. ``key`` is a job id, a day (UTC), a node kind, a tag or a fleet.

    A job with two tags counts under both; a job without tags counts under "". So does a job from
    before fleets were written down, if it is asked for fleets.
    """

    key: str
    dollars: float
    gpu_hours: float
    nodes: int
