"""The rules of the emulated cloud: which node is granted, which is taken, and what it costs.

There is no clock and no process here. The caller passes the time, and the cloud lists the nodes
that changed. The provider starts and ends real processes accordingly (``provider``);
``duetune.testing.MemoryFleet`` uses the same rules without processes.
"""

from __future__ import annotations

import math
from collections import defaultdict
from typing import TYPE_CHECKING
from zlib import crc32

import msgspec
import numpy as np

from duetune.core.fleet import (
    FleetReport,
    Launch,
    Limit,
    Node,
    NodeEnd,
    NodeKind,
    NodeState,
    Release,
    end_of_exit,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from duetune.core.fleet import Command
    from duetune.fleets.embedded.cloud_settings import FleetSettings
    from duetune.fleets.embedded.replay import MarketReplay

# Margin below a cost limit in dollars, because sums of many small charges are not exact.
SPARE = 1e-6
# A limit is checked this many market seconds late, so that it has certainly been reached.
LATE = 1e-3


class NodeRecord(msgspec.Struct):
    """A node with the cloud's private knowledge about it.

    - ``grant_at``: when the request will be granted.
    - ``silent``: the node will be taken without notice.
    - ``taken_at``, ``why``: when and why the node will be taken, as far as known.
    """

    node: Node
    launch: Launch | None = None
    grant_at: float = math.inf
    silent: bool = False
    taken_at: float = math.inf
    why: NodeEnd = NodeEnd.CAPACITY

    def stays_after(self, moment: float) -> bool:
        """Return whether the node will still be held after ``moment``, as far as known."""
        return self.node.state.alive and self.taken_at > moment


Key = tuple[str, str]


class Cloud:
    """All nodes of all jobs. Times are market seconds since the epoch.

    - ``changed``: the nodes that changed, in order; the caller empties it.
    - ``refusing``: if true, every launch is refused.
    """

    def __init__(self, replay: MarketReplay, settings: FleetSettings) -> None:
        self.at = self._before = replay.began
        self.changed: dict[Key, NodeRecord] = {}
        self.limits: dict[str, float] = {}
        self.cancelled: set[Key] = set()
        self.replay = replay
        self.settings = settings
        self.refusing = False
        self._notice_s = 0.0 if settings.faults.no_notice else settings.notice_s * settings.speed
        self._records: dict[Key, NodeRecord] = {}
        self._living: dict[Key, NodeRecord] = {}
        self._settled: dict[str, float] = defaultdict(float)

    def restore(
        self, nodes: Iterable[Node], limits: dict[str, float], cancelled: set[Key], at: float
    ) -> None:
        """Load the state of an earlier provider; nodes that were alive end as lost at ``at``."""
        self.at = max(self.at, at)
        self.limits = dict(limits)
        self.cancelled = set(cancelled)
        for node in nodes:
            key = (node.job, node.id)
            record = self._records[key] = NodeRecord(node)
            if not node.state.alive:
                self._settled[node.job] += node.billed
            else:
                self._living[key] = record
                end = max(at, node.requested_at, node.started_at or 0.0)
                self._lose(record, NodeEnd.RESTARTED, end)

    def advance(self, moment: float) -> None:
        """Carry out everything that is due by ``moment``, each event at its own time."""
        while (due := self.next_moment()) <= moment:
            self._step(due)
        self._step(max(moment, self.at))

    def next_moment(self) -> float:
        """Return when the next event may happen without a command; infinite if none will."""
        if not self._living:
            return math.inf
        ahead = self.replay.slots_since(self.at + self._notice_s) + 1
        moments = [self.replay.begins(ahead) - self._notice_s]
        for record in self._living.values():
            if record.node.state is NodeState.REQUESTED:
                moments.append(record.grant_at)
            moments.append(record.taken_at)
        soonest = min(moments)
        for job in self.limits:
            reached = self._reached(job, soonest + self._notice_s)
            if reached is not None:
                soonest = min(soonest, reached - self._notice_s + LATE)
        # A moment in the past would be returned again and again.
        return max(soonest, math.nextafter(self.at, math.inf))

    def apply(self, command: Command, moment: float) -> None:
        """Advance to ``moment`` and carry out a command; repeating it has no further effect."""
        self.advance(moment)
        match command:
            case Launch():
                self._launch(command)
            case Release():
                self._release(command)
            case Limit():
                if command.dollars is None:
                    self.limits.pop(command.job, None)
                else:
                    self.limits[command.job] = command.dollars
        self._step(self.at)

    def take(self, job: str, node: str, moment: float, end: NodeEnd, *, notice: bool) -> None:
        """Take a node at ``moment``; nothing happens if it has already ended."""
        record = self._living.get((job, node))
        if record is not None:
            self._doom(record, moment, end, notice=notice)
            self._step(self.at)

    def worker_ended(self, job: str, node: str, code: int) -> None:
        """End a node whose worker has ended for good with exit status ``code``."""
        record = self._living.get((job, node))
        if record is None:
            return
        if (end := end_of_exit(code)) is not None:
            self._end(record, NodeState.RELEASED, end, self.at)
        elif record.node.notice_at is not None:
            self._end(record, NodeState.LOST, record.why, self.at, ", worker left after notice")
        else:
            self._end(record, NodeState.RELEASED, NodeEnd.RELEASED, self.at)

    def report(self, job: str) -> FleetReport:
        """Return all nodes that the job ever had, billed until now."""
        nodes = (record.node for record in self._records.values() if record.node.job == job)
        return FleetReport(at=self.at, nodes=tuple(self._as_billed(node) for node in nodes))

    def living(self) -> list[NodeRecord]:
        """Return the nodes that are requested or running, oldest request first."""
        return list(self._living.values())

    def find(self, node: str) -> Node | None:
        """Return the latest node of that name in any job; None if there is none."""
        found = [record.node for (_, name), record in self._records.items() if name == node]
        latest = max(found, key=lambda one: (one.state.alive, one.requested_at), default=None)
        return None if latest is None else self._as_billed(latest)

    def spent(self) -> float:
        """Return the bill of all jobs in dollars."""
        return sum(self._as_billed(record.node).billed for record in self._records.values())

    def _step(self, moment: float) -> None:
        """Move to ``moment``, and grant and take the nodes for which that is due."""
        self._before, self.at = self.at, moment
        self._foresee_market()
        self._foresee_limits()
        for record in self.living():
            if record.taken_at <= moment:
                self._lose(record, record.why, record.taken_at)
            elif record.node.state is NodeState.REQUESTED and record.grant_at <= moment:
                self._grant(record)

    def _launch(self, launch: Launch) -> None:
        key = (launch.job, launch.node)
        if key in self._records:
            return
        node = Node(
            id=launch.node,
            job=launch.job,
            kind=launch.kind,
            state=NodeState.REQUESTED,
            requested_at=self.at,
            gpus=launch.task.gpus,
        )
        record = self._records[key] = self._living[key] = NodeRecord(node, launch)
        refusal = (NodeEnd.CANCELLED, "") if key in self.cancelled else self._refusal(launch)
        if refusal is not None:
            end, details = refusal
            self._end(record, NodeState.REFUSED, end, self.at, details)
            return
        # Random draws depend on the node's name only, so the order of calls does not matter.
        draw = np.random.default_rng([self.settings.seed, crc32("/".join(key).encode())])
        delay = self.settings.grant_delay_s * self.settings.speed * draw.uniform(0.5, 1.5)
        record.grant_at = math.inf if self.settings.faults.never_grant else self.at + delay
        record.silent = bool(draw.uniform() < self.settings.silent_share)
        self.changed[key] = record

    def _refusal(self, launch: Launch) -> tuple[NodeEnd, str] | None:
        """Return why the node is refused, with figures for the reason; None if it is granted."""
        if self.refusing:
            return NodeEnd.CAPACITY, ""
        dollars = self.limits.get(launch.job)
        if dollars is not None and self._bill(launch.job, self.at) >= dollars - 2 * SPARE:
            return NodeEnd.LIMIT, f" (the limit of ${dollars:g} is spent)"
        own = launch.task.gpus
        held = _gpus(one for one in self._living.values() if one.node.kind is launch.kind) - own
        number = self.replay.slots_since(self.at)
        if launch.kind is NodeKind.ON_DEMAND:
            capacity = self.settings.on_demand_capacity
        else:
            capacity = self.replay.slot(number).available
            highest = self._max_price(launch)
            price = self.replay.hourly(NodeKind.SPOT, number)
            if price > highest:
                return NodeEnd.PRICE, f" (${price:g} per GPU-hour is above ${highest:g})"
        if held + own > capacity:
            return NodeEnd.CAPACITY, f" ({held} of {capacity} {launch.kind} GPUs are held)"
        return None

    def _release(self, release: Release) -> None:
        key = (release.job, release.node)
        if key not in self._records:
            self.cancelled.add(key)
        elif (record := self._living.get(key)) is not None:
            self._end(record, NodeState.RELEASED, NodeEnd.RELEASED, self.at)

    def _grant(self, record: NodeRecord) -> None:
        known = record.taken_at < math.inf and not record.silent and self._notice_s > 0
        record.node = msgspec.structs.replace(
            record.node,
            state=NodeState.RUNNING,
            started_at=record.grant_at,
            notice_at=record.taken_at if known else None,
        )
        self._note(record)

    def _foresee_market(self) -> None:
        """Mark the spot nodes that the market takes from now until the end of the notice time."""
        spot = [record for record in self.living() if record.node.kind is NodeKind.SPOT]
        if not spot:
            return
        first = self.replay.slots_since(self.at)
        last = self.replay.slots_since(self.at + self._notice_s)
        for number in range(first, last + 1):
            moment = max(self.at, self.replay.begins(number))
            price = self.replay.hourly(NodeKind.SPOT, number)
            for record in spot:
                if record.stays_after(moment) and price > self._max_price(record.launch):
                    self._doom(record, moment, NodeEnd.PRICE, notice=not record.silent)
            staying = [record for record in spot if record.stays_after(moment)]
            surplus = _gpus(staying) - self.replay.slot(number).available
            while surplus > 0:
                record = staying.pop()
                surplus -= record.node.gpus
                self._doom(record, moment, NodeEnd.CAPACITY, notice=not record.silent)

    def _foresee_limits(self) -> None:
        """Mark the nodes of jobs whose bill reaches its limit within the notice time."""
        for job in self.limits:
            reached = self._reached(job, self.at + self._notice_s)
            if reached is not None:
                for record in self._of(job):
                    if record.stays_after(reached):
                        self._doom(record, reached, NodeEnd.LIMIT, notice=True)

    def _doom(self, record: NodeRecord, moment: float, end: NodeEnd, *, notice: bool) -> None:
        """Mark a node to be taken at ``moment``, unless it will be taken earlier."""
        if moment >= record.taken_at:
            return
        record.taken_at, record.why = moment, end
        if notice and moment > self.at and record.node.state is NodeState.RUNNING:
            record.node = msgspec.structs.replace(record.node, notice_at=moment)
            self._note(record)

    def _reached(self, job: str, until: float) -> float | None:
        """Return the last moment at which the job's bill is within its limit.

        None if the bill is still within the limit at ``until``. The result is never earlier than
        the previous step.
        """
        allowed = self.limits[job] - SPARE
        if not any(self._of(job)) or self._bill(job, until) <= allowed:
            return None
        within, beyond = self._before, until
        if self._bill(job, within) > allowed:
            return within
        while (middle := (within + beyond) / 2) not in {within, beyond}:
            if self._bill(job, middle) <= allowed:
                within = middle
            else:
                beyond = middle
        return within

    def _bill(self, job: str, moment: float) -> float:
        """Return what the job will have cost by ``moment`` if nothing else happens, in dollars."""
        total = self._settled[job]
        for record in self._of(job):
            started = record.node.started_at
            start = record.grant_at if started is None else started
            stop = min(moment, record.taken_at)
            if start < stop:
                total += self._cost(record.node, start, stop)
        return total

    def _lose(self, record: NodeRecord, end: NodeEnd, moment: float) -> None:
        running = record.node.state is NodeState.RUNNING
        self._end(record, NodeState.LOST if running else NodeState.REFUSED, end, moment)

    def _end(
        self, record: NodeRecord, state: NodeState, end: NodeEnd, moment: float, details: str = ""
    ) -> None:
        node = record.node
        start = node.started_at
        paid = 0.0 if start is None else self._cost(node, start, moment)
        record.node = msgspec.structs.replace(
            node,
            state=state,
            ended_at=moment,
            billed=max(node.billed, paid),
            reason=f"{end}{details}",
            end=end,
        )
        self._living.pop((node.job, node.id), None)
        self._settled[node.job] += record.node.billed
        self._note(record)

    def _as_billed(self, node: Node) -> Node:
        if node.state is not NodeState.RUNNING or node.started_at is None:
            return node
        paid = self._cost(node, node.started_at, self.at)
        return msgspec.structs.replace(node, billed=max(node.billed, paid))

    def _cost(self, node: Node, start: float, stop: float) -> float:
        """Return what all GPUs of a node cost from ``start`` to ``stop``, in dollars."""
        return node.gpus * self.replay.cost(node.kind, start, stop)

    def _max_price(self, launch: Launch | None) -> float:
        own = None if launch is None else launch.max_price
        highest = self.settings.max_price if own is None else own
        return math.inf if highest is None else highest

    def _of(self, job: str) -> Iterator[NodeRecord]:
        return (record for record in self.living() if record.node.job == job)

    def _note(self, record: NodeRecord) -> None:
        self.changed[record.node.job, record.node.id] = record


def _gpus(records: Iterable[NodeRecord]) -> int:
    return sum(record.node.gpus for record in records)
