"""Keeps the read models in step with the journal, inside the transaction that appends."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from sqlalchemy import bindparam, delete, insert, select, text, update

from duetune.core.events import Reported, Wished
from duetune.store import tables
from duetune.store.codec import decode_event
from duetune.store.database import batched, parsed
from duetune.store.projection import fold, plain
from duetune.store.rows import Charge, JobRow
from duetune.store.wishes import take

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from sqlalchemy.engine import Connection

    from duetune.core.events import Event


def follow(connection: Connection, stream: str, events: Sequence[Event], *, at: float) -> None:
    """Bring the read models of ``stream`` up to ``events``, which were just appended."""
    found = (
        connection.execute(select(tables.jobs).where(tables.jobs.c.id == stream)).mappings().first()
    )
    before = None if found is None else parsed(found, JobRow)
    known = _charges(connection, stream, events)
    row, fresh = fold(before, events, job=stream, known=known)
    if row is not None:
        _write_row(connection, row, new=before is None)
    _write_charges(connection, fresh, known)
    _take_wishes(connection, stream, events, at=at)


def rebuild(connection: Connection, *, at: float) -> int:
    """Compute all read models anew from the journal; returns how many jobs there are."""
    if connection.dialect.name == "postgresql":
        # Appends wait, so that none falls between what was read and what is written.
        connection.execute(text("LOCK TABLE journal IN EXCLUSIVE MODE"))
    connection.execute(delete(tables.jobs))
    connection.execute(delete(tables.charges))
    streams = connection.scalars(
        select(tables.journal.c.stream).distinct().order_by(tables.journal.c.stream)
    ).all()
    return sum(_rebuild_stream(connection, stream, at=at) for stream in streams)


def _rebuild_stream(connection: Connection, stream: str, *, at: float) -> bool:
    columns = tables.journal.c
    lines = connection.execute(
        select(columns.position, columns.schema, columns.body)
        .where(columns.stream == stream)
        .order_by(columns.position)
    )
    events = [
        decode_event(body, schema=schema, stream=stream, position=position)
        for position, schema, body in lines
    ]
    row, charges = fold(None, events, job=stream, known={})
    if row is not None:
        _write_row(connection, row, new=True)
    _write_charges(connection, charges, {})
    _take_wishes(connection, stream, events, at=at)
    return row is not None


def _charges(connection: Connection, stream: str, events: Sequence[Event]) -> dict[str, Charge]:
    """What is known so far of the nodes that ``events`` tell of."""
    nodes = sorted(
        {plain(node.id) for event in events if isinstance(event, Reported) for node in event.nodes}
    )
    known: dict[str, Charge] = {}
    for some in batched(nodes):
        found = connection.execute(
            select(tables.charges).where(
                tables.charges.c.job == stream,
                tables.charges.c.node.in_(some),
            )
        )
        for mapping in found.mappings():
            charge = parsed(mapping, Charge)
            known[charge.node] = charge
    return known


def _write_row(connection: Connection, row: JobRow, *, new: bool) -> None:
    values = msgspec.to_builtins(row)
    if new:
        connection.execute(insert(tables.jobs), values)
    else:
        connection.execute(update(tables.jobs).where(tables.jobs.c.id == row.id).values(values))


def _write_charges(
    connection: Connection, fresh: Mapping[str, Charge], known: Mapping[str, Charge]
) -> None:
    new = [msgspec.to_builtins(charge) for node, charge in fresh.items() if node not in known]
    if new:
        connection.execute(insert(tables.charges), new)
    changed = [
        {f"new_{field}": value for field, value in msgspec.to_builtins(charge).items()}
        for node, charge in fresh.items()
        if node in known and charge != known[node]
    ]
    if changed:
        columns = tables.charges.c
        connection.execute(
            update(tables.charges)
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
    ids = {event.wish_id for event in events if isinstance(event, Wished)}
    take(connection, ids, at=at, job=stream)
