"""The provider's child processes: an agent for each node and a coordinator for each job.

``starter`` creates the processes; ``processes`` kills them with all their descendants. Everything
here runs in the provider's main thread.
"""

from __future__ import annotations

import contextlib
import math
import selectors
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from duetune.core.fleet import Launch
from duetune.fleets.embedded import processes
from duetune.fleets.embedded.node_assignment import (
    Assignment,
    Gone,
    JobSecrets,
    Leave,
    coordinator_of,
)
from duetune.fleets.embedded.starter import Started, Warmth

if TYPE_CHECKING:
    from collections.abc import Callable

    from duetune.fleets.embedded.starter import Starter

Key = tuple[str, str]
"""Job and node. The coordinator of a job has the empty node name."""

# A worker waits this long for the preloaded libraries; after that it starts and loads its own.
WARM_PATIENCE_S = 60.0
RETRY_S = 0.2
COORDINATOR_PAUSE_S = 0.5


class NodeProcess(msgspec.Struct):
    """An agent that runs or will be started. Times are of the monotonic clock.

    - ``cold_at``: from then on the agent is started even without preloaded libraries.
    - ``end_at``: when the agent is killed.
    """

    assignment: Assignment
    cold_at: float
    started: Started | None = None
    end_at: float = math.inf


class Crew:
    """All agents of a provider.

    ``gone(key, code)`` is called when an agent's work is over; ``code`` is None if the agent died.
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
        """Return the keys of all agents."""
        return list(self._members)

    def start(self, key: Key, assignment: Assignment) -> None:
        """Start an agent, now or when the preloaded libraries are ready."""
        now = time.monotonic()
        self._members[key] = NodeProcess(assignment, cold_at=now + WARM_PATIENCE_S)
        self._begin(key)

    def leave(self, key: Key, within_s: float) -> None:
        """Ask an agent to end its worker; kill both if they still run after ``within_s``."""
        member = self._members.get(key)
        if member is None:
            return
        if member.started is None or within_s <= 0 or not member.started.channel.send(Leave()):
            self.end(key)
        else:
            member.end_at = min(member.end_at, time.monotonic() + within_s)

    def notify(self, key: Key) -> None:
        """Ask a worker to leave, without a time limit: the cloud takes the node when it is due."""
        member = self._members.get(key)
        if member is not None and member.started is not None:
            member.started.channel.send(Leave())

    def end(self, key: Key) -> None:
        """Kill an agent and everything it has started, at once."""
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
        """Start and kill the processes that are due."""
        now = time.monotonic()
        for key, member in list(self._members.items()):
            if member.started is None:
                self._begin(key)
            elif member.end_at <= now:
                self.end(key)
        self._unfinished = {pid for pid in self._unfinished if not processes.end_family(pid)}
        if self._sweep:
            known = {member.started.pid for member in self._members.values() if member.started}
            self._sweep = processes.end_strays(known | self._starter.pids())

    def next_moment(self) -> float:
        """Return when ``tend`` has something to do, by the monotonic clock."""
        members = self._members.values()
        moments = [member.end_at for member in members]
        moments += [member.cold_at for member in members if member.started is None]
        if self._unfinished or self._sweep:
            moments.append(time.monotonic() + RETRY_S)
        return min(moments, default=math.inf)

    def _begin(self, key: Key) -> None:
        """Start the agent's process, unless it should wait for the preloaded libraries."""
        member = self._members[key]
        waits = member.assignment.module and self._starter.warmth is Warmth.STARTING
        if waits and time.monotonic() < member.cold_at:
            return
        try:
            for file in (member.assignment.log, member.assignment.heartbeat):
                Path(file).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            member.started = self._starter.start(member.assignment)
        except OSError:
            del self._members[key]
            self._gone(key, None)
            return
        self._selector.register(
            member.started.channel, selectors.EVENT_READ, lambda: self._read_channel(key)
        )

    def _read_channel(self, key: Key) -> None:
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


class JobCoordinator(msgspec.Struct):
    """A job's coordinator. Times are monotonic."""

    launch: Launch
    secrets: JobSecrets
    start_at: float = 0.0
    end_at: float = math.inf


class Coordinators:
    """One coordinator for every job whose members form a group, as long as the job has nodes."""

    def __init__(self, crew: Crew, linger_s: float) -> None:
        self._crew = crew
        self._linger_s = linger_s
        self._all: dict[str, JobCoordinator] = {}

    def ensure(self, launch: Launch, secrets: JobSecrets) -> None:
        """Start the job's coordinator unless it has one. Called before a node of it starts."""
        found = self._all.get(launch.job)
        if found is None:
            found = self._all[launch.job] = JobCoordinator(launch, secrets)
            self._start(found)
        found.end_at = math.inf

    def died(self, job: str) -> None:
        """Schedule a restart. Called when the coordinator's agent has died."""
        if job in self._all:
            self._all[job].start_at = time.monotonic() + COORDINATOR_PAUSE_S

    def tend(self, living: set[str]) -> None:
        """Start and end the coordinators that are due; ``living`` are the jobs with nodes."""
        now = time.monotonic()
        for job, coordinator in list(self._all.items()):
            if job in living:
                coordinator.end_at = math.inf
            elif coordinator.end_at == math.inf:
                coordinator.end_at = now + self._linger_s
            if coordinator.end_at <= now:
                self._crew.end((job, ""))
                del self._all[job]
            elif (job, "") not in self._crew and coordinator.start_at <= now:
                self._start(coordinator)

    def next_moment(self) -> float:
        """Return when ``tend`` has something to do, by the monotonic clock."""
        absent = [one.start_at for job, one in self._all.items() if (job, "") not in self._crew]
        return min([*absent, *(one.end_at for one in self._all.values())], default=math.inf)

    def _start(self, coordinator: JobCoordinator) -> None:
        launch = coordinator.launch
        self._crew.start((launch.job, ""), coordinator_of(launch, coordinator.secrets))
