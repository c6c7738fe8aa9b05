"""What can happen to a job. The JSON form of an event is the journal's format.

Whatever is random, comes from a clock or from outside is in an event before it has an effect, so a
replay gives the same state and the same decisions. Fields may be added with a default; none may be
removed or change its meaning without a new ``SCHEMA``.
"""

from __future__ import annotations

import functools
from enum import StrEnum
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from duetune.core.decision import Allocation, Outlook
from duetune.core.fleet import Node, NodeKind, Task
from duetune.core.job import Job
from duetune.core.market import Slot
from duetune.core.progress import Progress

if TYPE_CHECKING:
    from numpy.typing import NDArray

SCHEMA = 1


class Status(StrEnum):
    """Where a job is. The last three are final; why is told by ``Ended.reason``."""

    QUEUED = "QUEUED"
    RUNNING = "RUNNING"
    PAUSED = "PAUSED"
    STOPPING = "STOPPING"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"

    @property
    def final(self) -> bool:
        return self in {Status.SUCCEEDED, Status.FAILED, Status.CANCELLED}


class Cancel(msgspec.Struct, frozen=True, tag="cancel"):
    """Stop for good, keep the last checkpoint."""


class Pause(msgspec.Struct, frozen=True, tag="pause"):
    """Hold no GPUs until resumed; time goes on."""


class Resume(msgspec.Struct, frozen=True, tag="resume"):
    """Go on after a pause."""


class Amend(msgspec.Struct, frozen=True, tag="amend"):
    """Other terms from now on: ``deadline`` is a moment, ``budget`` dollars in all."""

    deadline: float | None = None
    budget: float | None = None


UserRequest = Cancel | Pause | Resume | Amend


class Past(msgspec.Struct, frozen=True, dict=True):
    """The market before a job began, oldest slot first; prices per GPU and slot."""

    spot_price: tuple[float, ...] = ()
    available: tuple[int, ...] = ()

    @functools.cached_property
    def prices(self) -> NDArray[np.float64]:
        """``spot_price`` as an array, made once: a view of every slot begins with it."""
        return np.array(self.spot_price, dtype=np.float64)

    @functools.cached_property
    def counts(self) -> NDArray[np.int64]:
        """``available`` as an array, made once."""
        return np.array(self.available, dtype=np.int64)


class Submitted(msgspec.Struct, frozen=True, tag="submitted"):
    """The job as it was accepted. ``job`` counts work in optimiser steps and time in slots of
    ``slot_s`` seconds, the first of which began at ``origin``. ``spec`` is what the user wrote, as
    JSON; ``policy`` the name of the policy that was chosen, ``chosen`` how; ``stop_at`` a moment
    at which the job ends whatever its state. A value that was not given stands for the cost on
    demand, so it follows the measured speed. ``steps`` are the optimiser steps within ``job.work``
    and ``deadline_at`` is the moment that was asked for, which the job's slots end before. Where
    jobs compete, those of the higher ``priority`` go first, and those of one ``project`` may hold
    no more together than its quota.
    """

    at: float
    spec: str
    job: Job
    task: Task
    policy: str
    origin: float
    slot_s: float
    chosen: str = ""
    max_price: float | None = None
    outlook: Outlook = Outlook()
    stop_at: float | None = None
    value_given: bool = True
    steps: int = 0
    deadline_at: float | None = None
    past: Past = Past()
    priority: int = 0
    project: str = ""


class UserRequested(msgspec.Struct, frozen=True, tag="wished"):
    """Somebody asked for something; ``wish_id`` makes it count once."""

    at: float
    wish_id: int
    wish: UserRequest


class Reported(msgspec.Struct, frozen=True, tag="reported"):
    """What is new about nodes and training since the last report; the rest is as it was.

    ``progress_at`` is when the workers said so, by the fleet's clock.
    """

    at: float
    nodes: tuple[Node, ...] = ()
    progress: Progress | None = None
    progress_at: float | None = None


class Observed(msgspec.Struct, frozen=True, tag="observed"):
    """A slot has begun: all that the policy is shown, less what the state already holds.

    ``pace`` is the measured number of steps per undisturbed slot, by number of GPUs. Where jobs
    share a finite fleet, ``wish`` is how many GPUs the policy would hold if the job were alone, and
    ``share`` the most that it may hold; None: as many as it likes. ``share_reason`` says what the
    other jobs have to do with it.
    """

    at: float
    slot: int
    progress: float
    held: Allocation
    market: Slot
    forecast_price: tuple[float, ...]
    forecast_available: tuple[int, ...]
    spent: float
    outlook: Outlook = Outlook()
    pace: dict[int, float] = msgspec.field(default_factory=dict)
    share: int | None = None
    share_reason: str = ""
    wish: int | None = None

    @property
    def begins(self) -> bool:
        """Whether a job that was queued until now need wait no longer: it may have what it wants,
        and wants something.
        """
        return self.share != 0 and self.wish != 0


class Decided(msgspec.Struct, frozen=True, tag="decided"):
    """What to hold in this slot, and why."""

    at: float
    slot: int
    allocation: Allocation
    reason: str
    memo: tuple[float, ...] = ()


class NodeRequest(msgspec.Struct, frozen=True):
    node: str
    kind: NodeKind
    epoch: int


class Requested(msgspec.Struct, frozen=True, tag="requested"):
    """Nodes to launch and to release. In the journal before the fleet hears of it."""

    at: float
    launches: tuple[NodeRequest, ...] = ()
    releases: tuple[str, ...] = ()


class Ended(msgspec.Struct, frozen=True, tag="ended"):
    """Final. ``cost`` is the whole bill; ``finished_at`` when training was done, if it was."""

    at: float
    status: Status
    reason: str
    cost: float
    value: float = 0.0
    finished_at: float | None = None
    output: str = ""


class Learned(msgspec.Struct, frozen=True, tag="learned"):
    """What the pool would have earned on the same market, for the selector."""

    at: float
    pool: str
    policies: tuple[str, ...]
    utilities: tuple[float, ...]


Event = Submitted | UserRequested | Reported | Observed | Decided | Requested | Ended | Learned


class Recorded(msgspec.Struct, frozen=True):
    """An event and its position in its stream, counted from 1."""

    position: int
    event: Event
