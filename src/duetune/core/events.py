"""Events: everything that can happen to a job. Their JSON form is the journal format.

Every random number, clock reading and outside input is stored in an event before it has an effect.
So a replay gives the same state and the same decisions. A field may be added with a default. No
field may be removed or change its meaning without a new ``SCHEMA``.

What an event does to a job's state is in ``duetune.engine.effects``.
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
    """The status of a job. The last three are final; ``Ended.reason`` gives the reason."""

    QUEUED = "QUEUED"
    RUNNING = "RUNNING"
    PAUSED = "PAUSED"
    STOPPING = "STOPPING"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"

    @property
    def final(self) -> bool:
        """Return whether the job is over."""
        return self in {Status.SUCCEEDED, Status.FAILED, Status.CANCELLED}


class Cancel(msgspec.Struct, frozen=True, tag="cancel"):
    """Request to stop the job for good; its last checkpoint is kept."""


class Pause(msgspec.Struct, frozen=True, tag="pause"):
    """Request to hold no GPUs until the job is resumed; the deadline stays."""


class Resume(msgspec.Struct, frozen=True, tag="resume"):
    """Request to continue after a pause."""


class Amend(msgspec.Struct, frozen=True, tag="amend"):
    """Request to change the terms; None leaves a term unchanged.

    ``deadline``: seconds since the epoch.
    ``budget``: dollars for the whole job.
    ``value``: dollars for finishing by the deadline.
    ``priority``: counts at once among jobs, and for nodes that are requested from now on.
    """

    deadline: float | None = None
    budget: float | None = None
    value: float | None = None
    priority: int | None = None


UserRequest = Cancel | Pause | Resume | Amend
"""What a user may ask of a submitted job."""


class Past(msgspec.Struct, frozen=True, dict=True):
    """The market before a job began, oldest slot first; prices are dollars per GPU and slot."""

    spot_price: tuple[float, ...] = ()
    available: tuple[int, ...] = ()

    @functools.cached_property
    def prices(self) -> NDArray[np.float64]:
        """Return ``spot_price`` as an array; computed once because every view starts with it."""
        return np.array(self.spot_price, dtype=np.float64)

    @functools.cached_property
    def counts(self) -> NDArray[np.int64]:
        """Return ``available`` as an array; computed once."""
        return np.array(self.available, dtype=np.int64)


class Submitted(msgspec.Struct, frozen=True, tag="submitted"):
    """The job was accepted; always the first event of its stream.

    ``spec``: what the user wrote, as JSON.
    ``job``: its work counts optimiser steps and its time counts slots.
    ``policy``: the name of the chosen policy; ``chosen`` says how it was chosen.
    ``origin``: when slot 1 began. A slot lasts ``slot_s`` seconds.
    ``max_price``: highest spot price that the job pays, in dollars per GPU-hour.
    ``stop_at``: the job ends at this moment in any case.
    ``value_given``: False means that ``job.value`` is the cost of running on demand; it is then
    recomputed from the measured speed.
    ``steps``: optimiser steps within ``job.work``.
    ``deadline_at``: the deadline that the user asked for; the job's last slot ends before it.
    ``past``: the market before the job.
    ``priority``: jobs of higher priority come first when jobs compete.
    ``project``: the jobs of one project together may hold at most its quota.
    ``fleet``: the fleet that the job runs on, for its whole life. Journals from before the field
    have "", which means the fleet that ``[site] fleet`` names.
    ``soft``: the deadline is soft and has no price: after it the job goes on at the least cost.
    ``slowdown``: the job may be this many times slower than its throughput says, because the speed
    was only estimated; 1 if it was measured.
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
    soft: bool = False
    slowdown: float = 1.0
    fleet: str = ""


class UserRequested(msgspec.Struct, frozen=True, tag="wished"):
    """A user asked for a change. A request takes effect once per ``wish_id``, its number.

    The tag and the field names are those of the first journals, which called a request a wish.
    """

    at: float
    wish_id: int
    wish: UserRequest


class Reported(msgspec.Struct, frozen=True, tag="reported"):
    """News about nodes and training since the last report; what is not listed has not changed.

    ``progress_at`` is when the workers made the progress report, by the fleet's clock.
    """

    at: float
    nodes: tuple[Node, ...] = ()
    progress: Progress | None = None
    progress_at: float | None = None


