from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from duetune.fleets.ray.node_guard import STOP, WARN
from support.patience import until

GRACE_S = 0.2
SCRIPT = "trap 'echo TERM' TERM; sleep 600 & echo $$ $!; while :; do sleep 0.05; done"
STUBBORN = ("sh", "-c", SCRIPT)


class Guarded:
    """A command under a guard, and the socket by which an actor would hold it."""

    def __init__(self, log: Path, *command: str) -> None:
        self.log = log
        self.actor, theirs = socket.socketpair()
        with theirs:
            words = [str(theirs.fileno()), str(GRACE_S), str(log), *command]
            subprocess.run(
                [sys.executable, "-P", "-m", "duetune.fleets.ray.node_guard", *words],
                pass_fds=[theirs.fileno()],
                check=True,
            )

    def processes(self) -> list[int]:
        """Wait for the ids of the command and of its child."""
        until(lambda: self.log.exists() and "\n" in self.log.read_text(), "the command")
        return [int(word) for word in self.log.read_text().split()[:2]]


@pytest.fixture
def guarded(tmp_path):
    made = []

    def make(*command):
        made.append(Guarded(tmp_path / "log", *command))
        return made[-1]

    yield make
    for each in made:
        each.actor.close()


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def parent(pid):
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


@pytest.mark.parametrize("code", [0, 3])
def test_the_actor_is_told_how_the_command_ended(guarded, code):
    assert guarded("sh", "-c", f"exit {code}").actor.recv(64) == str(code).encode()


def test_a_command_that_cannot_start_says_so_in_its_log(guarded):
    each = guarded("/none")
    assert each.actor.recv(64) == b"127"
    assert "cannot run /none" in each.log.read_text()


def test_a_warned_command_gets_sigterm_and_may_stay(guarded):
    each = guarded(*STUBBORN)
    shell, _ = each.processes()
    for number in (1, 2):
        each.actor.sendall(WARN)
        until(lambda: each.log.read_text().count("TERM") == number, "the signal")  # noqa: B023
    assert alive(shell)


@pytest.mark.parametrize("closed", [False, True], ids=["told", "the actor is gone"])
def test_a_stopped_command_gets_sigterm_then_sigkill_with_all_it_started(guarded, closed):
    each = guarded(*STUBBORN)
    processes = each.processes()
    if closed:
        each.actor.close()
    else:
        each.actor.sendall(STOP)
        assert each.actor.recv(64) == b"137"
    until(lambda: not any(map(alive, processes)), "all to be gone")
    assert "TERM" in each.log.read_text()


def test_the_command_dies_with_its_guard(guarded):
    each = guarded(*STUBBORN)
    shell, child = each.processes()
    os.kill(parent(shell), signal.SIGKILL)
    until(lambda: not alive(shell), "the command to be gone")
    os.kill(child, signal.SIGKILL)


def test_the_guard_is_no_child_of_the_actor(guarded):
    """Ray kills the children of an actor's process when it ends, before the command could leave."""
    each = guarded(*STUBBORN)
    shell, _ = each.processes()
    assert parent(parent(shell)) != os.getpid()
