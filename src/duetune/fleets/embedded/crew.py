"""The processes behind the nodes: agents that are started, asked to leave, and ended."""

from __future__ import annotations

import contextlib
import math
import selectors
import socket
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from duetune.core.fleet import Launch
from duetune.fleets.embedded import processes
from duetune.fleets.embedded.node_assignment import Assignment, Gone, Leave, coordinator_of
from duetune.fleets.embedded.starter import Started, Warmth

if TYPE_CHECKING:
    from collections.abc import Callable

    from duetune.fleets.embedded.starter import Starter

Key = tuple[str, str]
"""Job and node; a job's coordinator has the empty name."""

# A worker waits this long for the heavy libraries to be loaded once for all, then loads its own.
WARM_PATIENCE_S = 60.0
RETRY_S = 0.2
COORDINATOR_PAUSE_S = 0.5


class NodeProcess(msgspec.Struct):
    """An agent, or the wish for one. Times are those of the monotonic clock."""

    assignment: Assignment
    cold_at: float
    started: Started | None = None
    end_at: float = math.inf


class Crew:
    """For the provider's main thread only. ``gone(key, code)`` is called when an agent's work is
    over; without a code the agent itself died.
    """

    def __init__(
        self,
        starter: Starter,
        selector: selectors.BaseSelector,
        gone: Callable[[Key, int | None], None],
    ) -> None:
        self._starter = starter
        self._selector = selector
        self._gone = gone
        self._members: dict[Key, NodeProcess] = {}
        self._unfinished: set[int] = set()
        self._sweep = False

    def __contains__(self, key: Key) -> bool:
        return key in self._members

    def members(self) -> list[Key]:
        return list(self._members)

    def start(self, key: Key, assignment: Assignment) -> None:
        now = time.monotonic()
        self._members[key] = NodeProcess(assignment, cold_at=now + WARM_PATIENCE_S)
        self._begin(key)

    def leave(self, key: Key, within_s: float) -> None:
        """Asks an agent to end its worker; what is still there after ``within_s`` is ended."""
        member = self._members.get(key)
        if member is None:
            return
        if member.started is None or within_s <= 0 or not member.started.channel.send(Leave()):
            self.end(key)
        else:
            member.end_at = min(member.end_at, time.monotonic() + within_s)

    def notify(self, key: Key) -> None:
        """The worker is asked to leave; when its node goes is for others to say."""
        member = self._members.get(key)
        if member is not None and member.started is not None:
            member.started.channel.send(Leave())

    def end(self, key: Key) -> None:
        """The agent and everything it has started, at once."""
        member = self._members.pop(key, None)
        if member is None or member.started is None:
            return
        channel, pid, process = member.started
        self._selector.unregister(channel)
        if not processes.end_family(pid):
            self._unfinished.add(pid)
        channel.close()
        if process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(1.0)
        self._sweep = True

    def tend(self) -> None:
        """Starts, ends and sweeps what is due."""
        now = time.monotonic()
        for key, member in list(self._members.items()):
            if member.started is None:
                self._begin(key)
            elif member.end_at <= now:
                self.end(key)
        self._unfinished = {pid for pid in self._unfinished if not processes.end_family(pid)}
        if self._sweep:
            known = {each.started.pid for each in self._members.values() if each.started}
            self._sweep = processes.end_strays(known | self._starter.pids())

    def next_moment(self) -> float:
        """When ``tend`` has something to do."""
        moments = [each.end_at for each in self._members.values()]
        moments += [each.cold_at for each in self._members.values() if each.started is None]
        if self._unfinished or self._sweep:
            moments.append(time.monotonic() + RETRY_S)
        return min(moments, default=math.inf)

    def _begin(self, key: Key) -> None:
        member = self._members[key]
        waits = member.assignment.module and self._starter.warmth is Warmth.STARTING
        if waits and time.monotonic() < member.cold_at:
            return
        try:
            for file in (member.assignment.log, member.assignment.heartbeat):
                Path(file).parent.mkdir(parents=True, exist_ok=True)
            member.started = self._starter.start(member.assignment)
        except OSError:
            del self._members[key]
            self._gone(key, None)
            return
        self._selector.register(
            member.started.channel, selectors.EVENT_READ, lambda: self._heard(key)
        )

    def _heard(self, key: Key) -> None:
        member = self._members.get(key)
        if member is None or member.started is None:
            return
        messages = member.started.channel.receive()
        if messages is None:
            self.end(key)
            self._gone(key, None)
            return
        for message in messages:
            if isinstance(message, Gone):
                self.end(key)
                self._gone(key, message.code)


class Coordinator(msgspec.Struct):
    """``port`` stays the same for the life of the job's group. Times are monotonic."""

    launch: Launch
    port: int
    start_at: float = 0.0
    end_at: float = math.inf


class Coordinators:
    """For the provider's main thread only."""

    def __init__(self, crew: Crew, linger_s: float) -> None:
        self._crew = crew
        self._linger_s = linger_s
        self._all: dict[str, Coordinator] = {}

    def address(self, launch: Launch) -> str:
        """Where the coordinator of the node's job listens, or is about to."""
        found = self._all.get(launch.job)
        if found is None:
            found = self._all[launch.job] = Coordinator(launch, free_port())
            self._start(found)
        found.end_at = math.inf
        return f"http://127.0.0.1:{found.port}"

    def died(self, job: str) -> None:
        """Its agent is gone; another comes on the same port."""
        if job in self._all:
            self._all[job].start_at = time.monotonic() + COORDINATOR_PAUSE_S

    def tend(self, living: set[str]) -> None:
        """``living`` are the jobs that have nodes."""
        now = time.monotonic()
        for job, each in list(self._all.items()):
            if job in living:
                each.end_at = math.inf
            elif each.end_at == math.inf:
                each.end_at = now + self._linger_s
            if each.end_at <= now:
                self._crew.end((job, ""))
                del self._all[job]
            elif (job, "") not in self._crew and each.start_at <= now:
                self._start(each)

    def next_moment(self) -> float:
        absent = [each.start_at for job, each in self._all.items() if (job, "") not in self._crew]
        return min([*absent, *(each.end_at for each in self._all.values())], default=math.inf)

    def _start(self, each: Coordinator) -> None:
        self._crew.start((each.launch.job, ""), coordinator_of(each.launch, each.port))


def free_port() -> int:
    """One that nobody listens on now, on loopback."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
