"""Nodes on a Ray cluster: every node is a named detached actor that runs the node's command.

All calls of Ray are made in a process of their own (``ray_session``). ``ray.init`` in the
controller's process would set its signal handlers, its logging and its exit hooks. Ray's C++ code
waits without a limit for a head that does not answer, cannot be interrupted, and ends the whole
process when the head has been away for a minute. A session that does not answer in time is killed,
and the next call starts another: that takes about a second, and then a listing takes 5 ms.
"""

from __future__ import annotations

import socket
import sys
import threading
from importlib.util import find_spec
from typing import TYPE_CHECKING

import msgspec

from duetune.errors import FleetError, MissingExtra
from duetune.fleets.driver import Finding
from duetune.fleets.ray.session_messages import (
    Check,
    List,
    Measure,
    Reply,
    Request,
    Start,
    Stop,
)
from duetune.fleets.session_process import SessionProcess

if TYPE_CHECKING:
    from collections.abc import Sequence

    from duetune.fleets.driver import Capacity, EngineNode, NodeOrder
    from duetune.fleets.ray.ray_settings import RaySettings

START_S = 30.0
"""Seconds for a session process to import Ray and to reach the head."""
CHECK_S = 90.0
"""Seconds for a check, which starts a task on each kind of machine."""
REACH_S = 3.0
"""Seconds for a connection to the head, before Ray itself is asked."""


class RayDriver:
    """Starts, stops and lists the nodes of one fleet: actors whose names begin with ``prefix``.

    Ray has no priorities, prices or deadlines of requests: they are left to ``engine_fleet``.
    """

    def __init__(self, settings: RaySettings, *, prefix: str) -> None:
        self._settings = settings
        self._prefix = prefix
        self._session: _Session | None = None
        self._turn = threading.Lock()

    def start(self, order: NodeOrder) -> None:
        """Make the actor of a node. It waits in Ray until a machine has room for it."""
        if not order.name.startswith(self._prefix):
            raise FleetError(f"{order.name} does not begin with {self._prefix}", retry=False)
        self._ask(Start(order))

    def stop(self, name: str) -> None:
        """Send the node's command SIGTERM and, after the grace, SIGKILL; withdraw what waits."""
        self._ask(Stop(name))

    def list(self) -> Sequence[EngineNode]:
        """Return the nodes of the fleet; Ray remembers the last 100,000 that have ended."""
        return [node for node in self._ask(List()).nodes if node.name.startswith(self._prefix)]

    def capacity(self) -> Capacity:
        """Return the GPUs that are free on machines of each kind."""
        return self._ask(Measure()).capacity

    def check(self) -> Sequence[Finding]:
        """Return whether the cluster can be used, and what is wrong with it if not."""
        try:
            return self._ask(Check(), CHECK_S).findings
        except FleetError as error:
            return (Finding(f"the head at {self._settings.address} answers", str(error)),)

    def close(self) -> None:
        """End the session process. The nodes stay, and a later call starts another session."""
        with self._turn:
            self._discard()

    def _ask(self, request: Request, limit_s: float | None = None) -> Reply:
        """Return the session's answer. Whatever goes wrong, the next call has a fresh session."""
        with self._turn:
            self._reach()
            try:
                if self._session is None:
                    self._session = _Session(self._settings)
                reply = self._session.ask(request, limit_s or self._settings.answer_s)
            except (OSError, msgspec.MsgspecError) as error:
                self._discard()
                raise FleetError(f"{self._named()} does not answer: {error}", retry=True) from None
            if reply.error and reply.retry:
                self._discard()
        if reply.error:
            raise FleetError(f"{self._named()}: {reply.error}", retry=reply.retry)
        return reply

    def _reach(self) -> None:
        """Raise an error at once if nobody listens, so that Ray does not wait for it."""
        host, _, port = self._settings.address.rpartition(":")
        limit_s = min(REACH_S, self._settings.answer_s)
        try:
            socket.create_connection((host.strip("[]"), int(port)), limit_s).close()
        except OSError as error:
            # A session that has joined the cluster may not find back to a restarted head.
            self._discard()
            raise FleetError(f"{self._named()} cannot be reached: {error}", retry=True) from None

    def _discard(self) -> None:
        if self._session is not None:
            self._session.end()
            self._session = None

    def _named(self) -> str:
        return f"the Ray cluster at {self._settings.address}"


class _Session:
    """The session process, as its driver sees it."""

    def __init__(self, settings: RaySettings) -> None:
        if find_spec("ray") is None:
            raise MissingExtra("a fleet on Ray", "ray")
        self._process = SessionProcess([sys.executable, "-P", "-m", f"{__package__}.ray_session"])
        self.process = self._process.process
        self.end = self._process.end
        try:
            reply = self._exchange(msgspec.json.encode(settings), START_S)
            if reply.error:
                raise ConnectionError(reply.error)  # noqa: TRY301 - the session ends with it
        except BaseException:
            self.end()
            raise

    def ask(self, request: Request, limit_s: float) -> Reply:
        """Return the answer to a request; raise OSError if there is none in time."""
        return self._exchange(msgspec.json.encode(request), limit_s)

    def _exchange(self, line: bytes, limit_s: float) -> Reply:
        return msgspec.json.decode(self._process.exchange(line, limit_s), type=Reply)
