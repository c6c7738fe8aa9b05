"""The actor that is a node: it holds the node's resources in Ray; its guard runs the command."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import threading
import time
from typing import NoReturn

import ray

from duetune.fleets.ray.cluster_tables import ClusterTables
from duetune.fleets.ray.node_guard import STOP, WARN

NOTICE_S = 2.0
"""Seconds between two looks whether the machine is drained."""
_LEAVE_S = 30.0
_GUARD_KILLED = 137


class NodeActor:
    """Runs one command, and ends with it. Ray's scheduler decides on which machine.

    Ray tells an actor nothing when its machine is drained, so it looks itself. The driver could
    look too, but then nobody would warn the command while no controller runs.
    """

    def __init__(
        self, command: list[str], environment: dict[str, str], log: str, grace_s: float
    ) -> None:
        context = ray.get_runtime_context()
        self._itself = context.current_actor
        self._machine = str(context.get_node_id())
        self._guard, theirs = socket.socketpair()
        with theirs:
            words = [str(theirs.fileno()), str(grace_s), log, *command]
            subprocess.run(  # noqa: S603 - our own module
                [sys.executable, "-P", "-m", "duetune.fleets.ray.node_guard", *words],
                env=os.environ | environment,
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                check=True,
            )
        for watch in (self._watch_command, self._watch_machine):
            threading.Thread(target=watch, daemon=True).start()

    def stop(self) -> None:
        """End the command: SIGTERM, then SIGKILL after the grace."""
        self._tell(STOP)

    def leave(self, code: int) -> NoReturn:
        """End this actor; Ray keeps the exit status in its words. Only the actor calls it."""
        sys.exit(code)

    def _tell(self, word: bytes) -> None:
        with contextlib.suppress(OSError):
            self._guard.sendall(word)

    def _watch_command(self) -> None:
        """Leave when the guard has said how the command ended, or is gone."""
        said = b""
        with contextlib.suppress(OSError):
            while part := self._guard.recv(64):
                said += part
        code = int(said) if said.isdigit() else _GUARD_KILLED
        # Ray lets an actor exit in a method only. It may be unable to call one while the head is
        # away: then the process just ends.
        self._itself.leave.remote(code)
        time.sleep(_LEAVE_S)
        os._exit(code)

    def _watch_machine(self) -> None:
        """Warn the command once when its machine is drained."""
        tables = None
        while True:
            # A head that is away is no reason to end the node.
            with contextlib.suppress(Exception):
                tables = tables or ClusterTables(ray.get_runtime_context().gcs_address)
                if self._machine in tables.draining():
                    self._tell(WARN)
                    return
            time.sleep(NOTICE_S)
