"""The agent process of one node: it runs the node's worker and restarts the worker after a crash.

When the provider is gone, the agent ends the worker and itself. The agent is single-threaded and
imports little, because it forks the worker. An agent that was itself forked from a process with
the heavy libraries loaded (``zygote``) starts a worker in about 0.05 s.
"""

from __future__ import annotations

import contextlib
import errno
import importlib
import os
import select
import signal
import socket
import sys
import time
import traceback
from pathlib import Path
from typing import NoReturn, TextIO

from duetune.core.node_contract import (
    BAD_NODE,
    CHECKPOINT_DIR,
    DONE,
    HOPELESS,
    LEFT,
    OUTPUT_DIR,
    PROGRESS_FILE,
)
from duetune.fleets.embedded.node_assignment import Assignment, Channel, Gone, Leave
from duetune.fleets.embedded.processes import adopt_orphans, end_family

CRASHED = 1
FINAL = {DONE, LEFT, HOPELESS}
FIRST_PAUSE_S = 0.5
LONGEST_PAUSE_S = 30.0
# After a worker has run this long, the next crash counts as the first one again.
SOUND_S = 30.0
MOST_CRASHES = 5
# After this many crashes that are not the worker's fault, the job should try another node.
MOST_MISHAPS = 3
KILLED = {-signal.SIGKILL, 128 + signal.SIGKILL}  # the second is how a shell reports the first
FULL_DISK = os.strerror(errno.ENOSPC)
# Below this many free bytes a disk counts as full.
LEAST_FREE = 1 << 20
HEARTBEAT_CHECK_S = 5.0


