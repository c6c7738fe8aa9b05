"""What a fleet is told and what it tells: nodes, each with one GPU, and the commands about them.

Times are seconds since the epoch by the fleet's own clock (``Clock``), which may run faster than
the wall's; prices are dollars per GPU and hour.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from duetune.core.market import Slot


class NodeKind(StrEnum):
    SPOT = "spot"
    ON_DEMAND = "on_demand"


class NodeState(StrEnum):
    """REQUESTED until granted; RUNNING until it ends in one of the other three, for good."""

    REQUESTED = "requested"
    RUNNING = "running"
    REFUSED = "refused"
    LOST = "lost"
    RELEASED = "released"

    @property
    def alive(self) -> bool:
        return self in {NodeState.REQUESTED, NodeState.RUNNING}


class NodeEnd(StrEnum):
    """Why a node ended. The engine acts on it, so every fleet must say it in these terms;
    ``Node.reason`` adds the fleet's own words. Values are in journals: none may change.
    """

    CAPACITY = "capacity"
    """There is no GPU of its kind for it, or the market has given its GPU to somebody else."""
    PRICE = "price"
    """The spot price is above the highest price that the job pays."""
    LIMIT = "limit"
    """The job's bill has reached its limit."""
    RELEASED = "released"
    """It was given back, by a command or by its own worker, which will go on elsewhere."""
    FINISHED = "finished"
    """What it ran has exited with status 0: the work is done."""
    HOPELESS = "hopeless"
    """What it ran cannot be started, or has exited with status 78: another try is of no use."""
    DIED = "node died"
    """The machine, or what watches over the node on it, has failed."""
    CANCELLED = "released before it was launched"
    """Its release came before its launch, so the launch was refused."""
    RESTARTED = "the fleet was restarted"
    """The fleet was restarted and could not keep it."""
    STOPPED = "the fleet was stopped"
    """The fleet was stopped, and all its nodes with it."""
    NOT_LAUNCHED = "not launched"
    """It was released before any fleet had heard of it; the controller says so, no fleet does."""


class Task(msgspec.Struct, frozen=True):
    """What a node runs: a command, its environment, and the job's own folder.

    ``module`` instead of a command is a Python module, which a fleet may start from a process that
    has already imported the heavy libraries. ``coordinated``: the members form one elastic group,
    so the fleet keeps a coordinator for the job.
    """

    folder: str
    module: str = ""
    command: tuple[str, ...] = ()
    environment: dict[str, str] = msgspec.field(default_factory=dict)
    coordinated: bool = False


class Launch(msgspec.Struct, frozen=True, tag="launch"):
    """One more node. The id is given by who asks, so asking twice makes one node.

    ``epoch`` only grows from launch to launch of a job: what a node of an older epoch writes gives
    way to what a newer one wrote.
    """

    node: str
    job: str
    kind: NodeKind
    epoch: int
    task: Task
    max_price: float | None = None


class Release(msgspec.Struct, frozen=True, tag="release"):
    """Give a node back; one that is gone, or was never known, is no error.

    An unknown id is remembered: a launch of it that comes later is refused.
    """

    node: str
    job: str


class Limit(msgspec.Struct, frozen=True, tag="limit"):
    """The most a job may cost in all. The fleet takes the job's nodes before the bill exceeds it,
    so the limit holds while nobody watches. None: no limit. The last word counts.
    """

    job: str
    dollars: float | None


Command = Launch | Release | Limit


class Node(msgspec.Struct, frozen=True):
    """A node as the fleet knows it. ``billed`` is all it has cost so far and never falls.

    ``notice_at`` is when it will be taken, if that is known. ``end`` says why it ended and
    ``reason`` the same in words; a node that lives has neither.
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

    def __post_init__(self) -> None:
        # Journals and fleets from before ``end`` have the words alone, which began with its value.
        if self.end is None and self.reason and not self.state.alive:
            msgspec.structs.force_setattr(self, "end", _end_in(self.reason))


_ENDS = {end.value: end for end in NodeEnd}


def _end_in(reason: str) -> NodeEnd | None:
    """The end that an old ``reason`` names, which may be followed by numbers in brackets or by how
    the worker left; None for words of somebody's own.
    """
    return _ENDS.get(reason.partition(" (")[0].partition(", ")[0])


class FleetReport(msgspec.Struct, frozen=True):
    """All nodes a job ever had, dead ones included: the bill is the sum over them."""

    at: float
    nodes: tuple[Node, ...] = ()


class MarketReport(msgspec.Struct, frozen=True):
    """The market in the slot that is now: slot ``index`` of the feed began at ``slot_began``.

    Prices in ``slot`` are dollars per GPU and slot, as everywhere in the core.
    """

    at: float
    index: int
    slot_began: float
    slot_s: float
    slot: Slot
