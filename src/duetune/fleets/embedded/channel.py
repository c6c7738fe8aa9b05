"""What a provider and a node's agent say to each other: JSON lines over a socket pair.

The pair also tells each when the other is dead, since only these two hold its ends.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    import socket


class Assignment(msgspec.Struct, frozen=True, tag="assignment"):
    """The first line: what to run, in which environment, and where its output goes.

    ``tireless``: start it again however it ends, as for a coordinator.
    """

    name: str
    folder: str
    log: str
    environment: dict[str, str]
    module: str = ""
    arguments: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    heartbeat: str = ""
    heartbeat_timeout_s: float = 60.0
    tireless: bool = False


class Leave(msgspec.Struct, frozen=True, tag="leave"):
    """Ask what runs to end, and do not start it again."""


class Gone(msgspec.Struct, frozen=True, tag="gone"):
    """It ended for good. A negative code is the signal that killed it."""

    code: int


Message = Assignment | Leave | Gone


class Channel:
    """One end of the pair."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self._rest = b""

    def fileno(self) -> int:
        return self.connection.fileno()

    def send(self, message: Message) -> bool:
        """Whether the other end was still there."""
        try:
            self.connection.sendall(msgspec.json.encode(message) + b"\n")
        except OSError:
            return False
        return True

    def receive(self) -> list[Message] | None:
        """The lines that have come, waiting for at least some bytes; None: the other is gone."""
        try:
            chunk = self.connection.recv(65536)
        except OSError:
            return None
        if not chunk:
            return None
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        return [msgspec.json.decode(line, type=Message) for line in lines]

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self.connection.close()
