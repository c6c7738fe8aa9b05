"""A driver in memory: an engine with a manual clock that does what a test asks for, faults too."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

import msgspec

from duetune.core.fleet import NodeEnd, NodeKind
from duetune.errors import Bug, FleetError
from duetune.fleets.driver import Capacity, EngineNode, EngineState, Finding
from duetune.testing.memory_fleet import ManualClock

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from duetune.fleets.driver import NodeOrder


class DriverFault(StrEnum):
    """How a call of a ``MemoryDriver`` goes wrong."""

    UNHEARD = "unheard"
    """The engine does not receive the call, and the caller gets an error."""
    FORGOTTEN = "forgotten"
    """The engine confirms the call and does nothing."""
    REPLY_LOST = "reply lost"
    """The call takes effect, but the caller gets an error."""
    DELAYED = "delayed"
    """The caller gets an error; the call takes effect ``delay_s`` later."""
    REFUSED = "refused"
    """The engine refuses the call for good."""
    STALE = "stale"
    """``list`` returns what it returned the last time."""
    EMPTY = "empty"
    """``list`` returns nothing, although there are nodes: a driver that breaks the port."""


class MemoryDriver:
    """An engine without processes; it is a ``Driver`` that can tell its capacity and be checked.

    ``spot`` and ``on_demand`` are the GPUs it has and may be changed at any time. ``orders`` has
    every order that took effect, ``signalled`` the nodes whose command got SIGTERM. Only names
    that begin with ``prefix`` are listed.

        driver = MemoryDriver(spot=1)
        driver.fail(DriverFault.REPLY_LOST, verb="start")
        driver.start(order)                    # raises FleetError, but there is a node
        driver.preempt(order.name, notice_s=30)
        driver.clock.advance(30)
        driver.list()                          # ENDED, CAPACITY

    ``away`` makes every call fail without effect. ``machine_gpus`` puts the GPUs on machines of so
    many each; a node has all its GPUs on one machine.
    """

    def __init__(
        self,
        *,
        spot: int = 4,
        on_demand: int = 4,
        grant_delay_s: float = 0.0,
        delay_s: float = 60.0,
        prefix: str = "",
        clock: ManualClock | None = None,
        machine_gpus: int | None = None,
    ) -> None:
        self.clock = ManualClock() if clock is None else clock
        self.machine_gpus = machine_gpus
        self._places: dict[str, int] = {}
        self.spot, self.on_demand = spot, on_demand
        self.grant_delay_s, self.delay_s, self.prefix = grant_delay_s, delay_s, prefix
        self.away = False
        self.orders: list[NodeOrder] = []
        self.signalled: list[str] = []
        self._nodes: dict[str, EngineNode] = {}
        self._asked: dict[str, tuple[NodeOrder, float]] = {}
        self._faults: list[tuple[str, DriverFault]] = []
        self._later: list[tuple[float, Callable[[], None]]] = []
        self._listed: tuple[EngineNode, ...] = ()

    def start(self, order: NodeOrder) -> None:
        """Ask for a node, unless the engine knows one of that name already."""
        self._call("start", lambda: self._start(order))

    def stop(self, name: str) -> None:
        """End the node or withdraw its request, if there is one."""
        self._call("stop", lambda: self._stop(name))

    def list(self) -> Sequence[EngineNode]:
        """Return the nodes that the engine knows, or what the fault that was asked for gives."""
        fault = self._call("list", self._advance)
        if fault is DriverFault.EMPTY:
            return ()
        if fault is not DriverFault.STALE:
            known = self._nodes.values()
            self._listed = tuple(each for each in known if each.name.startswith(self.prefix))
        return self._listed

    def capacity(self) -> Capacity:
        """Return the GPUs that are free now, by machine if there are machines."""
        self._call("capacity", self._advance)
        spot, on_demand = self._free(NodeKind.SPOT), self._free(NodeKind.ON_DEMAND)
        if self.machine_gpus is None:
            return Capacity(sum(spot), sum(on_demand))
        return Capacity.of_machines(spot, on_demand)

    def check(self) -> Sequence[Finding]:
        """Return whether the engine answers."""
        return (Finding("the engine answers", "it does not" if self.away else ""),)

    def fail(self, fault: DriverFault, *, verb: str = "", calls: int = 1) -> None:
        """Let the next calls of ``verb`` go wrong; without ``verb``, the next calls of any."""
        self._faults += [(verb, fault)] * calls

    def preempt(self, name: str, *, notice_s: float = 0.0) -> None:
        """Send SIGTERM to the node's command now, and take the node ``notice_s`` later."""
        moment = self.clock.now() + notice_s
        self._change(self.node(name).name, notice_at=moment)
        self.signalled.append(name)
        self._later.append((moment, lambda: self._end(name, "preempted", NodeEnd.CAPACITY)))
        self._advance()

    def kill(self, name: str) -> None:
        """Let the node's machine fail."""
        self._end(name, "the machine failed", NodeEnd.DIED)

    def finish(self, name: str, code: int = 0) -> None:
        """End the node's command with exit status ``code``."""
        self._advance()
        self._end(name, f"exit status {code}", None)

    def forget(self, name: str) -> None:
        """Remove every trace of the node, as engines do some time after its end."""
        self._asked.pop(name, None)
        self._nodes.pop(name, None)

    def node(self, name: str) -> EngineNode:
        """Return the node as the engine knows it, whatever faults there are."""
        self._advance()
        if name not in self._nodes:
            raise Bug(f"the test asks for node {name!r}, which the engine does not know")
        return self._nodes[name]

    def _call(self, verb: str, effect: Callable[[], None]) -> DriverFault | None:
        """Carry out one call with the fault that was asked for, and return that fault."""
        if self.away:
            raise FleetError("the engine does not answer", retry=True)
        found = next((each for each in self._faults if each[0] in {"", verb}), None)
        fault = None
        if found is not None:
            self._faults.remove(found)
            fault = found[1]
        if fault is DriverFault.REFUSED:
            raise FleetError(f"the engine refuses to {verb}", retry=False)
        if fault is DriverFault.DELAYED:
            self._later.append((self.clock.now() + self.delay_s, effect))
        elif fault not in {DriverFault.UNHEARD, DriverFault.FORGOTTEN}:
            effect()
        if fault in {DriverFault.UNHEARD, DriverFault.REPLY_LOST, DriverFault.DELAYED}:
            raise FleetError(f"no answer to {verb}", retry=True)
        return fault

    def _start(self, order: NodeOrder) -> None:
        if order.name not in self._nodes:
            self.orders.append(order)
            self._asked[order.name] = (order, self.clock.now())
            self._nodes[order.name] = EngineNode(name=order.name, state=EngineState.WAITING)
        self._advance()

    def _stop(self, name: str) -> None:
        self._advance()
        self._end(name, "stopped", None)

    def _advance(self) -> None:
        """Bring the engine up to the present time: late calls and ends first, then grants."""
        now = self.clock.now()
        due = [each for each in self._later if each[0] <= now]
        self._later = [each for each in self._later if each[0] > now]
        for _, effect in sorted(due, key=lambda each: each[0]):
            effect()
        waiting = [
            self._asked[name]
            for name, node in self._nodes.items()
            if node.state is EngineState.WAITING
        ]
        for order, asked_at in sorted(waiting, key=lambda each: -each[0].priority):
            granted_at, last = asked_at + self.grant_delay_s, order.withdraw_at
            in_time = last is None or granted_at <= last
            rooms = [at for at, left in enumerate(self._free(order.kind)) if left >= order.gpus]
            if in_time and granted_at <= now and rooms:
                self._places[order.name] = rooms[0]
                self._change(order.name, state=EngineState.RUNNING, started_at=now)
            elif last is not None and last <= now:
                self._end(order.name, "not granted in time", NodeEnd.CAPACITY)

    def _free(self, kind: NodeKind) -> Sequence[int]:
        """Return the free GPUs of each machine; without machines they are all on one."""
        there = self.spot if kind is NodeKind.SPOT else self.on_demand
        size = self.machine_gpus or max(1, there)
        left = [min(size, there - first) for first in range(0, there, size)]
        for name, node in self._nodes.items():
            order, place = self._asked[name][0], self._places.get(name, 0)
            running = node.state is EngineState.RUNNING and order.kind is kind
            if running and place < len(left):
                left[place] -= order.gpus
        return tuple(max(0, count) for count in left)

    def _end(self, name: str, reason: str, end: NodeEnd | None) -> None:
        node = self._nodes.get(name)
        if node is not None and node.state is not EngineState.ENDED:
            self._change(
                name, state=EngineState.ENDED, ended_at=self.clock.now(), end=end, reason=reason
            )

    def _change(self, name: str, **changes: object) -> None:
        self._nodes[name] = msgspec.structs.replace(self._nodes[name], **changes)