class Observed(msgspec.Struct, frozen=True, tag="observed"):
    """A slot began: everything that the policy is shown and the state does not hold yet.

    ``progress``: steps done before the slot.
    ``held``: GPUs held in the previous slot.
    ``pace``: measured steps per slot without a resize, by number of GPUs.
    ``share``: the most GPUs that the job may hold; None means no limit.
    ``share_reason``: why other jobs limit this one.
    ``wish``: the GPUs that the policy would hold if the job were alone, where jobs compete.
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
        """Return whether a queued job starts to run: it wants GPUs and may hold some."""
        return self.share != 0 and self.wish != 0


class Doubt(StrEnum):
    """Why a job that could run holds no GPU and no longer defends its deadline."""

    LATE = "late"
    """Even all GPUs on demand are believed too slow for the deadline."""
    WORTHLESS = "worthless"
    """Finishing is believed to cost more than it is worth."""
    BUDGET = "budget"
    """The rest of the budget pays for no GPU."""
    SPOT_ONLY = "spot_only"
    """The job may use spot GPUs only, and waiting for them has cost the deadline."""
    POLICY = "policy"
    """The policy waits although the deadline could still be met."""


DOUBTS = {
    Doubt.LATE: "believed late: even all GPUs on demand could not meet the deadline",
    Doubt.WORTHLESS: "believed worthless: finishing costs more than it is worth",
    Doubt.BUDGET: "the budget is used up",
    Doubt.SPOT_ONLY: "waiting for spot, and believed late",
    Doubt.POLICY: "its policy waits and no longer defends the deadline",
}
"""The doubts in words, for messages that begin with "given up"."""


class GivenUp(msgspec.Struct, frozen=True):
    """A job that its policy has given up, and the terms that would save it; None needs no change.

    ``deadline``: the earliest that on-demand GPUs could still meet, in seconds since the epoch.
    ``budget``: dollars for the whole job.
    ``value``: dollars; from there on finishing is worth its cost.
    ``max_price``: dollars per GPU-hour with which the job could use on-demand GPUs.
    """

    because: Doubt
    deadline: float | None = None
    budget: float | None = None
    value: float | None = None
    max_price: float | None = None

    def text(self, deadline: str) -> str:
        """Return the sentence that users read; ``deadline`` is the moment in the caller's words."""
        saving = [f"a deadline {deadline} or later"] if self.deadline is not None else []
        saving += [f"a budget of ${self.budget:.2f}"] if self.budget is not None else []
        saving += [f"a value of ${self.value:.2f}"] if self.value is not None else []
        saving += [f"a max_price of ${self.max_price:.2f}"] if self.max_price is not None else []
        saves = f"; {' and '.join(saving)} would save it" if saving else ""
        return f"given up, {DOUBTS[self.because]}{saves}"


class Decided(msgspec.Struct, frozen=True, tag="decided"):
    """The decision for a slot: GPUs to hold, the reason, and the policy's memory.

    ``given_up``: set if the policy has given the job up.
    ``probing``: GPUs are held only to measure the pace. It was only estimated, or the policy would
    give the job up.
    """

    at: float
    slot: int
    allocation: Allocation
    reason: str
    memo: tuple[float, ...] = ()
    given_up: GivenUp | None = None
    probing: bool = False


class NodeRequest(msgspec.Struct, frozen=True):
    """One node to launch; ``epoch`` grows with every launch of the job."""

    node: str
    kind: NodeKind
    epoch: int


class Requested(msgspec.Struct, frozen=True, tag="requested"):
    """Nodes to launch and to release; written to the journal before the fleet is called."""

    at: float
    launches: tuple[NodeRequest, ...] = ()
    releases: tuple[str, ...] = ()


class Ended(msgspec.Struct, frozen=True, tag="ended"):
    """The job is over, and its last node is gone and billed.

    ``cost``: the whole bill in dollars.
    ``value``: what finishing was worth in dollars; 0 if the job did not finish.
    ``finished_at``: when training was complete; None if it was not.
    ``output``: the folder of the result.
    """

    at: float
    status: Status
    reason: str
    cost: float
    value: float = 0.0
    finished_at: float | None = None
    output: str = ""


class Disturbance(StrEnum):
    """What can go wrong around a job without being the fault of its nodes or its training."""

    FLEET_SILENT = "fleet_silent"
    FLEET_ANSWERS = "fleet_answers"
    CLOCK_SET = "clock_set"
    STOOD_STILL = "stood_still"


class Disturbed(msgspec.Struct, frozen=True, tag="disturbed"):
    """Something went wrong around the job. It changes no decision; ``explain`` shows it.

    ``seconds``: real seconds. How long the fleet has not answered or the controller stood still,
    or by how much the wall clock was set.
    ``since``: when the fleet stopped answering, by the fleet's clock.
    ``message``: what the fleet's last failed call said.
    """

    at: float
    what: Disturbance
    seconds: float = 0.0
    since: float | None = None
    message: str = ""


class Learned(msgspec.Struct, frozen=True, tag="learned"):
    """The utility in dollars that each policy of the pool would have had on the job's market.

    It is the last event of a stream; the selector learns from it.
    """

    at: float
    pool: str
    policies: tuple[str, ...]
    utilities: tuple[float, ...]


Event = (
    Submitted
    | UserRequested
    | Reported
    | Observed
    | Decided
    | Requested
    | Disturbed
    | Ended
    | Learned
)


class Recorded(msgspec.Struct, frozen=True):
    """An event and its position in its stream, counted from 1."""

    position: int
    event: Event
