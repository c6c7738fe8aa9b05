"""A node's exchange with the storage of its job, in a thread: the storage may be slow or away.

The node goes on meanwhile. It ends only if its order is really gone or its lease is over.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from typing import TYPE_CHECKING

import msgspec

from duetune.core.node_contract import DONE
from duetune.errors import DuetuneError, StorageError
from duetune.fleets.node_files import LEASE, ORDER, Lease, NodeReport
from duetune.storage.job_copy import REPORT
from duetune.storage.job_layout import INPUT_RECORD, NODES
from duetune.wall_clock import wall_now

if TYPE_CHECKING:
    from collections.abc import Callable

    from duetune.storage import JobMirror, Storage

log = logging.getLogger(__name__)

LAST_WORDS_S = 600.0
"""Seconds for which a node whose work is over tries to upload the result and its last report."""


class NodeExchange:
    """Exchanges files with the storage every ``every_s`` seconds.

    - ``report``: returns what the node says about itself now.
    - ``mirror``: the local copy of the job; None if the node sees the job's folder.
    - ``ready``: set once all files of the job are here.
    - ``withdrawn``: whether the node's order is gone.
    - ``lease``: until when the job's nodes may run; without a lease there is no limit.
    - ``refused``: why the storage cannot be used, if a retry will not help.
    """

    def __init__(
        self,
        storage: Storage,
        name: str,
        report: Callable[[], NodeReport],
        *,
        every_s: float,
        mirror: JobMirror | None = None,
    ) -> None:
        self._storage = storage
        self._name = name
        self._report = report
        self._every_s = every_s
        self._mirror = mirror
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="exchange", daemon=True)
        self._said = ""
        self.ready = threading.Event()
        self.withdrawn = False
        self.lease = float("inf")
        self.refused = ""

    def start(self) -> None:
        """Begin to exchange files in the background."""
        self._thread.start()

    def close(self, *, expired: Callable[[], bool]) -> None:
        """Write the last report, after the result if the work is done.

        It is tried again until it succeeds, ``expired`` returns true, or ``LAST_WORDS_S`` are over.
        """
        self._stopped.set()
        while self._thread.is_alive() and not expired():
            self._thread.join(0.2)
        until = time.monotonic() + LAST_WORDS_S
        while not self._tried(self._last_round):
            if expired() or self.refused or time.monotonic() > until:
                return
            time.sleep(min(1.0, self._every_s))

    def _run(self) -> None:
        while not self._stopped.is_set():
            began = time.monotonic()
            self._tried(self._round if self.ready.is_set() else self._begin)
            # A slow storage is not asked more often than it can answer.
            self._stopped.wait(max(self._every_s, time.monotonic() - began))

    def _tried(self, work: Callable[[], None]) -> bool:
        """Do something with the storage, and return whether it succeeded."""
        try:
            work()
        except (DuetuneError, OSError) as error:
            if str(error) != self._said:
                log.warning("cannot exchange files: %s", error)
            self._said = str(error)
            if isinstance(error, StorageError) and not error.retry:
                self.refused = str(error)
            return False
        self.refused = self._said = ""
        return True

    def _begin(self) -> None:
        self._say()
        if self._mirror is not None:
            self._mirror.fetch()
        self.ready.set()

    def _round(self) -> None:
        self._say()
        self._listen()
        if self._mirror is not None:
            self._mirror.sync()

    def _last_round(self) -> None:
        if self._mirror is not None and self.ready.is_set():
            self._mirror.close(done=self._report().code == DONE)
        self._say()

    def _say(self) -> None:
        content = msgspec.json.encode(msgspec.structs.replace(self._report(), at=wall_now()))
        self._storage.write(f"{NODES}/{self._name}/{REPORT}", content)

    def _listen(self) -> None:
        gone = self._storage.read(f"{NODES}/{self._name}/{ORDER}") is None
        if gone and self._mirror is not None:
            # A network folder that is not mounted has no files at all; the inputs never go.
            gone = self._storage.read(INPUT_RECORD) is not None
        self.withdrawn = gone
        content = self._storage.read(LEASE)
        with contextlib.suppress(msgspec.MsgspecError):
            if content is not None:
                self.lease = msgspec.json.decode(content, type=Lease).until
