"""A lock file that at most one process holds, and the identity of that process.

A process id alone may belong to another process a moment later. So the holder also writes when it
was started, and it is signalled only if both still fit. Asking who holds a lock takes no lock. A
second line of the file may say what the lock is for; it stays when the holder has ended.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import sys
from pathlib import Path
from typing import NamedTuple

from duetune.wall_clock import boot_id

_GONE = {"Z", "X"}


class ProcessIdentity(NamedTuple):
    """One process for all time: its id, its start in ticks after the machine's, and that start.

    ``started`` is 0 on systems without ``/proc``; the id alone must do there.
    """

    pid: int
    started: int
    boot: str

    def alive(self) -> bool:
        """Return whether this very process still runs."""
        if self.boot != boot_id():
            return False
        if not self.started:
            with contextlib.suppress(OSError):
                os.kill(self.pid, 0)
                return True
            return False
        return started_at(self.pid) == self.started

    def send(self, number: signal.Signals) -> bool:
        """Send a signal to this very process; return False if it has ended."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if sys.platform != "linux":
                if not self.alive():
                    return False
                os.kill(self.pid, number)
                return True
            # The descriptor stays with the process that has the id now, so the check after it
            # is still true when the signal is sent.
            descriptor = os.pidfd_open(self.pid)
            try:
                if self.alive():
                    signal.pidfd_send_signal(descriptor, number)
                    return True
            finally:
                os.close(descriptor)
        return False


def identity_of(pid: int) -> ProcessIdentity:
    """Return the identity of a process that runs now."""
    return ProcessIdentity(pid, started_at(pid) or 0, boot_id())


def started_at(pid: int) -> int | None:
    """Return when a process was started, in ticks; None if it has ended or ``/proc`` is missing."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
        # The program's name is in brackets and may itself contain brackets.
        fields = text.rpartition(")")[2].split()
        return None if fields[0] in _GONE else int(fields[19])
    except (OSError, ValueError, IndexError):
        return None


def hold(path: Path, note: str = "") -> int | None:
    """Take the lock until this process ends and return its descriptor; None if it is taken.

    ``note`` becomes the second line of the file.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    line = " ".join(map(str, identity_of(os.getpid())))
    first, second = f"{line:<79}\n".encode(), f"{note}\n".encode() if note else b""
    # The identity comes last: whoever finds it finds the note as well.
    os.pwrite(descriptor, second, len(first))
    os.ftruncate(descriptor, len(first) + len(second))
    os.pwrite(descriptor, first, 0)
    return descriptor


def holder(path: Path) -> ProcessIdentity | None:
    """Return the process that holds the lock; None if nobody does."""
    try:
        pid, started, *boot = path.read_text().partition("\n")[0].split()
        found = ProcessIdentity(int(pid), int(started), "".join(boot))
    except (OSError, ValueError):
        return None
    return found if found.alive() else None


def note_in(path: Path) -> str:
    """Return what a lock is for, as its last holder has written; empty if it has not."""
    try:
        return path.read_text().partition("\n")[2].strip()
    except (OSError, ValueError):
        return ""
