"""The file that shows a node's agent that its worker does not hang.

The agent kills a worker whose file exists and has not changed for a while. Members of a group show
each other in another way that they live: see ``coordinator_client``.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from duetune.training.worker_contract import Contract

_log = logging.getLogger(__name__)

_POLL_S = 0.2


class HeartbeatFile:
    """The heartbeat file of one member. Call it while the member works, as often as you like."""

    def __init__(self, contract: Contract) -> None:
        self._path: Path = contract.folder / "heartbeats" / contract.node
        self._next = 0.0

    @contextlib.contextmanager
    def kept_up(self) -> Iterator[None]:
        """Touch the file in a thread, for long work that does not: measuring and writing."""
        done = threading.Event()

        def touch() -> None:
            while not done.wait(_POLL_S):
                self()

        thread = threading.Thread(target=touch, name="heartbeat-file", daemon=True)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()

    def end(self) -> None:
        """Remove the file, so that nobody waits for the next touch. Called when work is over."""
        self._next = float("inf")
        with contextlib.suppress(OSError):
            self._path.unlink(missing_ok=True)

    def __call__(self) -> None:
        if time.monotonic() < self._next:
            return
        self._next = time.monotonic() + _POLL_S
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._path.touch()
        except OSError as error:
            _log.debug("cannot touch the heartbeat file: %s", error)
