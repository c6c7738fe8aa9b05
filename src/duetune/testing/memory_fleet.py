"""A fleet in memory, with a clock that is set by hand and faults that come when asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from duetune.core.fleet import NodeEnd, NodeState
from duetune.errors import Bug, FleetError
from duetune.fleets.embedded.cloud import Cloud
from duetune.fleets.embedded.cloud_settings import FleetFaults, FleetSettings
from duetune.fleets.embedded.replay import MarketReplay
from duetune.testing.small_markets import constant_market

if TYPE_CHECKING:
    from collections.abc import Sequence

    from duetune.core.fleet import Command, FleetReport, MarketReport, Node
    from duetune.core.market import MarketTrace

INSTANT = FleetSettings(grant_delay_s=0.0, notice_s=0.0, preload="")


class ManualClock:
    """Time passes when somebody waits or says so: waiting takes none of the real one."""

    def __init__(self, start: float = 1_700_000_000.0) -> None:
        self._now = start

    def now(self) -> float:
        return self._now

    def wait_until(self, moment: float) -> None:
        self._now = max(self._now, moment)

    def advance(self, seconds: float) -> None:
        self.wait_until(self._now + seconds)


class MemoryFleet:
    """The embedded fleet's cloud without its processes: a ``Fleet`` and a ``MarketFeed``.

    The market begins when the fleet is made, at ``clock.now()``; times in ``settings`` are seconds
    of that clock unless a speed is given. ``commands`` is what was carried out, in order.

        fleet = MemoryFleet(market_of([0.4, 0.5], [4, 1]))
        fleet.apply([Launch(...)])
        fleet.clock.advance(1800)
        fleet.observe("job")

    Faults: ``lose_replies(n)``, ``lose_requests(n)``, ``unreachable``, ``refusing``, and with
    settings ``FleetFaults``; nodes that go: ``lose``, ``finish``.
    """

    def __init__(
        self,
        trace: MarketTrace | None = None,
        settings: FleetSettings = INSTANT,
        *,
        clock: ManualClock | None = None,
    ) -> None:
        self.clock = ManualClock() if clock is None else clock
        self.commands: list[Command] = []
        self.unreachable = False
        self.refusing = False
        self._replay = MarketReplay(
            constant_market() if trace is None else trace,
            began=self.clock.now(),
            first_slot=settings.first_slot,
            wrap=settings.wrap,
        )
        self._settings = settings
        self._cloud = Cloud(self._replay, settings)
        self._calls = 0
        self._unheard = 0
        self._unanswered = 0

    def apply(self, commands: Sequence[Command]) -> None:
        self._calls += 1
        if self.unreachable or self._unheard:
            self._unheard = max(0, self._unheard - 1)
            raise FleetError("the fleet does not answer", retry=True)
        for command in commands:
            self.commands.append(command)
            self._cloud.refusing = self.refusing
            self._cloud.apply(command, self.clock.now())
        if self._unanswered or self._calls in self._settings.faults.lost_replies:
            self._unanswered = max(0, self._unanswered - 1)
            raise FleetError("the fleet's reply was lost", retry=True)

    def observe(self, job: str) -> FleetReport:
        self._reached()
        return self._cloud.report(job)

    def now(self) -> MarketReport:
        self._reached()
        return self._replay.report(self.clock.now())

    def history(self, slots: int) -> MarketTrace | None:
        self._reached()
        return self._replay.history(self.clock.now(), slots)

    def lose_replies(self, calls: int = 1) -> None:
        """The next calls of ``apply`` are carried out, but fail for who called."""
        self._unanswered = calls

    def lose_requests(self, calls: int = 1) -> None:
        """The next calls of ``apply`` fail without effect."""
        self._unheard = calls

    def never_grant(self, never: bool = True) -> None:
        """Launches from now on stay REQUESTED."""
        faults = msgspec.structs.replace(self._settings.faults, never_grant=never)
        self._settings = msgspec.structs.replace(self._settings, faults=faults)
        self._cloud.settings = self._settings

    def lose(self, node: str, *, notice_s: float | None = None) -> None:
        """The node dies now, or ``notice_s`` seconds after a notice that is given now."""
        found = self._alive(node)
        moment = self.clock.now() + (notice_s or 0.0)
        self._cloud.take(found.job, node, moment, NodeEnd.CAPACITY, notice=notice_s is not None)

    def finish(self, node: str, code: int = 0) -> None:
        """What the node runs exits with ``code`` for good: 0 done, 75 left, 78 hopeless."""
        self._cloud.worker_ended(self._alive(node).job, node, code)

    def node(self, name: str) -> Node:
        """The node as it is now, whatever its job."""
        self._cloud.advance(self.clock.now())
        found = self._cloud.find(name)
        if found is None:
            raise Bug(f"the test asks for node {name!r}, which was never launched")
        return found

    def alive(self, job: str) -> list[str]:
        """Names of the job's nodes that are requested or running."""
        self._cloud.advance(self.clock.now())
        return [node.id for node in self._cloud.report(job).nodes if node.state.alive]

    def running(self, job: str) -> list[str]:
        self._cloud.advance(self.clock.now())
        nodes = self._cloud.report(job).nodes
        return [node.id for node in nodes if node.state is NodeState.RUNNING]

    def _alive(self, name: str) -> Node:
        node = self.node(name)
        if not node.state.alive:
            raise Bug(f"the test wants to end node {name!r}, which is {node.state} already")
        return node

    def _reached(self) -> None:
        if self.unreachable:
            raise FleetError("the fleet does not answer", retry=True)
        self._cloud.advance(self.clock.now())


__all__ = ["INSTANT", "FleetFaults", "FleetSettings", "ManualClock", "MemoryFleet"]
