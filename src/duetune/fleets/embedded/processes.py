"""Finds and kills all processes that a node has started, including daemons.

A node's agent leads its own session and adopts orphaned descendants. The node's family is therefore
the agent's session and all descendants of the agent. Linux lists them in ``/proc``. On systems
without it, only the agent's process group is killed.
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
    """One line of the process table; ``state`` is the letter that ``ps`` shows."""

    pid: int
    parent: int
    session: int
    state: str


def adopt_orphans() -> None:
    """Make this process the parent of its orphaned descendants (Linux only)."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_ADOPT_ORPHANS, 1, 0, 0, 0)


def running() -> list[Process]:
    """Return all processes that have not ended; an empty list on systems without ``/proc``."""
    return [process for process in _process_table() if process.state not in _GONE]


def _process_table() -> list[Process]:
    found = []
    for entry in _numbers():
        with contextlib.suppress(OSError, ValueError, IndexError):
            text = (PROC / entry / "stat").read_text(errors="replace")
            # The program's name is in brackets and may itself contain brackets.
            state, parent, _group, session = text.rpartition(")")[2].split()[:4]
            found.append(Process(int(entry), int(parent), int(session), state))
    return found


def family(root: int) -> set[int]:
    """Return the processes of the session that ``root`` leads and all descendants of ``root``."""
    table = running()
    members = {process.pid for process in table if process.session == root} | {root}
    while more := {process.pid for process in table if process.parent in members} - members:
        members |= more
    return members - {root}


def end_family(root: int, *, spare_root: bool = False) -> bool:
    """Kill an agent and all its descendants; return whether none is left.

    The agent is killed last: until then it adopts descendants that lose their parent.
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
    """Kill children of this process that are not in ``known``; return whether there were any.

    Such children are orphans of nodes that have ended.
    """
    own = os.getpid()
    children = {process.pid for process in _process_table() if process.parent == own}
    strays = children - known
    for pid in strays:
        send(pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)
    return bool(strays)


def marked(folder: Path) -> list[int]:
    """Return all direct and indirect child processes of providers of ``folder``."""
    wanted = f"{MARK}={folder}".encode()
    found = []
    for entry in _numbers():
        with contextlib.suppress(OSError):
            if wanted in (PROC / entry / "environ").read_bytes().split(b"\0"):
                found.append(int(entry))
    return found


def end_marked(folder: Path) -> None:
    """Kill what a provider of ``folder`` has left behind. Called when no provider runs there."""
    deadline = time.monotonic() + _PATIENCE_S
    while time.monotonic() < deadline:
        alive = {process.pid for process in running()} & set(marked(folder)) - {os.getpid()}
        if not alive:
            return
        for pid in alive:
            send(pid, signal.SIGKILL)
        time.sleep(0.01)


def send(pid: int, number: signal.Signals) -> bool:
    """Send a signal; return whether the process exists and may be signalled."""
    try:
        os.kill(pid, number)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def _numbers() -> list[str]:
    with contextlib.suppress(OSError):
        return [entry.name for entry in PROC.iterdir() if entry.name.isdigit()]
    return []
