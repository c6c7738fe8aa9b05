"""A member's connection to the coordinator of its group.

If the coordinator does not answer, members wait for it. While they wait for an answer they look for
its address again and again, and leave a coordinator that was replaced. A new one has no memory of
the group; ``membership`` explains why that does no harm. The coordinator's own side is in
``coordinator``.
"""

from __future__ import annotations

import logging
import select
import threading
import time
from typing import TYPE_CHECKING

import msgspec

from duetune.training.authentication import cut, dial, expect_reader, receive, send
from duetune.training.membership import Member

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Sequence

_log = logging.getLogger(__name__)

# A quorum takes as long as the slowest member's step. This limit is for a coordinator that was cut
# off without closing the connection.
_QUORUM_S = 120.0
_CONNECT_S = 5.0
_PAUSE_S = 0.1
_LOOK_S = 1.0


class Beat(msgspec.Struct, frozen=True, tag="beat"):
    """The member is alive; sent again and again over one connection."""

    member: str


class Ask(msgspec.Struct, frozen=True, tag="ask"):
    """The member is ready for the next step; the answer is the list of members."""

    member: Member


class CoordinatorClient:
    """A member's connection to the coordinator.

    - ``address``: returns the coordinator's present address; a restarted one has another.
    - ``alive``: called before every heartbeat, because a member that hangs must not look alive.
    """

    def __init__(
        self,
        address: Callable[[], str],
        secret: bytes,
        own_id: str,
        alive: Callable[[], bool],
        heartbeat_s: float,
    ) -> None:
        self._address = address
        self._secret = secret
        self._id = own_id
        self._alive = alive
        self._heartbeat_s = heartbeat_s
        self._connection: socket.socket | None = None
        self._dialled = ""
        self._hushed = threading.Event()
        self._beating = False

    def quorum(self, own: Member) -> Sequence[Member]:
        """Wait for a quorum and return its members; ``own`` is what this one reports to them."""
        warned = False
        # The coordinator counts only members that send heartbeats.
        self._beat()
        while True:
            try:
                members = self._asked(own)
            except (OSError, msgspec.MsgspecError) as error:
                self._disconnect()
                if self._hushed.is_set():
                    raise
                if not warned:
                    _log.warning("the coordinator does not answer (%s); waiting", error)
                    warned = True
                time.sleep(_PAUSE_S)
            else:
                if any(member.id == own.id for member in members):
                    return members

    def hush(self) -> None:
        """Stop the heartbeats; the coordinator then counts this member as gone at once."""
        self._hushed.set()

    def close(self) -> None:
        """Stop the heartbeats and close the connection; a running ``quorum`` fails."""
        self.hush()
        self._disconnect()

    def _asked(self, own: Member) -> Sequence[Member]:
        """Ask once and return the answer; connect first if there is no connection."""
        connection = self._connection
        if connection is None:
            connection, self._dialled = self._connected()
            connection.settimeout(_QUORUM_S)
            self._connection = connection
        send(connection, msgspec.json.encode(Ask(own)))
        until = time.monotonic() + _QUORUM_S
        # One question has one answer, so no part of it waits inside the connection already.
        waiting = select.poll()
        waiting.register(connection, select.POLLIN)
        while not waiting.poll(_LOOK_S * 1000):
            self._keep(self._dialled)
            if time.monotonic() > until:
                raise TimeoutError(f"no answer for {_QUORUM_S:g} s")
        return msgspec.json.decode(receive(connection), type=list[Member])

    def _connected(self) -> tuple[socket.socket, str]:
        address = self._address()
        connection = dial(address, self._secret, _CONNECT_S)
        expect_reader(connection)
        return connection, address

    def _keep(self, dialled: str) -> None:
        """Raise ``ConnectionError`` if the coordinator has another address now."""
        try:
            present = self._address()
        except OSError:
            return
        if present != dialled:
            raise ConnectionError(f"the coordinator is at {present} now")

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            cut(connection)
            connection.close()

    def _beat(self) -> None:
        if not self._beating:
            self._beating = True
            threading.Thread(target=self._send_beats, name="heartbeat", daemon=True).start()

    def _send_beats(self) -> None:
        connection: socket.socket | None = None
        beat, dialled, look_at = msgspec.json.encode(Beat(self._id)), "", 0.0
        while True:
            if self._alive():
                try:
                    if connection is None:
                        connection, dialled = self._connected()
                    elif time.monotonic() >= look_at:
                        self._keep(dialled)
                        look_at = time.monotonic() + _LOOK_S
                    send(connection, beat)
                except OSError:
                    if connection is not None:
                        connection.close()
                    connection = None
            if self._hushed.wait(self._heartbeat_s):
                break
        if connection is not None:
            connection.close()
