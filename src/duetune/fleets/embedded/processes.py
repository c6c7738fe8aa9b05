"""Processes as the kernel sees them, so that whatever a node has started ends with it.

A node's agent leads a session of its own and adopts the orphans among its descendants, so a node's
family is the agent's session and its descendants, daemons included. Linux tells this in ``/proc``;
where that is missing, only the process group is ended.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import time
from pathlib import Path
from typing import NamedTuple

PROC = Path("/proc")
MARK = "DUETUNE_FLEET"
_ADOPT_ORPHANS = 36  # PR_SET_CHILD_SUBREAPER of linux/prctl.h
_PATIENCE_S = 2.0
_GONE = {"Z", "X"}


class Process(NamedTuple):
    pid: int
    parent: int
    session: int
    state: str


def adopt_orphans() -> None:
    """Descendants of this process that lose their parent become its children."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_ADOPT_ORPHANS, 1, 0, 0, 0)


def running() -> list[Process]:
    """Every process that is not yet dead; none where the system does not tell."""
    return [each for each in _everyone() if each.state not in _GONE]


def _everyone() -> list[Process]:
    found = []
    for entry in _numbers():
        with contextlib.suppress(OSError, ValueError, IndexError):
            text = (PROC / entry / "stat").read_text(errors="replace")
            # The name of the program is in brackets and may hold anything, brackets too.
            state, parent, _group, session = text.rpartition(")")[2].split()[:4]
            found.append(Process(int(entry), int(parent), int(session), state))
    return found


def family(root: int) -> set[int]:
    """The processes of the session that ``root`` leads and all descendants, without ``root``."""
    everyone = running()
    members = {each.pid for each in everyone if each.session == root} | {root}
    while more := {
        each.pid for each in everyone if each.parent in members and each.pid not in members
    }:
        members |= more
    return members - {root}


def end_family(root: int, *, spare_root: bool = False) -> bool:
    """Kills a node's agent and all that it has started; whether nothing is left.

    The agent goes last: as long as it lives it adopts whoever tries to get away.
    """
    if not spare_root:
        send(root, signal.SIGSTOP)
    deadline = time.monotonic() + _PATIENCE_S
    pause = 0.001
    while (members := family(root)) and time.monotonic() < deadline:
        for pid in members:
            send(pid, signal.SIGKILL)
        time.sleep(pause)
        pause = min(2 * pause, 0.05)
    if not spare_root:
        with contextlib.suppress(OSError):
            os.killpg(root, signal.SIGKILL)
        send(root, signal.SIGKILL)
    return not members


def end_strays(known: set[int]) -> bool:
    """Ends the children of this process that are none of ``known``: the orphans of nodes that are
    gone. Whether there was one.
    """
    own = os.getpid()
    strays = [each.pid for each in _everyone() if each.parent == own and each.pid not in known]
    for pid in strays:
        send(pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)
    return bool(strays)


def marked(folder: Path) -> list[int]:
    """Processes started by a provider of ``folder``, without itself, in whatever depth."""
    wanted = f"{MARK}={folder}".encode()
    found = []
    for entry in _numbers():
        with contextlib.suppress(OSError):
            if wanted in (PROC / entry / "environ").read_bytes().split(b"\0"):
                found.append(int(entry))
    return found


def end_marked(folder: Path) -> None:
    """Ends what a provider of ``folder`` that is gone left behind."""
    deadline = time.monotonic() + _PATIENCE_S
    while time.monotonic() < deadline:
        alive = {each.pid for each in running()} & set(marked(folder)) - {os.getpid()}
        if not alive:
            return
        for pid in alive:
            send(pid, signal.SIGKILL)
        time.sleep(0.01)


def send(pid: int, number: signal.Signals) -> bool:
    """Whether there was somebody to send it to."""
    try:
        os.kill(pid, number)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def _numbers() -> list[str]:
    with contextlib.suppress(OSError):
        return [entry.name for entry in PROC.iterdir() if entry.name.isdigit()]
    return []