class Agent:
    """Runs the worker of one ``Assignment`` until the worker is done or the provider is gone.

    ``leaving`` is true if the provider has asked the node to leave before the worker started.
    """

    def __init__(self, channel: Channel, assignment: Assignment, *, leaving: bool) -> None:
        self._channel = channel
        self._assignment = assignment
        self._heartbeat = Path(assignment.heartbeat) if assignment.heartbeat else None
        self._worker: int | None = None
        self._started = 0.0
        self._pause_s = FIRST_PAUSE_S
        self._crashes: list[float] = []
        self._mishaps: list[float] = []
        self._log_size = 0
        self._verdict: int | None = None
        self._start_at = 0.0
        self._leaving = leaving
        self._beat: float | None = None
        self._silent_s = 0.0
        self._checked = 0.0

    def run(self) -> int:
        """Run until the worker is done (returns 0) or the provider is gone (returns 1)."""
        woken, waker = socket.socketpair()
        waker.setblocking(False)
        signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.set_wakeup_fd(waker.fileno(), warn_on_full_buffer=False)
        while True:
            if self._worker is None and time.monotonic() >= self._start_at and not self._leaving:
                self._start()
            ends = [self._channel.fileno(), woken.fileno()]
            ready, _, _ = select.select(ends, [], [], self._wait_s())
            if woken.fileno() in ready:
                woken.recv(4096)
            if self._channel.fileno() in ready and not self._read_channel():
                end_family(os.getpid(), spare_root=True)
                return 1
            code = self._reap()
            if code is not None and self._is_over(code):
                self._channel.send(Gone(code if self._verdict is None else self._verdict))
                return 0
            self._check_heartbeat()

    def _start(self) -> None:
        if self._heartbeat is not None:
            self._heartbeat.unlink(missing_ok=True)
        self._log_size = _size(self._assignment.log)
        pid = os.fork()
        if pid == 0:
            self._channel.close()
            become_worker(self._assignment)
        self._worker, self._started = pid, time.monotonic()
        self._beat, self._silent_s, self._checked = None, 0.0, time.monotonic()

    def _read_channel(self) -> bool:
        """Act on the provider's messages; return whether the provider is still there."""
        messages = self._channel.receive()
        if messages is None:
            return False
        if any(isinstance(message, Leave) for message in messages):
            self._leaving = True
            if self._worker is not None:
                self._terminate(self._worker)
        return True

    def _terminate(self, worker: int) -> None:
        """Send SIGTERM to the worker."""
        if self._assignment.command:
            # A shell does not forward signals, so the command's whole process group gets it.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(worker, signal.SIGTERM)
                return
        os.kill(worker, signal.SIGTERM)

    def _reap(self) -> int | None:
        """Return the worker's exit code once it has ended; its other processes are killed."""
        code = None
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                break
            if pid == 0:
                break
            if pid == self._worker:
                code = os.waitstatus_to_exitcode(status)
                self._worker = None
                end_family(os.getpid(), spare_root=True)
        if code is None and self._leaving and self._worker is None:
            return -signal.SIGTERM  # The worker was waiting to be restarted.
        return code

    def _is_over(self, code: int) -> bool:
        """Return whether the node's work is over after an exit; if not, schedule a restart."""
        if self._leaving or (code in FINAL and not self._assignment.tireless):
            return True
        if time.monotonic() - self._started > SOUND_S:
            self._pause_s = FIRST_PAUSE_S
            self._crashes.clear()
            self._mishaps.clear()
        mishap = self._mishap(code)
        (self._mishaps if mishap else self._crashes).append(time.time())
        if not self._assignment.tireless:
            if self._fruitless(self._crashes) >= MOST_CRASHES:
                self._log(f"crashed {MOST_CRASHES} times in a row, last with code {code}; given up")
                self._verdict = HOPELESS
                return True
            if self._fruitless(self._mishaps) >= MOST_MISHAPS:
                self._log(f"{mishap or 'killed'}, {MOST_MISHAPS} times; leaving this node")
                self._verdict = BAD_NODE
                return True
        self._log(f"ended with code {code}; restarting in {self._pause_s:g} s")
        self._start_at = time.monotonic() + self._pause_s
        self._pause_s = min(2 * self._pause_s, LONGEST_PAUSE_S)
        return False

    def _mishap(self, code: int) -> str:
        """Return what went wrong if it is not the worker's fault, else an empty text.

        A full disk is seen in the file system, or in the worker's output since its start.
        """
        if code in KILLED:
            return "killed by SIGKILL"
        environment = self._assignment.environment
        places = [self._assignment.folder]
        places += [
            environment[name] for name in (CHECKPOINT_DIR, OUTPUT_DIR) if name in environment
        ]
        said = FULL_DISK.encode() in _read_from(self._assignment.log, self._log_size)
        return "the disk is full" if said or any(map(_is_full, places)) else ""

    def _fruitless(self, crashes: list[float]) -> int:
        """Return the number of ``crashes`` since any node of the job last reported progress."""
        try:
            reported = Path(self._assignment.environment[PROGRESS_FILE]).stat().st_mtime
        except (OSError, KeyError):
            reported = 0.0
        return sum(moment > reported for moment in crashes)

    def _check_heartbeat(self) -> None:
        """Kill a worker whose heartbeat file has not changed for too long.

        Only time that this process has lived through counts. If the whole machine stood still, or
        if its wall clock was set, the worker is not to blame.
        """
        now = time.monotonic()
        elapsed, self._checked = now - self._checked, now
        if self._worker is None or self._heartbeat is None:
            return
        try:
            beat = self._heartbeat.stat().st_mtime
        except OSError:
            return
        if beat != self._beat:
            self._beat, self._silent_s = beat, 0.0
            return
        self._silent_s += min(elapsed, 2 * self._check_s())
        if self._silent_s > self._assignment.heartbeat_timeout_s:
            self._log(f"has sent no heartbeat for {self._silent_s:.0f} s; killing it")
            self._heartbeat.unlink(missing_ok=True)
            os.kill(self._worker, signal.SIGKILL)

    def _wait_s(self) -> float | None:
        """Return the seconds until something is due; None to wait for a message or signal."""
        if self._leaving and self._worker is None:
            return 0.0
        if self._worker is None:
            return max(0.0, self._start_at - time.monotonic())
        if self._heartbeat is None:
            return None
        return self._check_s()

    def _check_s(self) -> float:
        """Return the seconds between two looks at the heartbeat file."""
        return min(HEARTBEAT_CHECK_S, self._assignment.heartbeat_timeout_s / 4)

    def _log(self, message: str) -> None:
        # If the job's folder was removed, nobody reads the log.
        with (
            contextlib.suppress(OSError),
            Path(self._assignment.log).open("a", encoding="utf-8") as log,
        ):
            log.write(f"[duetune] {self._assignment.name} {message}\n")


