"""A job as it is now: the sum of its events."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import msgspec

from duetune.core.decision import Allocation
from duetune.core.events import Ended, Status, Submitted
from duetune.core.fleet import Node, NodeKind, NodeState
from duetune.core.job import Job
from duetune.core.progress import Progress
from duetune.engine.market_history import Watched

if TYPE_CHECKING:
    from collections.abc import Iterable


class Ending(msgspec.Struct, frozen=True):
    """What a job that is stopping will have come to."""

    status: Status
    reason: str


class JobState(msgspec.Struct):
    """``position`` events have been handled. ``wanted`` is the standing decision, ``releasing`` are
    nodes to be given back; ``confirmed`` those the fleet has told us about. ``due``: the
    present slot must be decided (again), since the terms have changed. ``watched`` is the
    market as it was observed. ``share`` of ``wish`` GPUs are what the queue leaves the job,
    None if all; ``waited`` if that was too few to run at any time of the slot. The plans in
    ``memo`` were made for at most ``memo_gpus``. ``progress_at_slot`` is the work done before
    the slot. ``reason`` says why the status is what it is, or why the job holds what it holds.
    ``updated_at`` is the moment of the latest event, ``loss`` the last one that was reported.
    ``ended`` is the job's end, and ``learned_at`` when the selector learned from it.
    """

    stream: str
    submitted: Submitted
    job: Job
    position: int = 1
    status: Status = Status.QUEUED
    reason: str = ""
    ending: Ending | None = None
    slot: int = 0
    slot_began: float = -math.inf
    due: bool = True
    amended_deadline: float | None = None
    wanted: Allocation = Allocation()
    memo: tuple[float, ...] = ()
    memo_gpus: int = 0
    share: int | None = None
    share_reason: str = ""
    wish: int | None = None
    waited: bool = False
    nodes: dict[str, Node] = msgspec.field(default_factory=dict)
    epochs: dict[str, int] = msgspec.field(default_factory=dict)
    confirmed: set[str] = msgspec.field(default_factory=set)
    releasing: set[str] = msgspec.field(default_factory=set)
    wishes: set[int] = msgspec.field(default_factory=set)
    progress: Progress = Progress()
    progress_at: float | None = None
    pace: dict[int, float] = msgspec.field(default_factory=dict)
    lost_steps: int = 0
    preemptions: int = 0
    resizes: int = 0
    refused_in: int = 0
    stalled_slots: int = 0
    progress_at_slot: float = -1.0
    watched: Watched = msgspec.field(default_factory=Watched)
    updated_at: float = -math.inf
    loss: float | None = None
    ended: Ended | None = None
    learned_at: float | None = None

    @property
    def spent(self) -> float:
        """The bill so far, dead nodes included."""
        return math.fsum(node.billed for node in self.nodes.values())

    @property
    def deadline_at(self) -> float:
        """The moment that was asked for, last; the job's own deadline is the last slot's end
        before it.
        """
        if self.amended_deadline is not None:
            return self.amended_deadline
        given = self.submitted.deadline_at
        return self.moment(self.job.deadline) if given is None else given

    @property
    def most_gpus(self) -> int:
        """That it may hold now, by its own terms and its share."""
        most = self.job.max_gpus
        return most if self.share is None else min(most, self.share)

    @property
    def waits(self) -> bool:
        """For GPUs that other jobs have."""
        return self.most_gpus < self.job.min_gpus

    def moment(self, slot: int) -> float:
        """When slot ``slot`` ends."""
        return self.submitted.origin + slot * self.submitted.slot_s

    def slot_at(self, moment: float) -> int:
        """The slot that ``moment`` is in, counted from 1."""
        elapsed = (moment - self.submitted.origin) / self.submitted.slot_s
        # A boundary that rounding puts a hair too early still belongs to the slot it opens.
        return max(1, math.floor(elapsed + 1e-9) + 1)

    def slot_is_due(self, moment: float) -> bool:
        """Whether a decision should be taken at ``moment``, or the job's time is up."""
        live = self.ending is None and not self.status.final
        stop_at = self.submitted.stop_at
        time_is_up = stop_at is not None and moment >= stop_at
        return live and (self.due or time_is_up or self.slot_at(moment) > self.slot)

    def alive(self, kind: NodeKind | None = None) -> list[Node]:
        """Nodes requested or running and not to be released, oldest first."""
        return [
            node
            for node in self.nodes.values()
            if node.state.alive
            and node.id not in self.releasing
            and (kind is None or node.kind is kind)
        ]

    def running(self) -> Allocation:
        return _count(node for node in self.alive() if node.state is NodeState.RUNNING)

    def held(self) -> Allocation:
        """What was held in the slot that ends, before any preemption: what runs, and what was
        taken from us since the slot began. A node that was replaced counts once: with it more was
        never held than wanted.
        """
        runs = self.running()
        lost = _count(
            node
            for node in self.nodes.values()
            if node.state is NodeState.LOST
            and node.started_at is not None
            and node.ended_at is not None
            and node.ended_at > self.slot_began
        )
        return Allocation(
            spot=max(runs.spot, min(runs.spot + lost.spot, self.wanted.spot)),
            on_demand=max(
                runs.on_demand, min(runs.on_demand + lost.on_demand, self.wanted.on_demand)
            ),
        )


def _count(nodes: Iterable[Node]) -> Allocation:
    kinds = [node.kind for node in nodes]
    return Allocation(spot=kinds.count(NodeKind.SPOT), on_demand=kinds.count(NodeKind.ON_DEMAND))
