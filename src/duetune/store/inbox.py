"""The inbox: what other processes ask of the controller."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from sqlalchemy import insert, select, update

from duetune.core.events import UserRequest  # noqa: TC001 - a NamedTuple keeps its types at run time
from duetune.store import sql_tables
from duetune.store.codec import decode_wish, encode_wish
from duetune.store.database import batched
from duetune.store.streams import check_stream

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from sqlalchemy.engine import Connection

    from duetune.store.database import Database


class PendingWish(NamedTuple):
    id: int
    job: str
    wish: UserRequest


class Inbox:
    """A wish waits until a ``Wished`` with its id is appended to the job's stream: that very
    transaction takes it. ``taken`` is for those that will never be: the job is over, or unknown.
    """

    def __init__(self, database: Database, clock: Callable[[], float]) -> None:
        self._database = database
        self._clock = clock

    def ask(self, job: str, wish: UserRequest) -> int:
        """Returns the wish's id, which is never given twice."""
        check_stream(job)
        with self._database.writing() as connection:
            key: int = connection.scalars(
                insert(sql_tables.wishes)
                .values(job=job, body=encode_wish(wish), asked_at=self._clock())
                .returning(sql_tables.wishes.c.id)
            ).one()
        return key

    def pending(self, job: str | None = None) -> list[PendingWish]:
        """Not yet taken, oldest first."""
        columns = sql_tables.wishes.c
        query = (
            select(columns.id, columns.job, columns.body)
            .where(columns.taken_at.is_(None))
            .order_by(columns.id)
        )
        if job is not None:
            query = query.where(columns.job == job)
        with self._database.reading() as connection:
            found = connection.execute(query).all()
        return [PendingWish(key, owner, decode_wish(body)) for key, owner, body in found]

    def taken(self, ids: Collection[int]) -> None:
        """Take them off the inbox; saying it twice is harmless."""
        with self._database.writing() as connection:
            take(connection, ids, at=self._clock())


def take(
    connection: Connection, ids: Collection[int], *, at: float, job: str | None = None
) -> None:
    """Take wishes off the inbox; if a job is given, only its own."""
    columns = sql_tables.wishes.c
    query = update(sql_tables.wishes).where(columns.taken_at.is_(None)).values(taken_at=at)
    if job is not None:
        query = query.where(columns.job == job)
    for some in batched(sorted(ids)):
        connection.execute(query.where(columns.id.in_(some)))