def _size(file: str) -> int:
    try:
        return Path(file).stat().st_size
    except OSError:
        return 0


def _read_from(file: str, offset: int) -> bytes:
    """Return the file's content after ``offset``, at most its last 64 KiB."""
    try:
        with Path(file).open("rb") as log:
            log.seek(max(offset, _size(file) - (1 << 16)))
            return log.read()
    except OSError:
        return b""


def _is_full(folder: str) -> bool:
    """Return whether the disk of a folder is full; False for a folder that does not exist."""
    try:
        disk = os.statvfs(folder)
    except OSError:
        return False
    return disk.f_blocks > 0 and disk.f_bavail * disk.f_frsize < LEAST_FREE


def serve(connection: socket.socket) -> int:
    """Read the assignment from ``connection``, run it, and return the agent's exit status."""
    connection.set_inheritable(False)
    adopt_orphans()
    channel = Channel(connection)
    while True:
        messages = channel.receive()
        if messages is None:
            return 1
        leaving = any(isinstance(message, Leave) for message in messages)
        for message in messages:
            if isinstance(message, Assignment):
                return Agent(channel, message, leaving=leaving).run()


def become_worker(assignment: Assignment) -> NoReturn:
    """Turn this fork of the agent into the worker. It never returns: the stack is the agent's."""
    code = CRASHED
    try:
        _detach_from_agent(assignment)
        code = _run_command(assignment) if assignment.command else _run_module(assignment)
    except SystemExit as leaving:
        code = _exit_code(leaving.code)
    except BaseException:  # noqa: BLE001 - the last resort before the process ends
        traceback.print_exc()
    finally:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):
                stream.flush()
        # A normal exit would run the exit handlers of the process this one was forked from.
        os._exit(code)


def _detach_from_agent(assignment: Assignment) -> None:
    """Give the worker its own process group, signals, streams, folder and environment."""
    os.setpgid(0, 0)
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGCHLD, signal.SIGINT, signal.SIGTERM, signal.SIGPIPE):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.umask(0o077)  # What a job writes is for its owner alone.
    log = os.open(assignment.log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(log, 1)
    os.dup2(log, 2)
    sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115 - open until the end
    sys.stdout = _lines(1)
    sys.stderr = _lines(2)
    os.chdir(assignment.folder)
    os.environ.clear()
    os.environ.update(assignment.environment)


def _run_command(assignment: Assignment) -> int:
    program, *_ = assignment.command
    try:
        os.execvp(program, assignment.command)  # noqa: S606 - the job's own command
    except OSError as error:
        sys.stderr.write(f"[duetune] cannot start {program!r}: {error.strerror}\n")
    return HOPELESS


def _run_module(assignment: Assignment) -> int:
    # Python ignores SIGPIPE; for other programs it stays at its default.
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    sys.argv = [assignment.module, *assignment.arguments]
    for place in reversed(assignment.environment.get("PYTHONPATH", "").split(os.pathsep)):
        if place and place not in sys.path:
            sys.path.insert(0, place)
    return _exit_code(importlib.import_module(assignment.module).main())


def _exit_code(value: object) -> int:
    """Convert the argument of ``sys.exit`` to an exit status."""
    if value is None:
        return 0
    if isinstance(value, int):
        return value & 0xFF
    sys.stderr.write(f"{value}\n")
    return CRASHED


def _lines(descriptor: int) -> TextIO:
    return open(
        descriptor, "w", buffering=1, encoding="utf-8", errors="backslashreplace", closefd=False
    )


if __name__ == "__main__":
    sys.exit(serve(socket.socket(fileno=int(sys.argv[1]))))
