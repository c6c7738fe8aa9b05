"""Starts agent processes: as forks of the zygote if it is ready, otherwise as new processes.

The zygote (``zygote``) has the training libraries loaded, so its forks start within milliseconds.
"""

from __future__ import annotations

import contextlib
import math
import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

from duetune.fleets.embedded import processes
from duetune.fleets.embedded.node_assignment import Channel
from duetune.fleets.embedded.node_environment import inherited
from duetune.fleets.embedded.zygote import NOTHING_TO_LOAD, READY

if TYPE_CHECKING:
    from duetune.fleets.embedded.node_assignment import Assignment

REPLY_TIMEOUT_S = 5.0
FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 60.0


class Warmth(StrEnum):
    """The state of the zygote."""

    NONE = "none"
    STARTING = "starting"
    READY = "ready"


class Started(NamedTuple):
    """A running agent. ``process`` is None if the zygote has forked it."""

    channel: Channel
    pid: int
    process: subprocess.Popen[bytes] | None


class Starter:
    """Keeps the zygote running and starts agents. Only the provider's main thread uses it.

    ``selector`` is that of the main thread; the zygote's socket is registered there.
    """

    def __init__(self, preload: str, selector: selectors.BaseSelector) -> None:
        self.warmth = Warmth.NONE
        self._preload = preload
        self._selector = selector
        self._control: socket.socket | None = None
        self._zygote: subprocess.Popen[bytes] | None = None
        self._pause_s = FIRST_PAUSE_S
        self._next_try = 0.0 if preload else math.inf

    def pids(self) -> set[int]:
        """Return the process id of the zygote, if it runs."""
        return set() if self._zygote is None else {self._zygote.pid}

    def next_moment(self) -> float:
        """Return when ``tend`` has something to do, by the monotonic clock."""
        return self._next_try if self._zygote is None else math.inf

    def tend(self) -> None:
        """Start the zygote if that is due."""
        if self._zygote is not None or time.monotonic() < self._next_try:
            return
        self._control, theirs = socket.socketpair()
        self._control.settimeout(REPLY_TIMEOUT_S)
        with theirs:
            self._zygote = _python("zygote", theirs, self._preload)
        self.warmth = Warmth.STARTING
        self._selector.register(self._control, selectors.EVENT_READ, self._read_control)

    def start(self, assignment: Assignment) -> Started:
        """Start an agent and send it its assignment; ``OSError`` if no process can be started."""
        ours, theirs = socket.socketpair()
        with theirs:
            pid = self._fork(theirs) if self.warmth is Warmth.READY else None
            process = None
            if pid is None:
                try:
                    process = _python("agent", theirs)
                except OSError:
                    ours.close()
                    raise
                pid = process.pid
        channel = Channel(ours)
        channel.send(assignment)
        return Started(channel, pid, process)

    def stop(self) -> None:
        """End the zygote for good. Called when the provider stops."""
        self._next_try = math.inf
        self._end_zygote(patience_s=0.0)

    def _fork(self, theirs: socket.socket) -> int | None:
        """Return the process id of a new agent; None if the zygote failed and was ended."""
        if self._control is None:
            return None
        try:
            socket.send_fds(self._control, [b"!"], [theirs.fileno()])
            return int(self._control.recv(64))
        except (OSError, ValueError):
            self._end_zygote(patience_s=0.0)
            self._try_later()
            return None

    def _read_control(self) -> None:
        if self._control is None:
            return
        try:
            message = self._control.recv(64)
        except OSError:
            message = b""
        if message == READY:
            self.warmth, self._pause_s = Warmth.READY, FIRST_PAUSE_S
            return
        code = self._end_zygote()
        if code == NOTHING_TO_LOAD:
            self._next_try = math.inf
        else:
            self._try_later()

    def _try_later(self) -> None:
        self._next_try = time.monotonic() + self._pause_s
        self._pause_s = min(2 * self._pause_s, LONGEST_PAUSE_S)

    def _end_zygote(self, patience_s: float = 0.5) -> int | None:
        """End the zygote; return its exit status if it has ended by itself."""
        self.warmth = Warmth.NONE
        zygote, control = self._zygote, self._control
        self._zygote = self._control = None
        if control is not None:
            self._selector.unregister(control)
            control.close()
        if zygote is None:
            return None
        try:
            return zygote.wait(patience_s)
        except subprocess.TimeoutExpired:
            processes.send(zygote.pid, signal.SIGKILL)
            with contextlib.suppress(subprocess.TimeoutExpired):
                zygote.wait(REPLY_TIMEOUT_S)
            return None


def _python(part: str, end: socket.socket, *arguments: str) -> subprocess.Popen[bytes]:
    """Start a module of this package in its own session; it inherits the socket ``end``."""
    number = end.fileno()
    return subprocess.Popen(  # noqa: S603 - our own module
        [sys.executable, "-m", f"{__package__}.{part}", str(number), *arguments],
        stdin=subprocess.DEVNULL,
        env=inherited(os.environ),
        pass_fds=[number],
        start_new_session=True,
    )
