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

    ``notice_at`` is when it will be taken, if that is known; ``reason`` says how it ended.
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
