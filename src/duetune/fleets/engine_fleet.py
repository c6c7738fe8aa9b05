"""A ``Fleet`` on an engine that others run: the ledger, and a driver that follows it.

The ledger says which nodes should run. Every look at the engine compares: what is missing is
started again, what should be gone is stopped again. So it does not matter which call was lost,
repeated or carried out late. A node is only believed lost if the engine has not listed it for a
while and its own reports have stopped too.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import math
import re
from typing import TYPE_CHECKING

import msgspec

from duetune.core.fleet import (
    FleetReport,
    Launch,
    Limit,
    Node,
    NodeEnd,
    NodeKind,
    NodeState,
    Release,
)
from duetune.errors import FleetError
from duetune.fleets.driver import EngineState
from duetune.fleets.node_ends import NodeOver, ended, granted
from duetune.fleets.node_ledger import LedgerEntry

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from duetune.core.fleet import Command
    from duetune.core.ports import Clock
    from duetune.fleets.driver import Driver, EngineNode
    from duetune.fleets.engine_ports import NodeFiles, Prices
    from duetune.fleets.node_files import NodeReport
    from duetune.fleets.node_ledger import NodeLedger

    Key = tuple[str, str]

log = logging.getLogger(__name__)

SPARE = 1e-6
"""Margin below a limit in dollars, because sums of many small charges are not exact."""
_LONGEST_NAME = 63


class EngineTimes(msgspec.Struct, frozen=True, kw_only=True):
    """Times of a fleet in seconds.

    - ``look_s``: the least time between two looks at the engine.
    - ``withdraw_s``: a request that is not granted in this time is withdrawn.
    - ``missing_s``: a node that the engine has not listed for this long is lost.
    - ``silent_s``: a node that has reported within this time lives, whatever the engine says.
    - ``lease_s``: nodes leave if no controller has renewed their lease for this long.
    """

    look_s: float = 2.0
    withdraw_s: float = 300.0
    missing_s: float = 10.0
    silent_s: float = 60.0
    lease_s: float = 1800.0


class EngineFleet:
    """The ``Fleet`` of an engine.

    - ``prefix``: begins the names of all its nodes; a node with this prefix that the ledger does
      not know is stopped.
    - ``looks``: whether ``observe`` looks at the engine. Only the controller does; others read what
      it has written to the ledger.
    """

    def __init__(
        self,
        driver: Driver,
        ledger: NodeLedger,
        files: NodeFiles,
        prices: Prices,
        clock: Clock,
        *,
        prefix: str,
        times: EngineTimes | None = None,
        looks: bool = True,
    ) -> None:
        self._driver = driver
        self._ledger = ledger
        self._files = files
        self._prices = prices
        self._clock = clock
        self._prefix = prefix
        self._times = times or EngineTimes()
        self._looked_at = -math.inf if looks else math.inf

    def apply(self, commands: Sequence[Command]) -> None:
        """Write the commands to the ledger and carry them out as far as the engine answers.

        What the engine misses now is carried out at a later look.
        """
        for command in commands:
            match command:
                case Launch():
                    self._launch(command)
                case Release():
                    self._release(command)
                case Limit():
                    self._ledger.set_limit(command)

    def observe(self, job: str) -> FleetReport:
        """Return all nodes that the job ever had, after a look at the engine if one is due."""
        now = self._clock.now()
        if now - self._looked_at >= self._times.look_s:
            self.look()
        # What was released before it was launched is not a node yet.
        entries = (entry for entry in self._ledger.of_job(job) if entry.launch is not None)
        return FleetReport(at=now, nodes=tuple(entry.node for entry in entries))

    def unfinished(self) -> bool:
        """Look at the engine, and return whether it may still run nodes that were given back."""
        try:
            self.look()
        except FleetError as error:
            log.warning("nodes may still run: %s", error)
            return True
        return bool(self._ledger.open())

    def look(self) -> None:
        """Compare the ledger with the engine, and start, stop, bill and end nodes accordingly."""
        found = {each.name: each for each in self._driver.list()}
        now = self._looked_at = self._clock.now()
        before = {(entry.node.job, entry.node.id): entry for entry in self._ledger.open()}
        after = dict(before)
        for key, entry in before.items():
            after[key] = self._compared(entry, found.get(entry.name), now)
        for job in {job for job, _ in after}:
            self._keep_limit(job, before, after, now)
        written = self._ledger.write(entry for key, entry in after.items() if entry != before[key])
        after |= {(entry.node.job, entry.node.id): entry for entry in written}
        self._act(after.values(), found, now)

    def _act(
        self, entries: Iterable[LedgerEntry], found: dict[str, EngineNode], now: float
    ) -> None:
        """Start what is wanted and not there; stop what is there and not wanted."""
        wanted = {}
        for entry in entries:
            if entry.node.state.alive:
                wanted[entry.name] = entry
            elif entry.launch is not None:
                self._files.withdraw(entry.launch, entry.name)
        for name, entry in wanted.items():
            if name not in found and not entry.seen:
                self._start(entry, now)
        for each in found.values():
            if each.state is not EngineState.ENDED and each.name not in wanted:
                with _later(f"stop {each.name}"):
                    self._driver.stop(each.name)

    def _launch(self, launch: Launch) -> None:
        """Write the request of a new node, then call the engine."""
        known = {entry.node.id: entry for entry in self._ledger.of_job(launch.job)}
        now = self._clock.now()
        if launch.node in known:
            self._refuse_cancelled(known[launch.node], launch, now)
            return
        node = Node(
            id=launch.node,
            job=launch.job,
            kind=launch.kind,
            state=NodeState.REQUESTED,
            requested_at=now,
            gpus=launch.task.gpus,
        )
        entry = LedgerEntry(
            node=node,
            name=engine_name(self._prefix, launch),
            launch=launch,
            withdraw_at=now + self._times.withdraw_s,
        )
        limit = self._ledger.limit(launch.job)
        if limit is not None and _bill(known.values()) >= limit - SPARE:
            entry = ended(entry, NodeState.REFUSED, NodeEnd.LIMIT, now, gone=True)
        (entry,) = self._ledger.write([entry])
        if entry.node.state.alive:
            self._start(entry, now)

    def _refuse_cancelled(self, entry: LedgerEntry, launch: Launch, now: float) -> None:
        """Refuse a node that was released before it was launched."""
        if entry.launch is None and entry.node.end is not NodeEnd.CANCELLED:
            node = msgspec.structs.replace(entry.node, kind=launch.kind, requested_at=now)
            cancelled = msgspec.structs.replace(entry, node=node, launch=launch)
            self._ledger.write(
                [ended(cancelled, NodeState.REFUSED, NodeEnd.CANCELLED, now, gone=True)]
            )

    def _release(self, command: Release) -> None:
        now = self._clock.now()
        entries = {entry.node.id: entry for entry in self._ledger.of_job(command.job)}
        entry = entries.get(command.node)
        if entry is None:
            node = Node(command.node, command.job, NodeKind.SPOT, NodeState.REFUSED, now)
            self._ledger.write([LedgerEntry(node=node, gone=True)])
        elif entry.node.state.alive:
            entry = self._billed(entry, now)
            self._ledger.write([ended(entry, NodeState.RELEASED, NodeEnd.RELEASED, now)])
            if entry.launch is not None:
                self._files.withdraw(entry.launch, entry.name)
            with _later(f"stop {entry.name}"):
                self._driver.stop(entry.name)

    def _start(self, entry: LedgerEntry, now: float) -> None:
        """Ask the engine for a node; a refusal for good ends the node."""
        if entry.launch is None or entry.withdraw_at is None:
            return
        try:
            self._driver.start(self._files.order(entry.launch, entry.name, entry.withdraw_at))
        except FleetError as error:
            if error.retry:
                log.warning("node %s will be started later: %s", entry.name, error)
                return
            reason = f"{NodeEnd.CAPACITY} ({error})"
            self._ledger.write(
                [ended(entry, NodeState.REFUSED, NodeEnd.CAPACITY, now, reason, gone=True)]
            )

    def _compared(self, entry: LedgerEntry, there: EngineNode | None, now: float) -> LedgerEntry:
        """Return the entry after a look; ``there`` is the node as the engine lists it."""
        over = there is None or there.state is EngineState.ENDED
        if not entry.node.state.alive:
            # It was stopped; once the engine has ended it, nothing is left to do.
            return msgspec.structs.replace(entry, gone=True) if over else entry
        if there is None:
            return self._missing(entry, now)
        if over and not self._settled(entry):
            return entry
        entry = msgspec.structs.replace(entry, seen=True, missing_since=None)
        report = None if entry.launch is None else self._files.report(entry.launch, entry.name)
        if there.started_at is not None or there.state is EngineState.RUNNING:
            entry = granted(entry, there.started_at or now)
        notice_at = there.notice_at or (report.notice_at if report is not None else None)
        if notice_at is not None and entry.node.notice_at is None:
            node = msgspec.structs.replace(entry.node, notice_at=notice_at)
            entry = msgspec.structs.replace(entry, node=node)
        if over or (report is not None and report.code is not None):
            return self._over(entry, there, report, now)
        late = entry.withdraw_at is not None and now >= entry.withdraw_at
        if there.state is EngineState.WAITING and late and entry.node.started_at is None:
            reason = f"{NodeEnd.CAPACITY} (not granted within {self._times.withdraw_s:.0f} s)"
            return ended(entry, NodeState.REFUSED, NodeEnd.CAPACITY, now, reason)
        return self._billed(entry, now)

    def _missing(self, entry: LedgerEntry, now: float) -> LedgerEntry:
        """Return the entry of a node that should be there and that the engine does not list."""
        late = entry.withdraw_at is not None and now >= entry.withdraw_at
        if entry.node.started_at is None:
            if late:
                reason = f"{NodeEnd.CAPACITY} (the engine did not take the request)"
                return ended(entry, NodeState.REFUSED, NodeEnd.CAPACITY, now, reason, gone=True)
            # The engine forgot it, or never heard of it: it is asked again.
            return msgspec.structs.replace(entry, seen=False)
        report = None if entry.launch is None else self._files.report(entry.launch, entry.name)
        if report is not None and report.code is not None:
            return self._over(entry, None, report, now)
        since = entry.missing_since
        if since is None:
            return msgspec.structs.replace(self._billed(entry, now), missing_since=now)
        heard = report is not None and now - report.at < self._times.silent_s
        if now - since < self._times.missing_s or heard:
            # It is billed when it is found again: a bill cannot be lowered.
            return entry
        if not self._settled(entry):
            return entry
        reason = f"{NodeEnd.DIED} (the engine no longer knows it)"
        return ended(entry, NodeState.LOST, NodeEnd.DIED, since, reason, gone=True)

    def _settled(self, entry: LedgerEntry) -> bool:
        """Return whether a node that the engine has ended will say no more."""
        return entry.launch is None or self._files.settled(entry.launch, entry.name)

    def _over(
        self,
        entry: LedgerEntry,
        there: EngineNode | None,
        report: NodeReport | None,
        now: float,
    ) -> LedgerEntry:
        """Return the entry of a node that the engine has ended, or that says that it is done."""
        over = NodeOver.of(there, report, now)
        # A bill cannot be lowered, so the end is not before what is billed.
        at = max(over.at, entry.node.requested_at, entry.billed_until or 0.0)
        if over.started_at is not None:
            # A process that reported has run, even if no look ever found it running.
            entry = granted(entry, min(over.started_at, at))
        entry = self._billed(entry, max(at, entry.node.started_at or 0.0))
        return over.ended(entry, max(at, entry.node.started_at or 0.0))

    def _billed(self, entry: LedgerEntry, until: float) -> LedgerEntry:
        """Return the entry with a bill until this moment."""
        node = entry.node
        if node.started_at is None or node.state is not NodeState.RUNNING:
            return entry
        since = node.started_at if entry.billed_until is None else entry.billed_until
        if until <= since:
            return entry
        dollars = node.gpus * self._prices.dollars(node.kind, since, until)
        node = msgspec.structs.replace(node, billed=node.billed + dollars)
        return msgspec.structs.replace(entry, node=node, billed_until=until)

    def _keep_limit(
        self,
        job: str,
        before: Mapping[Key, LedgerEntry],
        entries: dict[Key, LedgerEntry],
        now: float,
    ) -> None:
        """Renew the lease of a job's nodes; take them if the bill is about to reach the limit."""
        alive = {key: each for key, each in entries.items() if key[0] == job and _runs(each)}
        if not alive:
            return
        until = now + self._times.lease_s
        limit = self._ledger.limit(job)
        if limit is not None:
            rate = sum(
                each.node.gpus * self._prices.rate(each.node.kind) for each in alive.values()
            )
            current = {each.node.id: each for each in self._ledger.of_job(job)}
            current |= {each.node.id: each for each in entries.values() if each.node.job == job}
            left = limit - SPARE - _bill(current.values())
            until = min(until, now + (left / rate if rate > 0 else math.inf))
            if until <= now + self._times.look_s:
                new = sum(each.node.billed - before[key].node.billed for key, each in alive.items())
                share = 0.0 if left >= 0 or new <= 0 else min(1.0, -left / new)
                for key, entry in alive.items():
                    capped = _lowered(entry, before[key], share)
                    entries[key] = ended(capped, NodeState.LOST, NodeEnd.LIMIT, now)
        for entry in alive.values():
            if entry.launch is not None:
                self._files.lease(entry.launch, max(now, until))
                break


