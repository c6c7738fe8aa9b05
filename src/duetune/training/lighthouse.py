"""The coordinator, torchft's lighthouse: a member's connection to it, and its server.

If the coordinator does not answer, members wait for it. A restarted one has no memory of the group;
``membership`` explains why that does no harm. Only the compiled part of torchft is loaded here:
importing all of torchft would import torch, which takes seconds that the coordinator does not need.
"""

from __future__ import annotations

import functools
import importlib.machinery
import importlib.util
import logging
import os
import sys
import threading
import time
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from duetune.errors import MissingExtra
from duetune.training.membership import Member

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import ModuleType
    from typing import Protocol

    class Participant(Protocol):
        data: dict[str, object]

    class Quorum(Protocol):
        participants: list[Participant]

    class LighthouseClient(Protocol):
        def quorum(
            self,
            replica_id: str,
            timeout: timedelta,
            *,
            address: str,
            store_address: str,
            step: int,
            world_size: int,
            data: dict[str, object],
        ) -> Quorum: ...

        def heartbeat(self, replica_id: str, timeout: timedelta) -> None: ...

    class LighthouseServer(Protocol):
        def address(self) -> str: ...

        def shutdown(self) -> None: ...


_log = logging.getLogger(__name__)

# A quorum takes as long as the slowest member's step. This limit is for a coordinator that was cut
# off without closing the connection.
_QUORUM = timedelta(seconds=120)
_CONNECT = timedelta(seconds=5)
_HEARTBEAT = timedelta(seconds=2)
_PAUSE_S = 0.1
_NATIVE = "torchft._torchft"


class Lighthouse:
    """A member's connection to the coordinator.

    ``alive`` is called before every heartbeat, because a member that hangs must not look alive.
    """

    def __init__(
        self, address: str, own_id: str, alive: Callable[[], bool], heartbeat_s: float
    ) -> None:
        self._address = address
        self._id = own_id
        self._alive = alive
        self._heartbeat_s = heartbeat_s
        self._client: LighthouseClient | None = None
        self._hushed = threading.Event()
        self._beating = False

    def quorum(self, own: Member) -> Sequence[Member]:
        """Wait for a quorum and return its members; ``own`` is what this one reports to them."""
        warned = False
        # The coordinator accepts only members that send heartbeats.
        self._beat()
        while True:
            try:
                if self._client is None:
                    self._client = lighthouse_client(self._address, _CONNECT)
                found = self._client.quorum(
                    replica_id=self._id,
                    timeout=_QUORUM,
                    address=own.address,
                    store_address=own.store,
                    step=own.step,
                    world_size=1,
                    data=msgspec.to_builtins(own),
                )
            except (RuntimeError, TimeoutError, OSError) as error:
                self._client = None
                if self._hushed.is_set():
                    raise
                _log.debug("%s: %s", self._address, error)
                if not warned:
                    _log.warning("the coordinator at %s does not answer; waiting", self._address)
                    warned = True
                time.sleep(_PAUSE_S)
                continue
            return [msgspec.convert(participant.data, Member) for participant in found.participants]

    def hush(self) -> None:
        """Stop the heartbeats."""
        self._hushed.set()

    def _beat(self) -> None:
        if not self._beating:
            self._beating = True
            threading.Thread(target=self._send_beats, name="heartbeat", daemon=True).start()

    def _send_beats(self) -> None:
        client: LighthouseClient | None = None
        while not self._hushed.wait(self._heartbeat_s):
            if not self._alive():
                continue
            try:
                client = client or lighthouse_client(self._address, _CONNECT)
                client.heartbeat(self._id, _HEARTBEAT)
            except (RuntimeError, TimeoutError, OSError):
                client = None


def lighthouse_client(address: str, connect_timeout: timedelta) -> LighthouseClient:
    """Connect to the coordinator at ``address``."""
    client: LighthouseClient = _native().LighthouseClient(address, connect_timeout)
    return client


def lighthouse_server(
    bind: str, *, heartbeat_timeout_ms: int, join_timeout_ms: int, tick_ms: int
) -> LighthouseServer:
    """Start a lighthouse server. One member is enough for a quorum, so a job always goes on."""
    server: LighthouseServer = _native().LighthouseServer(
        bind=bind,
        min_replicas=1,
        join_timeout_ms=join_timeout_ms,
        quorum_tick_ms=tick_ms,
        heartbeat_timeout_ms=heartbeat_timeout_ms,
    )
    return server


@functools.cache
def _native() -> ModuleType:
    # The library reads this when it is loaded; by default it logs every step.
    os.environ.setdefault("RUST_LOG", "error")
    if _NATIVE in sys.modules:
        return sys.modules[_NATIVE]
    found = importlib.util.find_spec("torchft")
    for folder in (found.submodule_search_locations or ()) if found is not None else ():
        for suffix in importlib.machinery.EXTENSION_SUFFIXES:
            file = Path(folder) / f"_torchft{suffix}"
            spec = importlib.util.spec_from_file_location(_NATIVE, file)
            if file.exists() and spec is not None and spec.loader is not None:
                module = importlib.util.module_from_spec(spec)
                spec.loader.exec_module(module)
                # It cannot be loaded twice; a later import of all of torchft finds it here.
                sys.modules[_NATIVE] = module
                return module
    raise MissingExtra("training in a group", "train")
