"""How the provider starts agents: as forks of the zygote where there is one, else cold."""

from __future__ import annotations

import contextlib
import math
import signal
import socket
import subprocess
import sys
import time
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

from duetune.fleets.embedded import processes
from duetune.fleets.embedded.node_assignment import Channel
from duetune.fleets.embedded.zygote import NOTHING_TO_LOAD, READY

if TYPE_CHECKING:
    from collections.abc import Callable

    from duetune.fleets.embedded.node_assignment import Assignment

REPLY_TIMEOUT_S = 5.0
FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 60.0


class Warmth(StrEnum):
    NONE = "none"
    STARTING = "starting"
    READY = "ready"


class Started(NamedTuple):
    """An agent that runs. ``process`` is None for a child of the zygote."""

    channel: Channel
    pid: int
    process: subprocess.Popen[bytes] | None


class Starter:
    """For the provider's main thread only. ``watch`` and ``unwatch`` are told of the zygote's
    socket, so that ``heard`` is called when it says something.
    """

    def __init__(
        self,
        preload: str,
        watch: Callable[[socket.socket, Callable[[], None]], None],
        unwatch: Callable[[socket.socket], None],
    ) -> None:
        self.warmth = Warmth.NONE
        self._preload = preload
        self._watch = watch
        self._unwatch = unwatch
        self._control: socket.socket | None = None
        self._zygote: subprocess.Popen[bytes] | None = None
        self._pause_s = FIRST_PAUSE_S
        self._next_try = 0.0 if preload else math.inf

    def pids(self) -> set[int]:
        return set() if self._zygote is None else {self._zygote.pid}

    def next_moment(self) -> float:
        """When ``tend`` has something to do, by the monotonic clock."""
        return self._next_try if self._zygote is None else math.inf

    def tend(self) -> None:
        """Starts the zygote if that is due."""
        if self._zygote is not None or time.monotonic() < self._next_try:
            return
        self._control, theirs = socket.socketpair()
        self._control.settimeout(REPLY_TIMEOUT_S)
        with theirs:
            self._zygote = _python("zygote", theirs, self._preload)
        self.warmth = Warmth.STARTING
        self._watch(self._control, self._heard)

    def start(self, assignment: Assignment) -> Started:
        """An agent that has been told its assignment; ``OSError`` if none could be started."""
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
        self._next_try = math.inf
        self._end_zygote(patience_s=0.0)

    def _fork(self, theirs: socket.socket) -> int | None:
        """The new agent's process id; None, and no zygote any more, if it does not answer."""
        if self._control is None:
            return None
        try:
            socket.send_fds(self._control, [b"!"], [theirs.fileno()])
            return int(self._control.recv(64))
        except (OSError, ValueError):
            self._end_zygote(patience_s=0.0)
            self._try_later()
            return None

    def _heard(self) -> None:
        if self._control is None:
            return
        try:
            said = self._control.recv(64)
        except OSError:
            said = b""
        if said == READY:
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
        """Its exit code, if it ends by itself."""
        self.warmth = Warmth.NONE
        zygote, control = self._zygote, self._control
        self._zygote = self._control = None
        if control is not None:
            self._unwatch(control)
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
    """Another process of ours, in a session of its own, that holds ``end``."""
    number = end.fileno()
    return subprocess.Popen(  # noqa: S603 - our own module
        [sys.executable, "-m", f"{__package__}.{part}", str(number), *arguments],
        stdin=subprocess.DEVNULL,
        pass_fds=[number],
        start_new_session=True,
    )