def engine_name(prefix: str, launch: Launch) -> str:
    """Return the name of a node in its engine. No other node ever has it."""
    digest = hashlib.sha256(f"{launch.job}\n{launch.node}\n{launch.epoch}".encode()).hexdigest()[:8]
    readable = re.sub(r"[^a-z0-9]+", "-", launch.node.lower()).strip("-")
    room = _LONGEST_NAME - len(prefix) - len(digest) - 2
    return f"{prefix}-{readable[-room:].strip('-')}-{digest}"


def _runs(entry: LedgerEntry) -> bool:
    return entry.node.state.alive and entry.launch is not None


def _bill(entries: Iterable[LedgerEntry]) -> float:
    return sum(entry.node.billed for entry in entries)


def _lowered(entry: LedgerEntry, before: LedgerEntry, share: float) -> LedgerEntry:
    """Return an entry without this share of what was billed since the last look.

    A node's own process leaves when its lease ends, so nothing was used beyond the limit.
    """
    billed = entry.node.billed - share * (entry.node.billed - before.node.billed)
    node = msgspec.structs.replace(entry.node, billed=billed)
    return msgspec.structs.replace(entry, node=node)


@contextlib.contextmanager
def _later(what: str) -> Iterator[None]:
    """Leave a call that the engine did not answer to the next look."""
    try:
        yield
    except FleetError as error:
        log.warning("will %s later: %s", what, error)
