"""The provider's main thread: starts and ends processes as the cloud grants and takes nodes.

API calls arrive on other threads (``api``, ``desk``) and wake this one. Otherwise the main thread
sleeps until something is due. ``provider_service`` puts the parts together.
"""

from __future__ import annotations

import contextlib
import hmac
import logging
import os
import secrets
import selectors
import signal
import socket
import time
from typing import TYPE_CHECKING

import msgspec

from duetune.core.fleet import Launch, NodeEnd, NodeKind, NodeState
from duetune.errors import FleetError
from duetune.files import write_whole
from duetune.fleets.embedded.crew import Coordinators, Crew
from duetune.fleets.embedded.desk import Desk
from duetune.fleets.embedded.node_assignment import (
    Devices,
    JobSecrets,
    assignment_of,
    notice_file,
    visible_devices,
)
from duetune.fleets.embedded.provider_messages import FleetStatus, NoticeDocument
from duetune.fleets.embedded.starter import Starter
from duetune.wall_clock import StepWatch, wall_now

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from duetune.fleets.embedded.bill_ledger import Ledger, Opened
    from duetune.fleets.embedded.cloud import Cloud, Key, NodeRecord

ALIVE_NOTE_S = 1.0
DISK_RETRY_S = 1.0
log = logging.getLogger(__name__)


