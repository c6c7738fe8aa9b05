"""A member's connection to the coordinator of its group.

If the coordinator does not answer, members wait for it. A restarted one has no memory of the group;
``membership`` explains why that does no harm. The coordinator's own side is in ``coordinator``.
"""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING

import msgspec

from duetune.training.authentication import dial, receive, send
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
        self._hushed = threading.Event()
        self._beating = False

    def quorum(self, own: Member) -> Sequence[Member]:
        """Wait for a quorum and return its members; ``own`` is what this one reports to them."""
        warned = False
        # The coordinator counts only members that send heartbeats.
        self._beat()
        while True:
            try:
                if self._connection is None:
                    self._connection = dial(self._address(), self._secret, _CONNECT_S)
                    self._connection.settimeout(_QUORUM_S)
                send(self._connection, msgspec.json.encode(Ask(own)))
                members = msgspec.json.decode(receive(self._connection), type=list[Member])
                if any(member.id == own.id for member in members):
                    return members
            except (OSError, msgspec.MsgspecError) as error:
                self._disconnect()
                if self._hushed.is_set():
                    raise
                if not warned:
                    _log.warning("the coordinator does not answer (%s); waiting", error)
                    warned = True
                time.sleep(_PAUSE_S)

    def hush(self) -> None:
        """Stop the heartbeats; the coordinator then counts this member as gone at once."""
        self._hushed.set()

    def close(self) -> None:
        """Stop the heartbeats and close the connection; a running ``quorum`` fails."""
        self.hush()
        self._disconnect()

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _beat(self) -> None:
        if not self._beating:
            self._beating = True
            threading.Thread(target=self._send_beats, name="heartbeat", daemon=True).start()

    def _send_beats(self) -> None:
        connection: socket.socket | None = None
        beat = msgspec.json.encode(Beat(self._id))
        while True:
            if self._alive():
                try:
                    connection = connection or dial(self._address(), self._secret, _CONNECT_S)
                    send(connection, beat)
                except OSError:
                    if connection is not None:
                        connection.close()
                    connection = None
            if self._hushed.wait(self._heartbeat_s):
                break
        if connection is not None:
            connection.close()
