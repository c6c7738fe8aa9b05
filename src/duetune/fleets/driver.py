"""The port of an engine that others run, such as Slurm, Ray or SkyPilot: it starts and stops nodes.

A driver has three verbs and no memory. Ledger, bills, limits, repeated and lost calls are handled
once for all drivers in ``engine_fleet``. ``duetune.testing.DriverContract`` is the conformance
suite.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import msgspec

from duetune.core.fleet import NodeEnd, NodeKind

if TYPE_CHECKING:
    from collections.abc import Sequence


class NodeOrder(msgspec.Struct, frozen=True, kw_only=True):
    """One node to start.

    - ``name``: the node's name in the engine, never used for another node: lower-case letters,
      digits and hyphens, at most 63 characters.
    - ``command``: what the node runs; the node ends with it. It gets SIGTERM before a preemption.
    - ``environment``: variables of the command. There are no secrets in it.
    - ``log``: the file for the output of the command; its folder exists on the node.
    - ``withdraw_at``: a request that is not granted by then, in seconds since the epoch, should be
      withdrawn. Engines that cannot do so leave it to ``stop``.
    - ``priority``: of the job, from -1000 to 1000; higher ones go first, if the engine can do so.
    - ``max_price``: dollars per GPU-hour; None means no limit.
    """

    name: str
    job: str
    kind: NodeKind
    command: tuple[str, ...]
    gpus: int = 1
    environment: dict[str, str] = msgspec.field(default_factory=dict)
    log: str = "/dev/null"
    withdraw_at: float | None = None
    priority: int = 0
    max_price: float | None = None


class EngineState(StrEnum):
    """The state of a node in its engine: WAITING until it is granted, ENDED for good."""

    WAITING = "waiting"
    RUNNING = "running"
    ENDED = "ended"


class EngineNode(msgspec.Struct, frozen=True, kw_only=True):
    """What the engine knows of a node. Times are seconds since the epoch.

    - ``notice_at``: when the engine will take the node, if it says so.
    - ``end``: CAPACITY for a preempted or withdrawn node, DIED for a machine that failed; None if
      the command ended by itself or the engine cannot tell.
    - ``reason``: the same in the engine's words.
    """

    name: str
    state: EngineState
    started_at: float | None = None
    ended_at: float | None = None
    notice_at: float | None = None
    end: NodeEnd | None = None
    reason: str = ""


@runtime_checkable
class Driver(Protocol):
    """Starts, stops and lists the nodes of one fleet in its engine.

    A method that gets no clear answer raises ``FleetError`` with ``retry=True``; it is then unknown
    whether the call had an effect, and it will be made again. ``retry=False`` means that the engine
    refuses and would refuse again, for example because of a wrong partition.
    """

    def start(self, order: NodeOrder) -> None:
        """Ask for a node. The same order again makes no second node."""

    def stop(self, name: str) -> None:
        """End a node or withdraw its request. A node that is gone or unknown is no error."""

    def list(self) -> Sequence[EngineNode]:
        """Return every node of this fleet that the engine knows, ended ones as long as it does.

        An engine that does not answer is a ``FleetError``, never an empty list.
        """
        ...


class Capacity(msgspec.Struct, frozen=True):
    """The GPUs that could be started now, by kind; None if the engine cannot tell.

    ``spot_by_machine``: the spot GPUs of each machine, because a node has all its GPUs on one. None
    if the engine cannot tell; any GPUs are then believed to make a node.
    """

    spot: int | None = None
    on_demand: int | None = None
    spot_by_machine: tuple[int, ...] | None = None

    @classmethod
    def of_machines(cls, spot: Sequence[int], on_demand: Sequence[int]) -> Capacity:
        """Return the capacity of machines with so many free GPUs each."""
        return cls(sum(spot), sum(on_demand), tuple(count for count in spot if count))


@runtime_checkable
class CapacityDriver(Driver, Protocol):
    """A driver whose engine can tell how many GPUs are free."""

    def capacity(self) -> Capacity:
        """Return the GPUs that are free now; called once a slot."""
        ...


@runtime_checkable
class PriorityDriver(Driver, Protocol):
    """A driver whose engine can serve requests by the priority of their jobs."""

    def by_priority(self) -> bool:
        """Return whether the settings make use of it; called before a job is launched."""
        ...


class Finding(msgspec.Struct, frozen=True):
    """One result of ``duetune fleet check``: what was checked, and what is wrong with it if so."""

    what: str
    wrong: str = ""


@runtime_checkable
class CheckedDriver(Driver, Protocol):
    """A driver that can check its settings, credentials and limits."""

    def check(self) -> Sequence[Finding]:
        """Return what was checked, without starting a node; called by ``duetune fleet check``."""
        ...
