"""``duetune node ORDER``: runs the work of one node on a machine of an engine, until it is over.

The engine (Slurm, Ray, SkyPilot) starts this process and may send it SIGTERM before it takes the
node. It starts the same agent as the embedded fleet, passes notices on to the worker, ends the work
when the job's lease is over, and writes reports for ``engine_fleet``. It exits with 0 once its last
report is written, whatever became of the work.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import socket
import time
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from duetune.core import node_contract
from duetune.errors import InvalidInput
from duetune.files import OWNER, write_whole
from duetune.fleets.embedded.agent import serve
from duetune.fleets.embedded.node_assignment import (
    Assignment,
    Channel,
    Gone,
    JobSecrets,
    Leave,
    assignment_of,
    coordinator_of,
    notice_file,
)
from duetune.fleets.embedded.processes import adopt_orphans, end_family
from duetune.fleets.embedded.provider_messages import NoticeDocument
from duetune.fleets.node_files import (
    LEASE,
    NODES,
    Lease,
    NodeReport,
    NodeWork,
    order_file,
    report_file,
)

if TYPE_CHECKING:
    from types import FrameType

REPORT_S = 5.0
"""Seconds between two reports of a node that lives."""
GRACE_S = 20.0
"""Seconds that a worker has to leave after a notice or a release."""
HEARTBEAT_TIMEOUT_S = 60.0
_TURN_S = 0.5
SEATS = "coordinators"
"""The folder with the list of nodes that have run the job's coordinator."""


class RemoteNode:
    """Runs the work of one node. Call ``run`` once.

    ``grace_s``: seconds that the worker has after SIGTERM.
    """

    def __init__(self, work: NodeWork, *, grace_s: float = GRACE_S) -> None:
        self._work = work
        self._launch = work.launch
        self._folder = Path(work.launch.task.folder)
        self._grace_s = grace_s
        self._selector = selectors.DefaultSelector()
        self._report = NodeReport(at=time.time(), started_at=time.time(), host=socket.gethostname())
        self._reported = 0.0
        self._end_at: float | None = None
        self._told = False
        self._code: int | None = None

    def run(self) -> int:
        """Run the work to its end, and return the exit status of this process."""
        woken, waker = socket.socketpair()
        waker.setblocking(False)
        signal.set_wakeup_fd(waker.fileno(), warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._noticed)
        self._selector.register(woken, selectors.EVENT_READ, lambda: woken.recv(4096))
        with contextlib.suppress(OSError):
            notice_file(self._launch).unlink(missing_ok=True)
        self._say()
        secrets = JobSecrets(group=self._work.secret, calls="")
        if self._launch.task.coordinated:
            seats = self._folder / SEATS
            file = self._address_file
            self._start(coordinator_of(self._launch, secrets, file=file, seats=seats))
        agent = self._start(self._assignment(secrets), work=True)
        while self._code is None:
            self._turn(agent)
        end_family(os.getpid(), spare_root=True)
        now = time.time()
        self._report = msgspec.structs.replace(self._report, code=self._code, ended_at=now)
        self._say()
        return 0

    def _turn(self, agent: Channel) -> None:
        """Wait a moment for messages and signals, then do what is due."""
        for key, _ in self._selector.select(_TURN_S):
            key.data()
        now = time.time()
        if self._end_at is None and self._lease() < now:
            self._report = msgspec.structs.replace(self._report, limited=True)
            self._end_at = now + self._grace_s
        if self._end_at is None and not order_file(self._folder, self._work.name).exists():
            self._end_at = now + self._grace_s
        if self._end_at is not None and not self._told:
            self._told = True
            with contextlib.suppress(OSError):
                document = msgspec.json.encode(NoticeDocument(self._end_at))
                write_whole(notice_file(self._launch), document, durable=True)
            agent.send(Leave())
        if self._end_at is not None and now > self._end_at and self._code is None:
            self._code = node_contract.LEFT
        if time.monotonic() - self._reported >= REPORT_S:
            self._say()

    def _noticed(self, _number: int, _frame: FrameType | None) -> None:
        """Take SIGTERM as the notice that the node will be taken or was released."""
        if self._end_at is None:
            self._end_at = time.time() + self._grace_s
            self._report = msgspec.structs.replace(self._report, notice_at=self._end_at)

    def _lease(self) -> float:
        """Return until when the job's nodes may run; without a lease there is no limit."""
        try:
            content = (self._folder / LEASE).read_bytes()
            return msgspec.json.decode(content, type=Lease).until
        except (OSError, msgspec.MsgspecError):
            return float("inf")

    def _say(self) -> None:
        """Write a report. If that fails, the next one may succeed."""
        self._reported = time.monotonic()
        self._report = msgspec.structs.replace(self._report, at=time.time())
        with contextlib.suppress(OSError):
            path = report_file(self._folder, self._work.name)
            write_whole(path, msgspec.json.encode(self._report), durable=True, mode=OWNER)

    def _start(self, assignment: Assignment, *, work: bool = False) -> Channel:
        """Start an agent as a child of this process, and return the channel to it.

        ``work`` marks the agent with which the node ends.
        """
        ours, theirs = socket.socketpair()
        for file in (assignment.log, assignment.heartbeat):
            if file:
                Path(file).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if os.fork() == 0:
            ours.close()
            signal.set_wakeup_fd(-1)
            for number in (signal.SIGTERM, signal.SIGINT):
                # The engine may signal all processes of the node; the agent waits to be told.
                signal.signal(number, signal.SIG_IGN)
            os._exit(serve(theirs))
        theirs.close()
        channel = Channel(ours)
        channel.send(assignment)
        read = self._read if work else self._read_coordinator
        self._selector.register(channel, selectors.EVENT_READ, lambda: read(channel))
        return channel

    def _read_coordinator(self, channel: Channel) -> None:
        """Forget the coordinator's agent if it died: that of another node will serve."""
        if channel.receive() is None:
            self._selector.unregister(channel)

    def _read(self, channel: Channel) -> None:
        messages = channel.receive()
        if messages is None:
            self._selector.unregister(channel)
            self._code = node_contract.BAD_NODE if self._code is None else self._code
            return
        for message in messages:
            if isinstance(message, Gone):
                self._code = message.code

    @property
    def _address_file(self) -> Path:
        """Return the file in which this node's worker finds the coordinator's address."""
        return self._folder / NODES / f"{self._work.name}.coordinator"

    def _assignment(self, secrets: JobSecrets) -> Assignment:
        """Return what the agent runs: as on the embedded fleet, but without a provider to call."""
        found = assignment_of(
            self._launch,
            url="",
            secrets=secrets,
            device=os.environ.get("CUDA_VISIBLE_DEVICES"),
            heartbeat_timeout_s=HEARTBEAT_TIMEOUT_S,
        )
        for name in (node_contract.NOTICE_URL, node_contract.PROGRESS_URL):
            found.environment.pop(name, None)
        if self._launch.task.coordinated:
            found.environment[node_contract.COORDINATOR_FILE] = str(self._address_file)
        return found


def main(order: Path) -> int:
    """Run the node of an order file, and return the exit status."""
    try:
        work = msgspec.json.decode(order.read_bytes(), type=NodeWork)
    except (OSError, msgspec.MsgspecError) as error:
        raise InvalidInput(
            "ORDER", str(order), f"an order that a fleet has written ({error})"
        ) from None
    os.umask(0o077)
    # Members on other machines must reach this one.
    os.environ.setdefault(node_contract.BIND, "auto")
    adopt_orphans()
    return RemoteNode(work).run()
