"""``duetune node ORDER``: runs the work of one node on a machine of an engine, until it is over.

The engine (Slurm, Ray, SkyPilot) starts this process and may send it SIGTERM before it takes the
node. ORDER is the path or URL of a file that the fleet has written. This process starts the same
agent as the embedded fleet, passes notices on to the worker, ends the work when the job's lease is
over, and writes reports for ``engine_fleet``. If the job has a storage, its files are fetched into
a scratch folder and reports go through the storage; else the node works in the job's folder. It
exits with 0 once its last report is written, whatever became of the work.
"""

from __future__ import annotations

import contextlib
import logging
import os
import selectors
import signal
import socket
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from duetune.core import node_contract
from duetune.errors import InvalidInput, StorageError
from duetune.files import make_folder, write_whole
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
from duetune.fleets.node_exchange import NodeExchange
from duetune.fleets.node_files import ORDER, NodeReport, NodeWork, parted_order, place_of
from duetune.fleets.scratch import scratch_folder
from duetune.storage import JobMirror, open_storage, place_below
from duetune.storage.job_layout import NODES

if TYPE_CHECKING:
    from types import FrameType

    from duetune.storage import Storage

GRACE_S = 20.0
"""Seconds that a worker has to leave after a notice or a release."""
HEARTBEAT_TIMEOUT_S = 60.0
_TURN_S = 0.5
SEATS = "coordinators"
"""The folder with the list of nodes that have run the job's coordinator."""


class NodeAgents:
    """The agents of a node: one for its worker, one for its candidate for the coordinator.

    Make it before anything else: the library for buckets and this process's threads would not
    survive the fork of an agent.
    """

    def __init__(self) -> None:
        self.worker = _forked()
        self.coordinator = _forked(self.worker)


