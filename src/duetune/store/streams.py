"""Streams: a stream is the story of one job, and bears its id."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlalchemy import select

from duetune.core.events import Recorded
from duetune.errors import InvalidInput
from duetune.store import sql_tables
from duetune.store.codec import decode_event

if TYPE_CHECKING:
    from sqlalchemy.engine import Connection

LONGEST = 200


def check_stream(stream: str) -> None:
    """A name is a key on every database, and stands in messages and paths."""
    if not stream or len(stream) > LONGEST or not stream.isprintable():
        raise InvalidInput("job id", stream, f"1 to {LONGEST} printable characters")


def read_stream(connection: Connection, stream: str, *, after: int = 0) -> list[Recorded]:
    """The events of ``stream`` past position ``after``, in order."""
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