class Provider:
    """A provider from its start to its end. Set ``url`` before calling ``run``."""

    def __init__(self, folder: Path, opened: Opened, cloud: Cloud, ledger: Ledger) -> None:
        self.url = ""
        self.token = secrets.token_urlsafe(24)
        self.desk = Desk(cloud, ledger, opened.anchor, self.wake)
        self._folder = folder
        self._market = opened.market
        self._settings = settings = opened.settings
        self._selector = selectors.DefaultSelector()
        self._woken, self._waker = socket.socketpair()
        self._woken.setblocking(False)
        self._waker.setblocking(False)
        self._selector.register(self._woken, selectors.EVENT_READ, self._drain)
        self._starter = Starter(settings.preload, self._selector)
        self._crew = Crew(self._starter, self._selector, self._gone)
        self._coordinators = Coordinators(self._crew, settings.coordinator_linger_s)
        self._devices = Devices(visible_devices(os.environ))
        self._noticed: set[Key] = set()
        self._started: set[Key] = set()
        self._next_note = 0.0
        self._steps = StepWatch()
        self._stop_requests = 0

    def status(self) -> FleetStatus:
        """Return the status of the whole provider."""
        held = self.desk.held()
        return FleetStatus(
            pid=os.getpid(),
            url=self.url,
            folder=str(self._folder),
            market=self._market,
            report=self.desk.market(),
            spot_held=len(held[NodeKind.SPOT]),
            on_demand_held=len(held[NodeKind.ON_DEMAND]),
            jobs=tuple(sorted({job for jobs in held.values() for job in jobs})),
            spent=self.desk.spent(),
            warm=self._starter.warmth,
            settings=self._settings,
        )

    def wake(self) -> None:
        """Wake the main thread. Any thread may call this."""
        with contextlib.suppress(BlockingIOError):  # A full buffer wakes it as well.
            self._waker.send(b"!")

    def stop(self) -> None:
        """Ask the provider to stop. After a second call, workers get no time to leave."""
        self._stop_requests += 1
        self.wake()

    def job_secrets(self, job: str) -> JobSecrets:
        """Return the secrets of a job, which nobody can tell from those of another job."""
        key = self.token.encode()
        group, calls = (
            hmac.digest(key, f"{use} {job}".encode(), "sha256").hex() for use in ("group", "calls")
        )
        return JobSecrets(group, calls)

    def run(self) -> None:
        """Run the provider until it is asked to stop."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: self.stop())
        signal.set_wakeup_fd(self._waker.fileno(), warn_on_full_buffer=False)
        while not self._stop_requests:
            self._turn()
        self._end()

    def _turn(self) -> None:
        wait_s = DISK_RETRY_S
        try:
            for record in self.desk.turn():
                self._carry_out(record)
            wait_s = self._tend()
        except (FleetError, OSError):
            # No process is started or ended before its ledger line is on disk. Try again later.
            log.exception("cannot write to the fleet's folder")
        self._sleep(wait_s)

    def _tend(self) -> float:
        """Do what is due in all parts; return the seconds until something is due again."""
        living = {job for jobs in self.desk.held().values() for job in jobs}
        self._starter.tend()
        self._crew.tend()
        self._coordinators.tend(living)
        if step_s := self._steps.step_s():
            log.warning("the wall clock was set by %+.0f s; the market clock goes on", step_s)
        now = time.monotonic()
        if living and now >= self._next_note:
            self.desk.note_alive()
            self._next_note = now + ALIVE_NOTE_S
        parts = (self._starter, self._crew, self._coordinators)
        soonest = min(part.next_moment() for part in parts)
        if living:
            soonest = min(soonest, self._next_note)
        return max(0.0, min(soonest - now, self.desk.next_event_s()))

    def _sleep(self, seconds: float) -> None:
        for key, _ in self._selector.select(min(seconds, 3600.0)):
            callback: Callable[[], None] = key.data
            callback()

    def _carry_out(self, record: NodeRecord) -> None:
        """Start, notify or end the process of a node that changed."""
        node, launch = record.node, record.launch
        key = (node.job, node.id)
        if node.state is NodeState.RUNNING and launch is not None:
            if key not in self._started:
                self._started.add(key)
                self._start(key, launch)
            if node.notice_at is not None and key not in self._noticed:
                self._noticed.add(key)
                self._write_notice(launch, self.desk.anchor.wall_time(node.notice_at))
                self._crew.notify(key)
        elif not node.state.alive:
            self._devices.give_back(key)
            if node.end is NodeEnd.RELEASED and launch is not None and key in self._crew:
                leaves_by = wall_now() + self._settings.release_grace_s
                self._write_notice(launch, leaves_by)
                self._crew.leave(key, self._settings.release_grace_s)
            else:
                self._crew.end(key)

    def _start(self, key: Key, launch: Launch) -> None:
        job_secrets = self.job_secrets(launch.job)
        if launch.task.coordinated:
            self._coordinators.ensure(launch, job_secrets)
        with contextlib.suppress(OSError):
            notice_file(launch).unlink(missing_ok=True)
        assignment = assignment_of(
            launch,
            url=self.url,
            secrets=job_secrets,
            device=self._devices.take(key, launch.task.gpus),
            heartbeat_timeout_s=self._settings.heartbeat_timeout_s,
        )
        self._crew.start(key, assignment)

    def _write_notice(self, launch: Launch, wall: float) -> None:
        try:
            document = msgspec.json.encode(NoticeDocument(wall))
            write_whole(notice_file(launch), document, durable=True)
        except OSError as error:
            # The worker still gets the signal.
            log.warning("node %s: cannot write the notice file: %s", launch.node, error)

    def _gone(self, key: Key, code: int | None) -> None:
        job, node = key
        if node:
            self.desk.gone(key, code)
        else:
            self._coordinators.died(job)

    def _end(self) -> None:
        """End all nodes, giving their workers time to leave, then all other processes."""
        self.desk.take_all()
        for record in self.desk.turn():
            launch = record.launch
            key = (record.node.job, record.node.id)
            if launch is not None and key in self._crew:
                self._write_notice(launch, wall_now() + self._settings.release_grace_s)
                self._crew.leave(key, self._settings.release_grace_s)
        while self._stop_requests == 1 and any(node for _, node in self._crew.members()):
            self._crew.tend()
            self._sleep(max(0.0, self._crew.next_moment() - time.monotonic()))
        for key in self._crew.members():
            self._crew.end(key)
        self._starter.stop()
        self._crew.tend()

    def _drain(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while self._woken.recv(4096):
                pass
