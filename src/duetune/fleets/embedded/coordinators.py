"""One coordinator for every job whose members form a group, as long as it has nodes."""

from __future__ import annotations

import math
import socket
import time
from typing import TYPE_CHECKING

import msgspec

from duetune.core.fleet import Launch
from duetune.fleets.embedded.worker_environment import coordinator_of

if TYPE_CHECKING:
    from duetune.fleets.embedded.crew import Crew

RESTART_S = 0.5


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
            self._all[job].start_at = time.monotonic() + RESTART_S

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
