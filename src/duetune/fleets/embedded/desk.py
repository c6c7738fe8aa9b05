"""Carries out API calls: the cloud behind a lock, and the ledger, written before any answer.

HTTP itself is in ``api``. Processes are started and ended by the main thread (``provider``), which
takes the changed nodes from here.
"""

from __future__ import annotations

import contextlib
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from duetune.core.fleet import Launch, Limit, NodeEnd, NodeKind, Release
from duetune.errors import FleetError
from duetune.fleets.embedded.bill_ledger import Cancelled, Changed, Closed
from duetune.fleets.embedded.provider_messages import NoticeDocument

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from duetune.core.fleet import Command, FleetReport, MarketReport
    from duetune.core.market import MarketTrace
    from duetune.fleets.embedded.bill_ledger import Ledger, Line
    from duetune.fleets.embedded.clock import Anchor
    from duetune.fleets.embedded.cloud import Cloud, Key, NodeRecord


class Desk:
    """The cloud and its ledger. Any thread may call; ``wake`` wakes the main thread."""

    def __init__(
        self, cloud: Cloud, ledger: Ledger, anchor: Anchor, wake: Callable[[], None]
    ) -> None:
        self.anchor = anchor
        self._cloud = cloud
        self._ledger = ledger
        self._wake = wake
        self._lock = threading.Lock()
        self._folders: dict[str, Path] = {}
        self._closed = False
        self._unwritten: list[Line] = []
        self._held_back: dict[Key, NodeRecord] = {}
        self._to_do: dict[Key, NodeRecord] = {}

    def apply(self, commands: Sequence[Command]) -> None:
        """Carry out commands; the ledger has them on disk when this returns."""
        with self._lock:
            if self._closed:
                raise FleetError("the fleet is being stopped", retry=True)
            for command in commands:
                self._cloud.apply(command, self._now())
                match command:
                    case Launch():
                        self._folders[command.job] = Path(command.task.folder)
                    case Release():
                        if (command.job, command.node) in self._cloud.cancelled:
                            self._unwritten.append(Cancelled(command.job, command.node))
                    case Limit():
                        self._unwritten.append(command)
            self._settle()
        self._wake()

    def observe(self, job: str) -> FleetReport:
        """Return all nodes that the job ever had, billed until now."""
        with self._lock:
            self._advance()
            return self._cloud.report(job)

    def market(self) -> MarketReport:
        """Return the market in the current slot."""
        return self._cloud.replay.report(self._now())

    def history(self, slots: int) -> MarketTrace | None:
        """Return at most ``slots`` slots before the current one; None if there are none."""
        return self._cloud.replay.history(self._now(), slots)

    def notice(self, job: str, node: str) -> NoticeDocument | None:
        """Return when a node of the job will be taken; None if that is not known."""
        with self._lock:
            nodes = self._cloud.report(job).nodes
        for found in nodes:
            if found.id == node and found.notice_at is not None:
                return NoticeDocument(self.anchor.wall_time(found.notice_at))
        return None

    def job_folder(self, job: str) -> Path | None:
        """Return the folder of a job; None if it has had no node since this provider started."""
        return self._folders.get(job)

    def held(self) -> dict[NodeKind, list[str]]:
        """Return, for each kind, the job of every GPU that is requested or running."""
        with self._lock:
            nodes = [record.node for record in self._cloud.living()]
        return {
            kind: [node.job for node in nodes if node.kind is kind for _ in range(node.gpus)]
            for kind in NodeKind
        }

    def spent(self) -> float:
        """Return the bill of all jobs in dollars."""
        with self._lock:
            self._advance()
            return self._cloud.spent()

    def turn(self) -> list[NodeRecord]:
        """Return the nodes that changed since the last call; the ledger has them on disk."""
        with self._lock:
            self._cloud.advance(self._now())
            self._settle()
            to_do, self._to_do = list(self._to_do.values()), {}
        return to_do

    def next_event_s(self) -> float:
        """Return the seconds until the cloud's next event is due."""
        with self._lock:
            return self.anchor.seconds_until(self._cloud.next_moment())

    def gone(self, key: Key, code: int | None) -> None:
        """Record that a worker has ended with ``code``; None means that the node has died."""
        with self._lock:
            moment = self._now()
            self._cloud.advance(moment)
            if code is None:
                self._cloud.take(*key, moment, NodeEnd.DIED, notice=False)
            else:
                self._cloud.worker_ended(*key, code)
        self._wake()

    def note_alive(self) -> None:
        """Record on disk that all running nodes have run until now."""
        with self._lock:
            self._advance()

    def take_all(self) -> None:
        """End all nodes and refuse further commands. Called when the provider stops."""
        with self._lock:
            self._closed = True
            moment = self._now()
            self._cloud.advance(moment)
            for record in self._cloud.living():
                node = record.node
                self._cloud.take(node.job, node.id, moment, NodeEnd.STOPPED, notice=False)
            self._settle()
            self._ledger.append([Closed(self._now())])

    def _advance(self) -> None:
        """Advance the cloud to now and store the time, so that a restart cannot lower a bill."""
        self._cloud.advance(self._now())
        self._settle()
        with _writing_ledger():
            self._ledger.note_alive(self._cloud.at)

    def _settle(self) -> None:
        """Write all changes to the ledger, then hand them to the main thread."""
        changed = dict(self._cloud.changed)
        self._cloud.changed.clear()
        self._unwritten += [Changed(record.node) for record in changed.values()]
        self._held_back.update(changed)
        with _writing_ledger():
            self._ledger.append(self._unwritten)
        self._unwritten.clear()
        self._to_do.update(self._held_back)
        self._held_back.clear()

    def _now(self) -> float:
        # After a restart of the machine its wall clock may be behind; the market must not go back.
        return max(self._cloud.at, self.anchor.market_now())


@contextlib.contextmanager
def _writing_ledger() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise FleetError(f"cannot write the ledger: {error}", retry=True) from None
