"""Connections between processes of one job, which prove to each other that they know its secret.

Every listening socket of a training group is a ``Door``. Both sides of a new connection send a
random number, and each answers with an HMAC of both numbers, its role and the address of the door.
The secret itself is never sent, so a stranger who listens on the port of a dead process learns
nothing, and a stranger in the middle cannot pass the answers on to another door. After that the
connection carries plain frames: nobody but root can read or change them on one machine. A network
that is not private needs TLS or a VPN around them.
"""

from __future__ import annotations

import contextlib
import hmac
import logging
import secrets
import socket
import threading
import time
from collections import OrderedDict
from typing import TYPE_CHECKING

from duetune.core.node_contract import JOB_SECRET
from duetune.errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_log = logging.getLogger(__name__)

_GREETING = b"duetune1"
_BYTES = 32
_LENGTH_BYTES = 8
MOST_BYTES = 16 << 20
"""The largest frame that ``receive`` accepts, in bytes."""
LEAST_SECRET = 32
"""The shortest secret that is accepted, in characters."""
_HANDSHAKE_S = 5.0
# So many connections may be open before they have shown the secret. One more closes the oldest, so
# a stranger can neither use up the descriptors nor keep members out for long.
_MOST_STRANGERS = 32
_ACCEPT_PAUSE_S = 0.05


class Refused(ConnectionError):
    """The other side does not know the job's secret."""


def job_secret(environ: Mapping[str, str]) -> bytes:
    """Return the job's secret from the environment; ``InvalidInput`` if it is missing or short."""
    text = environ.get(JOB_SECRET, "")
    if len(text) < LEAST_SECRET:
        allowed = f"at least {LEAST_SECRET} random characters, the same for the whole group"
        raise InvalidInput(JOB_SECRET, f"{len(text)} characters", allowed)
    return text.encode()


def dial(address: str, secret: bytes, timeout_s: float) -> socket.socket:
    """Connect to the door at ``address`` (``tcp://host:port``) and return the connection.

    ``Refused`` is raised if the door does not know the secret; ``OSError`` if nobody listens. The
    timeout stays set for the connection.
    """
    host, _, port = address.removeprefix("tcp://").rpartition(":")
    if not host or not port.isdigit():
        raise Refused(f"{address!r} is not an address of a door")
    connection = socket.create_connection((host, int(port)), timeout_s)
    try:
        _introduce(connection, secret)
    except BaseException:
        connection.close()
        raise
    return connection


def _introduce(connection: socket.socket, secret: bytes) -> None:
    """Prove the knowledge of the secret to a door, and ask the same of it."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    peer = connection.getpeername()
    if connection.getsockname() == peer:
        # Nobody listens, and the kernel has connected the socket to itself.
        raise ConnectionRefusedError("nobody listens there")
    greeting = _exactly(connection, len(_GREETING) + _BYTES)
    if not greeting.startswith(_GREETING):
        raise Refused("this is not a door of a job")
    theirs, ours = greeting[len(_GREETING) :], secrets.token_bytes(_BYTES)
    connection.sendall(ours + _proof(secret, b"client", peer, theirs, ours))
    answer = _exactly(connection, _BYTES)
    if not hmac.compare_digest(answer, _proof(secret, b"server", peer, theirs, ours)):
        raise Refused("the door does not know the job's secret")


def send(connection: socket.socket, content: bytes) -> None:
    """Send one frame."""
    connection.sendall(len(content).to_bytes(_LENGTH_BYTES, "big") + content)


def receive(connection: socket.socket) -> bytes:
    """Return the next frame; ``ConnectionError`` if the other side has closed the connection."""
    length = int.from_bytes(_exactly(connection, _LENGTH_BYTES), "big")
    if length > MOST_BYTES:
        raise ConnectionError(f"a frame of {length} bytes is too long")
    return _exactly(connection, length)


def fill(connection: socket.socket, place: memoryview) -> None:
    """Read bytes until ``place`` is full."""
    done = 0
    while done < len(place):
        count = connection.recv_into(place[done:])
        if not count:
            raise ConnectionError("the connection ended early")
        done += count


class Door:
    """Listens on one address and hands every connection that shows the secret to ``serve``.

    ``serve`` runs in a thread of its own. It returns true if it keeps the connection open.
    ``address`` is what others ``dial``.
    """

    def __init__(
        self, bind: str, port: int, secret: bytes, serve: Callable[[socket.socket], bool]
    ) -> None:
        self._secret = secret
        self._serve = serve
        self._strangers: OrderedDict[socket.socket, None] = OrderedDict()
        self._lock = threading.Lock()
        self._open = True
        self._listener = socket.create_server((bind, port), backlog=256)
        host, found = self._listener.getsockname()[:2]
        self.address = f"tcp://{host}:{found}"
        threading.Thread(target=self._accept, name="door", daemon=True).start()

    def close(self) -> None:
        """Stop listening. Connections that ``serve`` holds stay open."""
        self._open = False
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        while self._open:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                # Too many open files, or the door was closed.
                time.sleep(_ACCEPT_PAUSE_S)
                continue
            with self._lock:
                self._strangers[connection] = None
                if len(self._strangers) > _MOST_STRANGERS:
                    oldest, _ = self._strangers.popitem(last=False)
                    with contextlib.suppress(OSError):
                        oldest.shutdown(socket.SHUT_RDWR)
            threading.Thread(
                target=self._meet, args=(connection,), name="door-connection", daemon=True
            ).start()

    def _meet(self, connection: socket.socket) -> None:
        kept = False
        try:
            welcomed = self._welcome(connection)
            with self._lock:
                self._strangers.pop(connection, None)
            kept = welcomed and self._serve(connection)
        except (OSError, ValueError) as error:
            # A peer that leaves in the middle is normal.
            _log.debug("%s: %s", self.address, error)
        finally:
            with self._lock:
                self._strangers.pop(connection, None)
            if not kept:
                connection.close()

    def _welcome(self, connection: socket.socket) -> bool:
        """Return whether the other side knows the secret; it learns the same about this one."""
        connection.settimeout(_HANDSHAKE_S)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        own, ours = connection.getsockname(), secrets.token_bytes(_BYTES)
        connection.sendall(_GREETING + ours)
        answer = _exactly(connection, 2 * _BYTES)
        theirs, proof = answer[:_BYTES], answer[_BYTES:]
        if not hmac.compare_digest(proof, _proof(self._secret, b"client", own, ours, theirs)):
            return False
        connection.sendall(_proof(self._secret, b"server", own, ours, theirs))
        return True


def _proof(secret: bytes, role: bytes, address: tuple[object, ...], *numbers: bytes) -> bytes:
    place = f"{address[0]}:{address[1]}".encode()
    return hmac.digest(secret, b"\0".join((role, place, *numbers)), "sha256")


def _exactly(connection: socket.socket, length: int) -> bytes:
    content = bytearray(length)
    fill(connection, memoryview(content))
    return bytes(content)
