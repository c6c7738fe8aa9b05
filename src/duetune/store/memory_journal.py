"""A journal that is gone when the process is: for tests, and for trying things out."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from duetune.core.events import SCHEMA, Recorded
from duetune.errors import StaleController
from duetune.store.codec import decode_event, encode_event
from duetune.store.streams import check_stream

if TYPE_CHECKING:
    from collections.abc import Sequence

    from duetune.core.events import Event


class MemoryJournal:
    """Keeps events in writing, as a database does, so that it reads back the same."""

    def __init__(self) -> None:
        self._bodies: dict[str, list[str]] = {}
        self._lock = threading.Lock()

    def append(self, stream: str, events: Sequence[Event], *, expected: int) -> int:
        check_stream(stream)
        lines = [encode_event(event) for event in events]
        with self._lock:
            if self.length(stream) != expected:
                raise StaleController(stream, expected)
            if lines:
                self._bodies.setdefault(stream, []).extend(line.body for line in lines)
            return self.length(stream)

    def read(self, stream: str, *, after: int = 0) -> list[Recorded]:
        with self._lock:
            bodies = list(self._bodies.get(stream, ()))
        after = max(0, after)
        return [
            Recorded(position, decode_event(body, schema=SCHEMA, stream=stream, position=position))
            for position, body in enumerate(bodies[after:], after + 1)
        ]

    def streams(self) -> list[str]:
        return sorted(self._bodies)

    def length(self, stream: str) -> int:
        return len(self._bodies.get(stream, ()))