class RemoteNode:
    """Runs the work of one node. Call ``run`` once.

    - ``folder``: where the node works: the job's folder, or a scratch folder.
    - ``grace_s``: seconds that the worker has after SIGTERM.
    """

    def __init__(
        self,
        work: NodeWork,
        storage: Storage,
        agents: NodeAgents,
        folder: Path,
        *,
        grace_s: float = GRACE_S,
    ) -> None:
        task = msgspec.structs.replace(work.launch.task, folder=str(folder))
        self._work = work
        self._launch = msgspec.structs.replace(work.launch, task=task)
        self._folder = folder
        self._agents = agents
        self._grace_s = grace_s
        self._selector = selectors.DefaultSelector()
        self._report = NodeReport(at=time.time(), started_at=time.time(), host=socket.gethostname())
        self._end_at: float | None = None
        self._begun = False
        self._told = False
        self._code: int | None = None
        mirror = None
        if task.storage:
            mirror = JobMirror(storage, folder, work.name, home=work.launch.task.folder)
        self._exchange = NodeExchange(
            storage, work.name, lambda: self._report, every_s=work.every_s, mirror=mirror
        )

    def run(self) -> int:
        """Run the work to its end, and return the exit status of this process."""
        woken, waker = socket.socketpair()
        waker.setblocking(False)
        signal.set_wakeup_fd(waker.fileno(), warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._noticed)
        self._selector.register(woken, selectors.EVENT_READ, lambda: woken.recv(4096))
        self._selector.register(self._agents.worker, selectors.EVENT_READ, self._read)
        with contextlib.suppress(OSError):
            notice_file(self._launch).unlink(missing_ok=True)
        self._exchange.start()
        while self._code is None:
            self._turn()
        end_family(os.getpid(), spare_root=True)
        now = time.time()
        self._report = msgspec.structs.replace(self._report, code=self._code, ended_at=now)
        self._exchange.close(expired=self._expired)
        return 0

    def _turn(self) -> None:
        """Wait a moment for messages and signals, then do what is due."""
        for key, _ in self._selector.select(_TURN_S):
            key.data()
        now = time.time()
        if not self._begun and self._end_at is None and self._exchange.ready.is_set():
            self._begin()
        if not self._begun and self._exchange.refused:
            sys.stderr.write(f"{self._exchange.refused}\n")
            self._code = node_contract.BAD_NODE
        if self._end_at is None and self._exchange.lease < now:
            self._report = msgspec.structs.replace(self._report, limited=True)
            self._end_at = now + self._grace_s
        if self._end_at is None and self._exchange.withdrawn:
            self._end_at = now + self._grace_s
        if self._end_at is not None and not self._begun:
            self._code = node_contract.LEFT
        if self._end_at is not None and not self._told:
            self._told = True
            with contextlib.suppress(OSError):
                document = msgspec.json.encode(NoticeDocument(self._end_at))
                write_whole(notice_file(self._launch), document, durable=True)
            self._agents.worker.send(Leave())
        if self._end_at is not None and now > self._end_at and self._code is None:
            self._code = node_contract.LEFT

    def _begin(self) -> None:
        """Give both agents their work; all files of the job are here."""
        self._begun = True
        secrets = JobSecrets(group=self._work.secret, calls="")
        if self._launch.task.coordinated:
            seats = place_below(place_of(self._launch), SEATS)
            file = self._address_file
            make_folder(file.parent)
            coordinator = coordinator_of(self._launch, secrets, file=file, seats=seats)
            _assign(self._agents.coordinator, coordinator)
            # If the coordinator's agent dies, that of another node will serve.
        else:
            self._agents.coordinator.close()
        _assign(self._agents.worker, self._assignment(secrets))

    def _noticed(self, _number: int, _frame: FrameType | None) -> None:
        """Take SIGTERM as the notice that the node will be taken or was released."""
        if self._end_at is None:
            self._end_at = time.time() + self._grace_s
            self._report = msgspec.structs.replace(self._report, notice_at=self._end_at)

    def _expired(self) -> bool:
        """Return whether the node should have ended by now."""
        return self._end_at is not None and time.time() > self._end_at

    def _read(self) -> None:
        messages = self._agents.worker.receive()
        if messages is None:
            self._selector.unregister(self._agents.worker)
            self._code = node_contract.BAD_NODE if self._code is None else self._code
            return
        for message in messages:
            if isinstance(message, Gone):
                self._code = message.code

    @property
    def _address_file(self) -> Path:
        """Return the file in which this node's worker finds the coordinator's address."""
        return self._folder / NODES / self._work.name / "coordinator"

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


def _forked(*others: Channel) -> Channel:
    """Start an agent as a child of this process, and return the channel to it.

    The child lets go of the ``others``: an agent notices that this process is gone by its channel.
    """
    ours, theirs = socket.socketpair()
    if os.fork() == 0:
        ours.close()
        for other in others:
            other.close()
        for number in (signal.SIGTERM, signal.SIGINT):
            # The engine may signal all processes of the node; the agent waits to be told.
            signal.signal(number, signal.SIG_IGN)
        os._exit(serve(theirs))
    theirs.close()
    return Channel(ours)


def _assign(agent: Channel, assignment: Assignment) -> None:
    for argument in (assignment.log, assignment.heartbeat):
        if argument:
            Path(argument).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    agent.send(assignment)


def main(order: str) -> int:
    """Run the node of an order, and return the exit status."""
    place, name = parted_order(order)
    os.umask(0o077)
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(message)s")
    # Members on other machines must reach this one.
    os.environ.setdefault(node_contract.BIND, "auto")
    adopt_orphans()
    agents = NodeAgents()
    storage = open_storage(place)
    try:
        content = storage.read(f"{NODES}/{name}/{ORDER}")
        work = None if content is None else msgspec.json.decode(content, type=NodeWork)
    except (StorageError, msgspec.MsgspecError) as error:
        raise InvalidInput("ORDER", order, f"an order that a fleet has written ({error})") from None
    if work is None:
        raise InvalidInput("ORDER", order, "an order that a fleet has written; it is not there")
    if not work.launch.task.storage:
        return RemoteNode(work, storage, agents, Path(place)).run()
    with scratch_folder() as folder:
        return RemoteNode(work, storage, agents, folder).run()
