"""A worker as the campaign sees it: a process that gets a batch and is watched."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING, NamedTuple

from duetune.knowledge.measure.worker_messages import Ready, TrialResult

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

WORKER = (sys.executable, "-m", "duetune.training.profiler.measuring_worker")


class WorkerProcess:
    """A worker that is started ahead of time, imports what it needs and waits for a batch.

    Its standard error goes to ``log``.
    """

    def __init__(self, command: Sequence[str], log: Path) -> None:
        self._log = log
        # The user's allocator settings would make peaks incomparable.
        environment = {
            name: value for name, value in os.environ.items() if not name.endswith("_ALLOC_CONF")
        }
        environment["HF_HUB_OFFLINE"] = "1"
        with log.open("wb") as file:
            # A new session, because Ctrl-C must reach only the campaign, which lets the trial end.
            self._process = subprocess.Popen(  # noqa: S603 - our own worker
                list(command),
                stdin=subprocess.PIPE,
                stdout=file,
                stderr=file,
                env=environment,
                start_new_session=True,
            )
        self._results: Path | None = None
        self._read = 0
        self._changed = time.monotonic()
        self.ready: Ready | None = None
        self.current: str | None = None

    def give(self, batch: Path, results: Path) -> None:
        """Tell the worker which batch to run and where to write results."""
        self._results = results
        self._changed = time.monotonic()
        stdin = self._process.stdin
        if stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                stdin.write(json.dumps([str(batch), str(results)]).encode() + b"\n")
                stdin.flush()

    def results(self) -> list[TrialResult]:
        """Return the results that arrived since the last call."""
        if self._results is None or not self._results.exists():
            return []
        found: list[TrialResult] = []
        for event in new_events(self._results, self._read):
            self._read = event.end
            self._changed = time.monotonic()
            kind = event.values.get("event")
            if kind == "ready":
                self.ready = Ready.of(event.values)
            elif kind == "started":
                self.current = str(event.values["id"])
            elif kind == "result":
                self.current = None
                found.append(TrialResult.of(event.values))
        return found

    @property
    def silent_s(self) -> float:
        """Return the seconds since the worker last wrote anything."""
        return time.monotonic() - self._changed

    @property
    def status(self) -> int | None:
        """Return the exit status, negative for a signal, or None while the worker runs."""
        return self._process.poll()

    def ask_to_stop(self) -> None:
        """Ask the worker to end after the current trial."""
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """End the worker and everything it started."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._close()

    def release(self) -> None:
        """Wait for a worker that has ended, or that never got a batch."""
        self._close()
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self.kill()

    def last_words(self) -> str:
        """Return the last line of its standard error, at most 200 characters."""
        try:
            lines = self._log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        except OSError:
            return ""
        return lines[-1].strip()[:200] if lines else ""

    def _close(self) -> None:
        if self._process.stdin is not None:
            with contextlib.suppress(OSError):
                self._process.stdin.close()


class Event(NamedTuple):
    """One line that a worker wrote, and the byte at which it ends."""

    values: dict[str, object]
    end: int


def new_events(path: Path, start: int) -> list[Event]:
    """Return the complete lines from byte ``start`` on; a line that is still being written comes
    later.
    """
    with path.open("rb") as file:
        file.seek(start)
        data = file.read()
    found: list[Event] = []
    end = start
    for line in data.splitlines(keepends=True):
        if not line.endswith(b"\n"):
            break
        end += len(line)
        with contextlib.suppress(ValueError):
            values = json.loads(line)
            if isinstance(values, dict):
                found.append(Event(values, end))
    return found
