"""A child process that speaks to an engine for a driver, one line in and one line out.

Libraries of engines are not imported into the controller's process: they set signal handlers and
logging, wait without a limit, or need another environment. A session that does not answer in time
is killed; it has nothing to lose.
"""

from __future__ import annotations

import socket
import subprocess
import weakref
from typing import TYPE_CHECKING, BinaryIO

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class SessionProcess:
    """Runs a command whose last word is the number of its end of a socket.

    ``end`` kills it. That happens at the latest when nobody has this object any more, or when this
    process exits.
    """

    def __init__(
        self, command: Sequence[str], environment: Mapping[str, str] | None = None
    ) -> None:
        self._socket, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(  # noqa: S603 - our own module
                [*command, str(theirs.fileno())],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        self._received = self._socket.makefile("rb")
        self.end = weakref.finalize(self, _end, self._process, self._received, self._socket)

    @property
    def process(self) -> subprocess.Popen[bytes]:
        """Return the child."""
        return self._process

    def exchange(self, line: bytes, limit_s: float) -> bytes:
        """Return the answer to a line; raise OSError if there is none in time."""
        self._socket.settimeout(limit_s)
        self._socket.sendall(line + b"\n")
        if not (answer := self._received.readline()):
            raise ConnectionError("the session process has ended")
        return answer


def _end(process: subprocess.Popen[bytes], received: BinaryIO, channel: socket.socket) -> None:
    process.kill()
    process.wait()
    received.close()
    channel.close()
