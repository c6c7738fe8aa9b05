"""Keeps the read models in step with the journal, inside the transaction that appends."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from sqlalchemy import bindparam, delete, insert, select, text, update

from duetune.core.events import UserRequested
from duetune.store import sql_tables
from duetune.store.database import batched, parsed
from duetune.store.inbox import take
from duetune.store.projection import Follower
from duetune.store.rows import Charge
from duetune.store.streams import read_stream

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from sqlalchemy.engine import Connection

    from duetune.core.events import Event
    from duetune.store.rows import JobRow


def follow(
    connection: Connection, follower: Follower, events: Sequence[Event], *, at: float
) -> None:
    """Bring the read models of a stream up to ``events``, which were just appended. ``follower``
    has taken all that came before them, and takes them now.
    """
    fresh = follower.take(events)
    _write_row(connection, follower.row())
    _write_charges(connection, fresh, _known(connection, follower.stream, fresh))
    _take_wishes(connection, follower.stream, events, at=at)


def caught_up(connection: Connection, follower: Follower, *, length: int) -> Follower:
    """``follower`` once it has taken the first ``length`` events of its stream. It reads only what
    is new to it; one that is ahead of the journal is of no use, and a new one begins.
    """
    if follower.length > length:
        follower = Follower(follower.stream)
    if follower.length < length:
        found = read_stream(connection, follower.stream, after=follower.length)
        follower.take(each.event for each in found if each.position <= length)
    return follower


def rebuild(connection: Connection, *, at: float) -> int:
    """Compute all read models anew from the journal; returns how many jobs there are."""
    if connection.dialect.name == "postgresql":
        # Appends wait, so that none falls between what was read and what is written.
        connection.execute(text("LOCK TABLE journal IN EXCLUSIVE MODE"))
    connection.execute(delete(sql_tables.jobs))
    connection.execute(delete(sql_tables.charges))
    streams = connection.scalars(
        select(sql_tables.journal.c.stream).distinct().order_by(sql_tables.journal.c.stream)
    ).all()
    return sum(_rebuild_stream(connection, stream, at=at) for stream in streams)


def _rebuild_stream(connection: Connection, stream: str, *, at: float) -> bool:
    events = [each.event for each in read_stream(connection, stream)]
    follower = Follower(stream)
    follow(connection, follower, events, at=at)
    return follower.state is not None


def _known(connection: Connection, stream: str, nodes: Iterable[str]) -> dict[str, Charge]:
    """The charges so far of ``nodes``."""
    known: dict[str, Charge] = {}
    for some in batched(sorted(nodes)):
        found = connection.execute(
            select(sql_tables.charges).where(
                sql_tables.charges.c.job == stream,
                sql_tables.charges.c.node.in_(some),
            )
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
        connection.execute(
            update(sql_tables.charges)
            .where(columns.job == bindparam("new_job"), columns.node == bindparam("new_node"))
            .values(
                {
                    field: bindparam(f"new_{field}")
                    for field in ("kind", "state", "dollars", "from_at", "to_at")
                }
            ),
            changed,
        )


def _take_wishes(
    connection: Connection, stream: str, events: Sequence[Event], *, at: float
) -> None:
    """A wish is taken by the very transaction that journals it, so it cannot be taken twice."""
    ids = {event.wish_id for event in events if isinstance(event, UserRequested)}
    take(connection, ids, at=at, job=stream)
