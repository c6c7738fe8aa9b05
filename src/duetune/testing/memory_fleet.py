"""A fleet in memory with a manual clock, faults on request, and simulated training."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from duetune.core.fleet import NodeEnd, NodeState
from duetune.core.progress import Phase, Progress
from duetune.errors import Bug, FleetError
from duetune.fleets.embedded.cloud import Cloud
from duetune.fleets.embedded.cloud_settings import FleetSettings
from duetune.fleets.embedded.replay import MarketReplay
from duetune.testing.small_markets import constant_market

if TYPE_CHECKING:
    from collections.abc import Sequence

    from duetune.core.fleet import Command, FleetReport, MarketReport, Node
    from duetune.core.job import Job
    from duetune.core.market import MarketTrace


INSTANT = FleetSettings(grant_delay_s=0.0, notice_s=0.0, preload="")


class ManualClock:
    """A ``Clock`` that is set by hand; waiting takes no real time."""

    def __init__(self, start: float = 1_700_000_000.0) -> None:
        self._now = start

    def now(self) -> float:
        """Return the time in seconds since the epoch."""
        return self._now

    def wait_until(self, moment: float) -> None:
        """Set the clock to ``moment``, unless it is past that already."""
        self._now = max(self._now, moment)

    def advance(self, seconds: float) -> None:
        """Set the clock forward by ``seconds``."""
        self.wait_until(self._now + seconds)


class MemoryFleet:
    """The embedded fleet's cloud without processes: a ``Fleet`` and a ``MarketFeed``.

    The market begins at ``clock.now()`` when the fleet is made. Times in ``settings`` are seconds
    of that clock unless a speed is given. ``commands`` lists the commands that were carried out.

        fleet = MemoryFleet(market_of([0.4, 0.5], [4, 1]))
        fleet.apply([Launch(...)])
        fleet.clock.advance(1800)
        fleet.observe("job")

    Faults: ``lose_replies(n)``, ``lose_requests(n)``, ``unreachable``, ``refusing``, and
    ``FleetFaults`` in the settings (see ``duetune.fleets.embedded.cloud_settings``). ``lose`` and
    ``finish`` end single nodes.
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
        """Carry out the commands in order, or fail with the fault that was asked for."""
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
        """Return the nodes of the job at the present time of the clock."""
        self._reached()
        return self._cloud.report(job)

    def now(self) -> MarketReport:
        """Return the market at the present time of the clock."""
        self._reached()
        return self._replay.report(self.clock.now())

    def history(self, slots: int) -> MarketTrace | None:
        """Return up to ``slots`` slots of the market before the present one."""
        self._reached()
        return self._replay.history(self.clock.now(), slots)

    def lose_replies(self, calls: int = 1) -> None:
        """Let the next calls of ``apply`` take effect but fail for the caller."""
        self._unanswered = calls

    def lose_requests(self, calls: int = 1) -> None:
        """Let the next calls of ``apply`` fail without effect."""
        self._unheard = calls

    def never_grant(self, never: bool = True) -> None:
        """Let later launches stay REQUESTED."""
        faults = msgspec.structs.replace(self._settings.faults, never_grant=never)
        self._settings = msgspec.structs.replace(self._settings, faults=faults)
        self._cloud.settings = self._settings

    def lose(self, node: str, *, notice_s: float | None = None) -> None:
        """End the node now, or ``notice_s`` seconds after a notice that is given now."""
        found = self._alive(node)
        moment = self.clock.now() + (notice_s or 0.0)
        self._cloud.take(found.job, node, moment, NodeEnd.CAPACITY, notice=notice_s is not None)

    def finish(self, node: str, code: int = 0) -> None:
        """End the node's command with exit status ``code``: 0 done, 74 bad node, 75 left,
        78 hopeless.
        """
        self._cloud.worker_ended(self._alive(node).job, node, code)

    def node(self, name: str) -> Node:
        """Return the node as it is now, of whichever job."""
        self._cloud.advance(self.clock.now())
        found = self._cloud.find(name)
        if found is None:
            raise Bug(f"the test asks for node {name!r}, which was never launched")
        return found

    def alive(self, job: str) -> list[str]:
        """Return the names of the job's nodes that are requested or running."""
        self._cloud.advance(self.clock.now())
        return [node.id for node in self._cloud.report(job).nodes if node.state.alive]

    def running(self, job: str) -> list[str]:
        """Return the names of the job's nodes that are running."""
        self._cloud.advance(self.clock.now())
        nodes = self._cloud.report(job).nodes
        return [node.id for node in nodes if node.state is NodeState.RUNNING]

    def _alive(self, name: str) -> Node:
        node = self.node(name)
        if not node.state.alive:
            raise Bug(f"the test ends node {name!r}, which is already {node.state}")
        return node

    def _reached(self) -> None:
        """Bring the cloud up to the present time, or fail if the fleet is unreachable."""
        if self.unreachable:
            raise FleetError("the fleet does not answer", retry=True)
        self._cloud.advance(self.clock.now())


class PretendTraining:
    """Simulated training on a ``MemoryFleet``; it serves as the controller's ``Reports``.

    As time passes, running nodes make progress according to the job's throughput curve. ``pace``
    scales every curve: below 1, training is slower than predicted. The part of a step in progress
    is lost with the last node and kept as long as one node is left.
    """

    def __init__(self, fleet: MemoryFleet, *, slot_s: float, pace: float = 1.0) -> None:
        self.fleet, self.slot_s, self.pace = fleet, slot_s, pace
        self.hazards: dict[str, tuple[float, int]] = {}
        self._jobs: dict[str, tuple[Job, int]] = {}
        self._done: dict[str, float] = {}
        self._seen: dict[str, float] = {}
        self._world: dict[str, int] = {}

    def add(self, name: str, job: Job, total_steps: int) -> None:
        """Start to simulate the job, from step 0."""
        self._jobs[name] = (job, total_steps)
        self._done[name] = 0.0
        self._seen[name] = self.fleet.clock.now()
        self._world[name] = 0

    def read(self, job: str) -> tuple[Progress, float] | None:
        """Return the job's progress and the present time; None for an unknown job."""
        if job not in self._jobs:
            return None
        terms, total = self._jobs[job]
        now = self.fleet.clock.now()
        elapsed = now - self._seen[job]
        running = self.fleet.running(job)
        world = min(self._world[job], terms.max_gpus)
        self._done[job] += self.pace * terms.throughput[world] * elapsed / self.slot_s
        self._seen[job] = now
        self._world[job] = len(running)
        if not running:
            self._done[job] = float(int(self._done[job]))
        step = min(total, int(self._done[job]))
        done = step >= total
        if done:
            for node in running:
                self.fleet.finish(node)
        curve = terms.throughput[world]
        return (
            Progress(
                step=step,
                total_steps=total,
                world=world,
                step_s=self.slot_s / (self.pace * curve) if curve else None,
                checkpoint_step=step,
                phase=Phase.FINISHED if done else Phase.TRAINING,
                output="output" if done else "",
                at=now,
            ),
            now,
        )

    def hazard(self, job: str, lived_s: float, losses: int) -> None:
        """Keep what the controller says about the job's risk of preemption."""
        self.hazards[job] = (lived_s, losses)
