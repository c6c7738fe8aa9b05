"""A journal in memory, for tests and experiments; it ends with the process."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from duetune.core.events import SCHEMA, Recorded
from duetune.errors import StaleController
from duetune.store.codec import check_stream, decode_event, encode_event

if TYPE_CHECKING:
    from collections.abc import Sequence

    from duetune.core.events import Event


class MemoryJournal:
    """Implements ``duetune.core.ports.Journal``; keeps events as JSON, as a database does."""

    def __init__(self) -> None:
        self._bodies: dict[str, list[str]] = {}
        self._lock = threading.Lock()

    def append(self, stream: str, events: Sequence[Event], *, expected: int) -> int:
        """Append ``events`` and return the new length; see ``Journal.append``."""
        check_stream(stream)
        lines = [encode_event(event) for event in events]
        with self._lock:
            if self.length(stream) != expected:
                raise StaleController(stream, expected)
            if lines:
                self._bodies.setdefault(stream, []).extend(line.body for line in lines)
            return self.length(stream)

    def read(self, stream: str, *, after: int = 0) -> list[Recorded]:
        """Return the events behind position ``after``, in order."""
        with self._lock:
            bodies = list(self._bodies.get(stream, ()))
        after = max(0, after)
        return [
            Recorded(position, decode_event(body, schema=SCHEMA, stream=stream, position=position))
            for position, body in enumerate(bodies[after:], after + 1)
        ]

    def streams(self) -> list[str]:
        """Return the names of all streams, sorted."""
        return sorted(self._bodies)

    def length(self, stream: str) -> int:
        """Return how many events a stream has."""
        return len(self._bodies.get(stream, ()))
