"""Connections between processes of one job, which prove to each other that they know its secret.

Every listening socket of a training group is a ``Door``. Both sides of a new connection send a
random number, and each answers with an HMAC of both numbers, its role and the address of the door.
The secret itself is never sent, so a stranger who listens on the port of a dead process learns
nothing, and a stranger in the middle cannot pass the answers on to another door. After that the
connection carries plain frames: nobody but root can read or change them on one machine. On a
network that is not private a door encrypts (``encryption``); the proofs then cover its certificate,
so that a stranger who decrypts in the middle is refused.
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
from duetune.training.encryption import DoorCertificate, dialled
from duetune.training.network_address import Endpoint, Interface, plain_host

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
# A machine that dies without a word is noticed on an idle connection after 9 s.
_KEEPALIVE = {"TCP_KEEPIDLE": 3, "TCP_KEEPINTVL": 2, "TCP_KEEPCNT": 3}
_SILENCE_S = 10.0


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
    """Connect to the door at ``address`` and return the connection.

    ``Refused`` is raised if the door does not know the secret; ``OSError`` if nobody listens. The
    timeout stays set for the connection.
    """
    try:
        host, port, tls = Endpoint.of(address)
    except ValueError as error:
        raise Refused(str(error)) from None
    connection = socket.create_connection((host, port), timeout_s)
    certificate = b""
    try:
        _check_other_end(connection)
        if tls:
            connection, certificate = dialled(connection)
        _introduce(connection, secret, certificate)
    except BaseException:
        connection.close()
        raise
    return connection


def _check_other_end(connection: socket.socket) -> None:
    if connection.getsockname() == connection.getpeername():
        # Nobody listens, and the kernel has connected the socket to itself.
        raise ConnectionRefusedError("nobody listens there")


def _introduce(connection: socket.socket, secret: bytes, certificate: bytes) -> None:
    """Prove the knowledge of the secret to a door, and ask the same of it."""
    _prepare(connection)
    peer = connection.getpeername()
    greeting = _exactly(connection, len(_GREETING) + _BYTES)
    if not greeting.startswith(_GREETING):
        raise Refused("this is not a door of a job")
    theirs, ours = greeting[len(_GREETING) :], secrets.token_bytes(_BYTES)
    connection.sendall(ours + _proof(secret, b"client", peer, theirs, ours, certificate))
    answer = _exactly(connection, _BYTES)
    if not hmac.compare_digest(answer, _proof(secret, b"server", peer, theirs, ours, certificate)):
        raise Refused("the door does not know the job's secret")


def _prepare(connection: socket.socket) -> None:
    """Send small frames at once, and notice a machine that dies without a word."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEPALIVE.items():
        if (option := getattr(socket, name, None)) is not None:
            connection.setsockopt(socket.IPPROTO_TCP, option, value)


def expect_reader(connection: socket.socket) -> None:
    """End the connection if the other side takes nothing for 10 s.

    It is for short messages, which the other side reads at once. A link whose peer computes must
    not have it: the kernel also counts the time in which the peer's buffer is full.
    """
    if (option := getattr(socket, "TCP_USER_TIMEOUT", None)) is not None:
        connection.setsockopt(socket.IPPROTO_TCP, option, int(_SILENCE_S * 1000))


def cut(connection: socket.socket) -> None:
    """End a connection that another thread may be using; that thread gets an error."""
    # ``SSLSocket.shutdown`` would let that thread send its next bytes unencrypted.
    with contextlib.suppress(OSError):
        socket.socket.shutdown(connection, socket.SHUT_RDWR)


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
    """Listens on one interface and hands every connection that shows the secret to ``serve``.

    ``serve`` runs in a thread of its own. It returns true if it keeps the connection open.
    ``address`` is what others ``dial``.
    """

    def __init__(
        self,
        interface: Interface,
        secret: bytes,
        serve: Callable[[socket.socket], bool],
        *,
        port: int = 0,
    ) -> None:
        self._secret = secret
        self._certificate = DoorCertificate() if interface.tls else None
        self._serve = serve
        self._strangers: OrderedDict[socket.socket, None] = OrderedDict()
        self._lock = threading.Lock()
        self._open = True
        self._listener = interface.listener(port)
        found = self._listener.getsockname()[1]
        self.address = str(Endpoint(interface.host, found, interface.tls))
        threading.Thread(target=self._accept, name="door", daemon=True).start()

    def close(self) -> None:
        """Stop listening. Connections that ``serve`` holds stay open."""
        self._open = False
        cut(self._listener)
        self._listener.close()

    def _accept(self) -> None:
        while self._open:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                # Too many open files, or the door was closed.
                time.sleep(_ACCEPT_PAUSE_S)
                continue
            if self._certificate is not None:
                connection = self._certificate.around(connection)
            with self._lock:
                self._strangers[connection] = None
                if len(self._strangers) > _MOST_STRANGERS:
                    oldest, _ = self._strangers.popitem(last=False)
                    cut(oldest)
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
        _prepare(connection)
        certificate = b""
        if self._certificate is not None:
            certificate = self._certificate.shown(connection)
        own, ours = connection.getsockname(), secrets.token_bytes(_BYTES)
        connection.sendall(_GREETING + ours)
        answer = _exactly(connection, 2 * _BYTES)
        theirs, proof = answer[:_BYTES], answer[_BYTES:]
        expected = _proof(self._secret, b"client", own, ours, theirs, certificate)
        if not hmac.compare_digest(proof, expected):
            return False
        connection.sendall(_proof(self._secret, b"server", own, ours, theirs, certificate))
        return True


def _proof(
    secret: bytes,
    role: bytes,
    address: tuple[str, int],
    door_number: bytes,
    caller_number: bytes,
    certificate: bytes,
) -> bytes:
    # The door's end of this very connection, so a door that listens on all interfaces and its
    # caller mean the same address.
    place = f"{plain_host(address[0])}:{address[1]}".encode()
    fields = (role, place, door_number, caller_number, certificate)
    return hmac.digest(secret, b"\0".join(fields), "sha256")


def _exactly(connection: socket.socket, length: int) -> bytes:
    content = bytearray(length)
    fill(connection, memoryview(content))
    return bytes(content)
