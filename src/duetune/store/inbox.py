"""The inbox: user requests that wait for the controller (table ``wishes``)."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from sqlalchemy import insert, select, update

from duetune.core.events import UserRequest  # noqa: TC001 - a NamedTuple keeps its types at run time
from duetune.store import sql_tables
from duetune.store.codec import check_stream, decode_request, encode_request
from duetune.store.database import batched

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from sqlalchemy.engine import Connection

    from duetune.store.database import Database


class PendingRequest(NamedTuple):
    """A user request that is not in the journal yet."""

    id: int
    job: str
    request: UserRequest


class Inbox:
    """User requests, written by any process and read by the controller.

    The transaction that appends a ``UserRequested`` with the request's id also removes the request
    from the inbox. ``taken`` removes requests that will never enter the journal, because their job
    is over or unknown. With ``fleets``, it has only the requests of jobs whose row has one of these
    names, and those of unknown jobs: each fleet has a controller of its own.
    """

    def __init__(
        self,
        database: Database,
        clock: Callable[[], float],
        fleets: Collection[str] | None = None,
    ) -> None:
        self._database = database
        self._clock = clock
        self._fleets = fleets

    def ask(self, job: str, request: UserRequest) -> int:
        """Write a request and return its id, which is never used again."""
        check_stream(job)
        with self._database.writing() as connection:
            key: int = connection.scalars(
                insert(sql_tables.wishes)
                .values(job=job, body=encode_request(request), asked_at=self._clock())
                .returning(sql_tables.wishes.c.id)
            ).one()
        return key

    def pending(self) -> list[PendingRequest]:
        """Return the requests that are not in the journal yet, oldest first."""
        columns = sql_tables.wishes.c
        query = (
            select(columns.id, columns.job, columns.body)
            .where(columns.taken_at.is_(None))
            .order_by(columns.id)
        )
        if self._fleets is not None:
            jobs = sql_tables.jobs
            query = query.outerjoin_from(sql_tables.wishes, jobs, columns.job == jobs.c.id).where(
                jobs.c.fleet.is_(None) | jobs.c.fleet.in_(self._fleets)
            )
        with self._database.reading() as connection:
            found = connection.execute(query).all()
        return [PendingRequest(key, owner, decode_request(body)) for key, owner, body in found]

    def taken(self, ids: Collection[int]) -> None:
        """Remove requests from the inbox; removing them twice is harmless."""
        with self._database.writing() as connection:
            take(connection, ids, at=self._clock())


def take(
    connection: Connection, ids: Collection[int], *, at: float, job: str | None = None
) -> None:
    """Mark requests as taken; with a ``job`` only the requests of that job."""
    columns = sql_tables.wishes.c
    query = update(sql_tables.wishes).where(columns.taken_at.is_(None)).values(taken_at=at)
    if job is not None:
        query = query.where(columns.job == job)
    for some in batched(sorted(ids)):
        connection.execute(query.where(columns.id.in_(some)))
