"""Runs the command of a node, and ends it when Ray's process for the node is gone.

Ray kills the process of an actor without warning, for example when the raylet dies. It kills the
direct children of that process too, but not their children. So the guard detaches itself from the
actor and watches a socket to it: the end of the socket is the end of the actor.

The protocol: the actor sends ``WARN`` or ``STOP``, the guard answers with the exit status.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

from duetune.fleets.embedded.processes import adopt_orphans, end_family

WARN = b"w"
"""Send the command SIGTERM; it may leave in its own time."""
STOP = b"s"
"""Send the command SIGTERM, and SIGKILL after the grace."""
CANNOT_START = 127
_DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG of linux/prctl.h


def guard(actor: socket.socket, command: list[str], log: str, grace_s: float) -> int:
    """Run a command until it ends by itself or must end; return its exit status, 128 + signal if a
    signal ended it.
    """
    with Path(log).open("ab", buffering=0) as file:
        try:
            child = subprocess.Popen(  # noqa: S603 - the order's command
                command,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                process_group=0,
                preexec_fn=_die_with_guard,  # noqa: PLW1509 - the guard has no threads
            )
        except OSError as error:
            file.write(f"cannot run {command[0]}: {error}\n".encode())
            return CANNOT_START
    kill_at = _watch(actor, child, grace_s)
    if kill_at is not None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(max(0.0, kill_at - time.monotonic()))
    # Whatever the command has started and left behind goes with it.
    end_family(os.getpid(), spare_root=True)
    code = child.wait()
    return code if code >= 0 else 128 - code


def _watch(actor: socket.socket, child: subprocess.Popen[bytes], grace_s: float) -> float | None:
    """Pass signals on until the command has ended (None) or must end (the time of SIGKILL)."""
    ended = os.pidfd_open(child.pid)
    poll = select.poll()
    for descriptor in (ended, actor.fileno()):
        poll.register(descriptor, select.POLLIN)
    while True:
        ready = {descriptor for descriptor, _ in poll.poll()}
        if ended in ready:
            return None
        try:
            word = actor.recv(1)
        except OSError:
            word = b""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGTERM)
        if word != WARN:
            return time.monotonic() + grace_s


def _die_with_guard() -> None:
    ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGKILL, 0, 0, 0)


def main(arguments: list[str]) -> None:
    """Detach from the actor, run the command and tell the actor its exit status."""
    descriptor, grace, log, *command = arguments
    if os.fork():
        os._exit(0)
    os.setsid()
    adopt_orphans()
    # The guard ends after the command, whoever signals it. The command would inherit SIG_IGN.
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda _number, _frame: None)
    with socket.socket(fileno=int(descriptor)) as actor:
        os.set_inheritable(actor.fileno(), False)
        code = guard(actor, command, log, float(grace))
        with contextlib.suppress(OSError):
            actor.sendall(str(code).encode())


if __name__ == "__main__":
    main(sys.argv[1:])
