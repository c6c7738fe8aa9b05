"""Where calls arrive: the cloud behind a lock, and the book that is written before any answer."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

from duetune.core.fleet import Launch, Limit, NodeEnd, NodeKind, Release
from duetune.errors import FleetError
from duetune.fleets.embedded.bill_ledger import Cancelled, Changed, Closed
from duetune.fleets.embedded.provider_messages import NoticeDocument

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from duetune.core.fleet import Command, FleetReport, MarketReport
    from duetune.core.market import MarketTrace
    from duetune.fleets.embedded.bill_ledger import Ledger, Line
    from duetune.fleets.embedded.clock import Anchor
    from duetune.fleets.embedded.cloud import Cloud, Key, NodeRecord


class Desk:
    """Any thread may call. ``wake`` is called when there is something to carry out."""

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
        with self._lock:
            self._advance()
            return self._cloud.report(job)

    def market(self) -> MarketReport:
        return self._cloud.replay.report(self._now())

    def history(self, slots: int) -> MarketTrace | None:
        return self._cloud.replay.history(self._now(), slots)

    def notice(self, node: str) -> NoticeDocument | None:
        with self._lock:
            found = self._cloud.find(node)
        if found is None or found.notice_at is None:
            return None
        return NoticeDocument(self.anchor.wall_time(found.notice_at))

    def job_folder(self, job: str) -> Path | None:
        """Of a job that has had a node since this provider began."""
        return self._folders.get(job)

    def held(self) -> dict[NodeKind, list[str]]:
        """For each living node its job, by kind."""
        with self._lock:
            nodes = [record.node for record in self._cloud.living()]
        return {kind: [node.job for node in nodes if node.kind is kind] for kind in NodeKind}

    def spent(self) -> float:
        with self._lock:
            self._advance()
            return self._cloud.spent()

    def turn(self) -> list[NodeRecord]:
        """What has changed since the last turn and is in the book."""
        with self._lock:
            self._cloud.advance(self._now())
            self._settle()
            to_do, self._to_do = list(self._to_do.values()), {}
        return to_do

    def next_wall_moment(self) -> float:
        """When the cloud has something to do by itself."""
        with self._lock:
            return self.anchor.wall_time(self._cloud.next_moment())

    def gone(self, key: Key, code: int | None) -> None:
        """A node's worker is done; without a code the node has died."""
        with self._lock:
            moment = self._now()
            self._cloud.advance(moment)
            if code is None:
                self._cloud.take(*key, moment, NodeEnd.DIED, notice=False)
            else:
                self._cloud.worker_ended(*key, code)
        self._wake()

    def note_alive(self) -> None:
        with self._lock:
            self._advance()

    def take_all(self) -> None:
        """The end: no node lives on, none is granted any more."""
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
        """Now, and whatever is told of it will not be undone by a restart."""
        self._cloud.advance(self._now())
        self._settle()
        try:
            self._ledger.note_alive(self._cloud.at)
        except OSError as error:
            raise FleetError(f"the ledger cannot be written: {error}", retry=True) from None

    def _settle(self) -> None:
        """Into the book first, then to whoever carries it out."""
        changed = dict(self._cloud.changed)
        self._cloud.changed.clear()
        self._unwritten += [Changed(record.node) for record in changed.values()]
        self._held_back.update(changed)
        try:
            self._ledger.append(self._unwritten)
        except OSError as error:
            raise FleetError(f"the ledger cannot be written: {error}", retry=True) from None
        self._unwritten.clear()
        self._to_do.update(self._held_back)
        self._held_back.clear()

    def _now(self) -> float:
        # The wall's clock may be set back; the market's never goes back.
        return max(self._cloud.at, self.anchor.market_time(time.time()))
