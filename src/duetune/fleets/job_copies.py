"""Keeps the controller's copies of jobs in storage up to date, each in a thread of its own.

The storage may be slow or away for minutes; the controller only reads what has arrived.
"""

from __future__ import annotations

import logging
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

from duetune.errors import DuetuneError
from duetune.storage import JobCopy, open_storage

if TYPE_CHECKING:
    from collections.abc import Callable

    from duetune.core.fleet import Launch

log = logging.getLogger(__name__)

IDLE_S = 120.0
"""A copy that nobody has asked for in so many seconds is no longer kept up to date."""
SETTLE_S = 600.0
"""An ended node is given up after the storage has been away for this many seconds."""


class CopyThread:
    """One job's copy. It ends by itself when nobody asks for it any more.

    ``open_copy`` makes the copy; it is called in the thread, as it may import much.
    """

    def __init__(self, open_copy: Callable[[], JobCopy], every_s: float) -> None:
        self._open = open_copy
        self._every_s = every_s
        self._asked_at = time.monotonic()
        self._reports: dict[str, bytes] = {}
        self._waiting: dict[str, float] = {}
        self._began = float("-inf")
        """When the last round that succeeded began."""
        self._wake = threading.Event()
        self._thread = threading.Thread(target=self._run, name="job copy", daemon=True)
        self._thread.start()

    @property
    def alive(self) -> bool:
        """Return whether the copy is kept up to date; called by who is about to read it."""
        self._asked_at = time.monotonic()
        return self._thread.is_alive()

    def report(self, name: str) -> bytes | None:
        """Return the last report of a node that has arrived."""
        return self._reports.get(name)

    def settled(self, name: str) -> bool:
        """Return whether a round has begun and succeeded since this was first asked of a node.

        If the storage is away for very long, the answer is true, too.
        """
        now = time.monotonic()
        since = self._waiting.setdefault(name, now)
        if self._began >= since or now - since >= SETTLE_S:
            return True
        self._wake.set()
        return False

    def _run(self) -> None:
        copy: JobCopy | None = None
        failing = False
        while time.monotonic() - self._asked_at < IDLE_S:
            self._wake.clear()
            began = time.monotonic()
            try:
                copy = copy or self._open()
                copy.refresh()
            except (DuetuneError, OSError) as error:
                if not failing:
                    log.warning("cannot fetch what nodes report: %s", error)
                failing = True
            else:
                failing = False
                self._reports = dict(copy.reports)
                self._began = began
            # A slow storage is not asked more often than it can answer.
            pause_s = max(self._every_s, time.monotonic() - began)
            if failing:
                time.sleep(pause_s)
            else:
                self._wake.wait(pause_s)


class JobCopies:
    """The copies of all jobs of a fleet; ``every_s`` is the time between two rounds."""

    def __init__(self, every_s: float) -> None:
        self._every_s = every_s
        self._threads: dict[str, CopyThread] = {}

    def of(self, launch: Launch) -> CopyThread:
        """Return the copy of a job; it is started if it does not run."""
        found = self._threads.get(launch.job)
        if found is None or not found.alive:
            task = launch.task
            found = CopyThread(
                lambda: JobCopy(open_storage(task.storage), Path(task.folder)), self._every_s
            )
            self._threads[launch.job] = found
        return found
