"""The journal in a database, and the read models that are updated in the same transaction.

The read models are the tables ``jobs`` and ``charges``. How rows are computed from events is in
``projection``; questions to the tables are in ``queries``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from sqlalchemy import bindparam, delete, func, insert, select, text, update
from sqlalchemy.exc import IntegrityError

from duetune.core.events import Recorded, UserRequested
from duetune.errors import StaleController
from duetune.store import sql_tables
from duetune.store.codec import check_stream, decode_event, encode_event
from duetune.store.database import batched, parsed
from duetune.store.inbox import take
from duetune.store.projection import Follower
from duetune.store.rows import Charge

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from sqlalchemy.engine import Connection

    from duetune.core.events import Event
    from duetune.store.database import Database
    from duetune.store.rows import JobRow

KEPT = 1024
"""The states of at most this many streams are kept in memory; the others are replayed."""


class DatabaseJournal:
    """Implements ``duetune.core.ports.Journal``; an event is on disk when ``append`` returns.

    The states of the streams that were written last are kept in memory, so an append need not
    replay its stream. A state is removed while a transaction changes it and put back after the
    commit: no two threads share a state, and a state that failed halfway is never used again.
    """

    def __init__(self, database: Database, clock: Callable[[], float]) -> None:
        self._database = database
        self._clock = clock
        self._followers: dict[str, Follower] = {}

    def append(self, stream: str, events: Sequence[Event], *, expected: int) -> int:
        """Append ``events`` and return the new length; see ``Journal.append``."""
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
            follower = _caught_up(
                connection, self._followers.pop(stream, Follower(stream)), length=expected
            )
            try:
                connection.execute(insert(sql_tables.journal), rows)
            except IntegrityError as race:
                # Another writer took the position after our check; the primary key decides.
                raise StaleController(stream, expected) from race
            _follow(connection, follower, [line.event for line in lines], at=now)
        self._keep(follower)
        return expected + len(lines)

    def _keep(self, follower: Follower) -> None:
        if follower.over:
            return
        self._followers[follower.stream] = follower
        if len(self._followers) > KEPT:
            # The first entry is the stream that was not written for the longest time.
            self._followers.pop(next(iter(self._followers)), None)

    def read(self, stream: str, *, after: int = 0) -> list[Recorded]:
        """Return the events behind position ``after``, in order."""
        with self._database.reading() as connection:
            return read_stream(connection, stream, after=after)

    def streams(self) -> list[str]:
        """Return the names of all streams, sorted."""
        stream = sql_tables.journal.c.stream
        with self._database.reading() as connection:
            return sorted(connection.scalars(select(stream).distinct()))

    def length(self, stream: str) -> int:
        """Return how many events a stream has; 0 if it does not exist."""
        with self._database.reading() as connection:
            return _length(connection, stream)


def read_stream(connection: Connection, stream: str, *, after: int = 0) -> list[Recorded]:
    """Return the events of ``stream`` behind position ``after``, in order."""
    columns = sql_tables.journal.c
    found = connection.execute(
        select(columns.position, columns.schema, columns.body)
        .where(columns.stream == stream, columns.position > after)
        .order_by(columns.position)
    )
    return [
        Recorded(position, decode_event(body, schema=schema, stream=stream, position=position))
        for position, schema, body in found
    ]


def rebuild(connection: Connection, *, at: float) -> int:
    """Compute all read models again from the journal; return the number of jobs."""
    if connection.dialect.name == "postgresql":
        # Appends must wait: one between our read and our write would be lost.
        connection.execute(text("LOCK TABLE journal IN EXCLUSIVE MODE"))
    connection.execute(delete(sql_tables.jobs))
    connection.execute(delete(sql_tables.charges))
    stream = sql_tables.journal.c.stream
    jobs = 0
    for name in connection.scalars(select(stream).distinct().order_by(stream)).all():
        follower = Follower(name)
        events = [recorded.event for recorded in read_stream(connection, name)]
        _follow(connection, follower, events, at=at)
        jobs += follower.state is not None
    return jobs


def _length(connection: Connection, stream: str) -> int:
    """Positions count from 1 without gaps, so the last position is the length."""
    last = select(func.max(sql_tables.journal.c.position)).where(
        sql_tables.journal.c.stream == stream
    )
    return int(connection.scalar(last) or 0)


def _caught_up(connection: Connection, follower: Follower, *, length: int) -> Follower:
    """Return a follower that has taken the first ``length`` events of its stream.

    It reads only events that are new to it. A follower that is ahead of the journal is replaced.
    """
    if follower.length > length:
        follower = Follower(follower.stream)
    if follower.length < length:
        found = read_stream(connection, follower.stream, after=follower.length)
        follower.take(recorded.event for recorded in found if recorded.position <= length)
    return follower


def _follow(
    connection: Connection, follower: Follower, events: Sequence[Event], *, at: float
) -> None:
    """Update the read models with ``events``, which were just appended.

    ``follower`` has taken all events before them.
    """
    fresh = follower.take(events)
    _write_row(connection, follower.row())
    _write_charges(connection, fresh, _known(connection, follower.stream, fresh))
    _take_requests(connection, follower.stream, events, at=at)


def _known(connection: Connection, stream: str, nodes: Iterable[str]) -> dict[str, Charge]:
    """Return the charges of ``nodes`` that are in the database."""
    columns = sql_tables.charges.c
    known: dict[str, Charge] = {}
    for some in batched(sorted(nodes)):
        found = connection.execute(
            select(sql_tables.charges).where(columns.job == stream, columns.node.in_(some))
        )
        for mapping in found.mappings():
            charge = parsed(mapping, Charge)
            known[charge.node] = charge
    return known


def _write_row(connection: Connection, row: JobRow | None) -> None:
    if row is None:
        return
    values = msgspec.to_builtins(row)
    found = connection.execute(
        update(sql_tables.jobs).where(sql_tables.jobs.c.id == row.id).values(values)
    )
    if not found.rowcount:
        connection.execute(insert(sql_tables.jobs), values)


def _write_charges(
    connection: Connection, fresh: Mapping[str, Charge], known: Mapping[str, Charge]
) -> None:
    new = [msgspec.to_builtins(charge) for node, charge in fresh.items() if node not in known]
    if new:
        connection.execute(insert(sql_tables.charges), new)
    changed = [
        {f"new_{field}": value for field, value in msgspec.to_builtins(charge).items()}
        for node, charge in fresh.items()
        if node in known and charge != known[node]
    ]
    if changed:
        columns = sql_tables.charges.c
        fields = ("kind", "state", "dollars", "from_at", "to_at")
        connection.execute(
            update(sql_tables.charges)
            .where(columns.job == bindparam("new_job"), columns.node == bindparam("new_node"))
            .values({field: bindparam(f"new_{field}") for field in fields}),
            changed,
        )


def _take_requests(
    connection: Connection, stream: str, events: Sequence[Event], *, at: float
) -> None:
    """Take user requests off the inbox in the transaction that journals them, so only once."""
    ids = {event.wish_id for event in events if isinstance(event, UserRequested)}
    take(connection, ids, at=at, job=stream)
