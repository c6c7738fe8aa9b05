"""Questions to the read models."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlalchemy import func, select

from duetune.core.events import Status
from duetune.errors import InvalidInput, NotFound
from duetune.store import sql_tables
from duetune.store.costs import cost_lines
from duetune.store.database import parsed
from duetune.store.rows import Charge, JobRow

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from sqlalchemy.engine import Connection
    from sqlalchemy.sql.elements import ColumnElement

    from duetune.store.database import Database
    from duetune.store.rows import CostBy, CostLine

_NAMED = 5
"""How many jobs a message names."""


class Queries:
    def __init__(self, database: Database) -> None:
        self._database = database

    def jobs(
        self, *, status: Status | Iterable[Status] | None = None, limit: int | None = None
    ) -> list[JobRow]:
        """Newest first; only those in ``status``, at most ``limit`` of them."""
        columns = sql_tables.jobs.c
        query = (
            select(sql_tables.jobs).order_by(columns.submitted_at.desc(), columns.id).limit(limit)
        )
        if status is not None:
            wanted = [status] if isinstance(status, Status) else list(status)
            query = query.where(columns.status.in_([each.value for each in wanted]))
        with self._database.reading() as connection:
            return [parsed(found, JobRow) for found in connection.execute(query).mappings()]

    def job(self, name: str) -> JobRow:
        """By its id, its name, or as much of the id's beginning as is unambiguous."""
        columns = sql_tables.jobs.c
        with self._database.reading() as connection:
            meanings = (
                columns.id == name,
                columns.name == name,
                func.substr(columns.id, 1, len(name)) == name,
            )
            for meant in meanings if name else ():
                found = _matching(connection, meant, limit=_NAMED + 1)
                if len(found) == 1:
                    return found[0]
                if len(found) > 1:
                    raise InvalidInput("job", name, f"one job; these fit: {_named(found)}")
            latest = _matching(connection, None, limit=_NAMED + 1)
        raise NotFound("job", name, _named(latest))

    def active(self) -> list[str]:
        """The ids of jobs that are not over, or from which nothing was learnt yet; oldest first."""
        columns = sql_tables.jobs.c
        query = (
            select(columns.id)
            .where(columns.ended_at.is_(None) | columns.learned_at.is_(None))
            .order_by(columns.submitted_at, columns.id)
        )
        with self._database.reading() as connection:
            return list(connection.scalars(query))

    def charges(self, job: str | None = None) -> list[Charge]:
        """What each node has cost, of one job or of all, oldest first."""
        columns = sql_tables.charges.c
        query = select(sql_tables.charges).order_by(columns.from_at, columns.job, columns.node)
        if job is not None:
            query = query.where(columns.job == job)
        with self._database.reading() as connection:
            return [parsed(found, Charge) for found in connection.execute(query).mappings()]

    def cost_report(self, by: CostBy) -> list[CostLine]:
        """All charges, added up."""
        tags = {row.id: row.tags for row in self.jobs()}
        return cost_lines(self.charges(), by, tags)


def _matching(
    connection: Connection, meant: ColumnElement[bool] | None, *, limit: int
) -> Sequence[JobRow]:
    columns = sql_tables.jobs.c
    query = select(sql_tables.jobs).order_by(columns.submitted_at.desc(), columns.id).limit(limit)
    if meant is not None:
        query = query.where(meant)
    return [parsed(found, JobRow) for found in connection.execute(query).mappings()]


def _named(rows: Sequence[JobRow]) -> str:
    names = [f"{row.id} ({row.name})" for row in rows[:_NAMED]]
    return ", ".join(names + ["..."] * (len(rows) > _NAMED))
