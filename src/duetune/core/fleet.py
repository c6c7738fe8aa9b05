"""Commands to a fleet and its reports. A node has the GPUs that its task asks for, usually one.

Times are seconds since the epoch by the fleet's own clock (``core.ports.Clock``), which may run
faster than wall time. Prices are dollars per GPU-hour unless said otherwise.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from duetune.core.market import Slot
from duetune.core.node_contract import BAD_NODE, DONE, HOPELESS


class NodeKind(StrEnum):
    """How a node is bought: spot nodes can be taken away, on-demand nodes cannot."""

    SPOT = "spot"
    ON_DEMAND = "on_demand"


class NodeState(StrEnum):
    """The state of a node: REQUESTED until granted, then RUNNING. The other three are final."""

    REQUESTED = "requested"
    RUNNING = "running"
    REFUSED = "refused"
    LOST = "lost"
    RELEASED = "released"

    @property
    def alive(self) -> bool:
        """Return whether the node is requested or running."""
        return self in {NodeState.REQUESTED, NodeState.RUNNING}


class NodeEnd(StrEnum):
    """Why a node ended. Every fleet must use these values, because the engine acts on them.

    ``Node.reason`` adds the fleet's own words. The values are in journals: none may change.
    """

    CAPACITY = "capacity"
    """No GPU of its kind is available, or the market took the GPU away."""
    PRICE = "price"
    """The spot price is above the highest price that the job pays."""
    LIMIT = "limit"
    """The job's bill has reached its limit."""
    RELEASED = "released"
    """A command released the node, or its worker left to continue on another node."""
    FINISHED = "finished"
    """The node's process exited with status 0: the work is done."""
    HOPELESS = "hopeless"
    """The node's process cannot be started or exited with status 78: a retry would fail too."""
    CRASHED = "crashed"
    """The node's process was killed again and again or found a full disk: the node is to blame."""
    DIED = "node died"
    """The machine failed, or the process that supervises the node."""
    CANCELLED = "released before it was launched"
    """The release came before the launch, so the launch was refused."""
    RESTARTED = "the fleet was restarted"
    """The fleet was restarted and could not keep the node."""
    STOPPED = "the fleet was stopped"
    """The fleet was stopped with all its nodes."""
    NOT_LAUNCHED = "not launched"
    """The node was released before its launch reached the fleet; only the controller says this."""


def end_of_exit(code: int | None) -> NodeEnd | None:
    """Return what the exit status of a node's process says by itself; None if it says nothing."""
    return _EXITS.get(code)


_EXITS: dict[int | None, NodeEnd] = {
    DONE: NodeEnd.FINISHED,
    HOPELESS: NodeEnd.HOPELESS,
    BAD_NODE: NodeEnd.CRASHED,
}


class Task(msgspec.Struct, frozen=True):
    """What a node runs.

    ``folder``: the job's folder.
    ``module``: a Python module to run instead of ``command``. A fleet may start it from a process
    that has already imported the heavy libraries.
    ``coordinated``: the nodes form one elastic group, so the fleet runs a coordinator for the job.
    ``gpus``: the GPUs of every node of the job; its processes share one copy of the model.
    ``storage``: the path or URL through which nodes that do not see ``folder`` exchange the job's
    files; empty if they see it.
    """

    folder: str
    module: str = ""
    command: tuple[str, ...] = ()
    environment: dict[str, str] = msgspec.field(default_factory=dict)
    coordinated: bool = False
    gpus: int = 1
    storage: str = ""


class Launch(msgspec.Struct, frozen=True, tag="launch"):
    """Launch one node. The caller chooses the id, so the same command twice makes one node.

    ``epoch``: grows with every launch of the job. Files of a newer epoch replace those of an older.
    ``max_price``: the node is taken when the spot price rises above it; None means no limit.
    ``priority``: of the job when it asked for the node, for engines that serve by priority.
    """

    node: str
    job: str
    kind: NodeKind
    epoch: int
    task: Task
    max_price: float | None = None
    priority: int = 0


class Release(msgspec.Struct, frozen=True, tag="release"):
    """Give a node back; a node that is gone or unknown is no error.

    The fleet remembers an unknown id and refuses a later launch of it.
    """

    node: str
    job: str


class Limit(msgspec.Struct, frozen=True, tag="limit"):
    """Set the most dollars that a job may cost in all; None means no limit.

    The fleet takes the job's nodes before the bill exceeds the limit, so the limit also holds while
    no controller runs. The latest limit counts.
    """

    job: str
    dollars: float | None


Command = Launch | Release | Limit


class Node(msgspec.Struct, frozen=True):
    """The fleet's record of a node.

    ``notice_at``: when the node will be taken away, if that is known.
    ``billed``: dollars so far for all its GPUs; never falls.
    ``end``: why the node ended; ``reason`` is the same in the fleet's words. Both are empty while
    the node is alive.
    """

    id: str
    job: str
    kind: NodeKind
    state: NodeState
    requested_at: float
    started_at: float | None = None
    ended_at: float | None = None
    notice_at: float | None = None
    billed: float = 0.0
    reason: str = ""
    end: NodeEnd | None = None
    gpus: int = 1

    def __post_init__(self) -> None:
        # Old journals and fleets have no ``end``; their ``reason`` begins with its value.
        if self.end is None and self.reason and not self.state.alive:
            msgspec.structs.force_setattr(self, "end", _end_in(self.reason))


_ENDS = {end.value: end for end in NodeEnd}


def _end_in(reason: str) -> NodeEnd | None:
    """Return the end that an old ``reason`` begins with; None for any other text.

    The value may be followed by numbers in brackets, or by a comma and how the worker exited.
    """
    return _ENDS.get(reason.partition(" (")[0].partition(", ")[0])


class FleetReport(msgspec.Struct, frozen=True):
    """All nodes that a job ever had, ended ones included; the bill is the sum over them."""

    at: float
    nodes: tuple[Node, ...] = ()


class MarketReport(msgspec.Struct, frozen=True):
    """The market now: slot ``index`` of the feed, which began at ``slot_began``.

    Prices in ``slot`` are dollars per GPU and slot, as in all of ``core``.
    ``counted``: False if nobody knows how many GPUs are available and the feed assumes a number.
    ``age_s``: seconds since the source last answered, if it did not answer in this slot.
    """

    at: float
    index: int
    slot_began: float
    slot_s: float
    slot: Slot
    counted: bool = True
    age_s: float = 0.0


class LedgerPage(msgspec.Struct, frozen=True, kw_only=True):
    """A text that a fleet keeps about one of its nodes, or about a job (then ``node`` is empty).

    ``version``: how often it was written. ``open``: whether the node has not ended.
    """

    job: str
    node: str
    body: str
    version: int = 0
    open: bool = True
