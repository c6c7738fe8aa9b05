"""The journal in a database."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlalchemy import func, insert, select
from sqlalchemy.exc import IntegrityError

from duetune.errors import StaleController
from duetune.store import read_models, sql_tables
from duetune.store.codec import encode_event
from duetune.store.projection import Follower
from duetune.store.streams import check_stream, read_stream

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from sqlalchemy.engine import Connection

    from duetune.core.events import Event, Recorded
    from duetune.store.database import Database

KEPT = 1024
"""How many streams' states are kept in memory at most; any other is replayed when it is needed."""


class DatabaseJournal:
    """Implements ``duetune.core.ports.Journal``. The read models follow in the same transaction,
    so they are never behind; an event is on disk when ``append`` returns.

    The states of the streams that were written to last are kept in memory, so that an append does
    not replay its stream. A state is taken out while a transaction changes it and comes back when
    that is committed: no two threads share one, and one that failed halfway is never used again.
    """

    def __init__(self, database: Database, clock: Callable[[], float]) -> None:
        self._database = database
        self._clock = clock
        self._followers: dict[str, Follower] = {}

    def append(self, stream: str, events: Sequence[Event], *, expected: int) -> int:
        check_stream(stream)
        lines = [encode_event(event) for event in events]
        now = self._clock()
        with self._database.writing() as connection:
            if _length(connection, stream) != expected:
                raise StaleController(stream, expected)
            if not lines:
                return expected
            rows = [
                {
                    "stream": stream,
                    "position": position,
                    "schema": line.schema,
                    "tag": line.tag,
                    "body": line.body,
                    "recorded_at": now,
                }
                for position, line in enumerate(lines, expected + 1)
            ]
            follower = read_models.caught_up(
                connection, self._followers.pop(stream, Follower(stream)), length=expected
            )
            try:
                connection.execute(insert(sql_tables.journal), rows)
            except IntegrityError as race:
                # Somebody took the position after we had looked; the primary key decides.
                raise StaleController(stream, expected) from race
            read_models.follow(connection, follower, [line.event for line in lines], at=now)
        self._keep(follower)
        return expected + len(lines)

    def _keep(self, follower: Follower) -> None:
        if follower.over:
            return
        self._followers[follower.stream] = follower
        if len(self._followers) > KEPT:
            # The first is the one that was written to the longest time ago.
            self._followers.pop(next(iter(self._followers)), None)

    def read(self, stream: str, *, after: int = 0) -> list[Recorded]:
        with self._database.reading() as connection:
            return read_stream(connection, stream, after=after)

    def streams(self) -> list[str]:
        """Every stream there is, by name."""
        stream = sql_tables.journal.c.stream
        with self._database.reading() as connection:
            return sorted(connection.scalars(select(stream).distinct()))

    def length(self, stream: str) -> int:
        """How many events a stream has; none if nobody has written to it."""
        with self._database.reading() as connection:
            return _length(connection, stream)


def _length(connection: Connection, stream: str) -> int:
    """Positions count from 1 without gaps, so the last one is the length."""
    last = select(func.max(sql_tables.journal.c.position)).where(
        sql_tables.journal.c.stream == stream
    )
    return int(connection.scalar(last) or 0)
