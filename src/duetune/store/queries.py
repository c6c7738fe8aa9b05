"""Questions to the read models: jobs, charges, and the cost report."""

from __future__ import annotations

import contextlib
import math
from datetime import UTC, datetime
from typing import TYPE_CHECKING, NamedTuple, assert_never

import msgspec
from sqlalchemy import func, select

from duetune.core.events import Status
from duetune.errors import InvalidInput, NotFound
from duetune.store import sql_tables
from duetune.store.database import parsed
from duetune.store.rows import Charge, CostBy, CostLine, JobRow

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from sqlalchemy.engine import Connection
    from sqlalchemy.sql.elements import ColumnElement

    from duetune.store.database import Database

_NAMED = 5
"""A message names at most this many jobs."""

_SUBMITTED = "submitted"
_DAY_S = 86_400
_HOUR_S = 3_600


class Queries:
    """The questions that a store answers from its tables."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def jobs(
        self, *, status: Status | Iterable[Status] | None = None, limit: int | None = None
    ) -> list[JobRow]:
        """Return jobs, newest first: only those in ``status``, and at most ``limit``."""
        meant = None
        if status is not None:
            wanted = [status] if isinstance(status, Status) else status
            meant = sql_tables.jobs.c.status.in_([each.value for each in wanted])
        with self._database.reading() as connection:
            return _matching(connection, meant, limit=limit)

    def job(self, name: str) -> JobRow:
        """Return the job with this id or name, or whose id begins so, if only one does."""
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

    def active(self, fleets: Collection[str] | None = None) -> list[str]:
        """Return the ids of jobs that are not over or not learned from, oldest first.

        With ``fleets``, only jobs whose row has one of these names.
        """
        columns = sql_tables.jobs.c
        query = (
            select(columns.id)
            .where(columns.ended_at.is_(None) | columns.learned_at.is_(None))
            .order_by(columns.submitted_at, columns.id)
        )
        if fleets is not None:
            query = query.where(columns.fleet.in_(fleets))
        with self._database.reading() as connection:
            return list(connection.scalars(query))

    def busy_fleets(self) -> list[str]:
        """Return the fleets of the jobs that ``active`` returns, sorted; each name once."""
        columns = sql_tables.jobs.c
        query = (
            select(columns.fleet)
            .where(columns.ended_at.is_(None) | columns.learned_at.is_(None))
            .distinct()
        )
        with self._database.reading() as connection:
            return sorted(connection.scalars(query))

    def charges(self, job: str | None = None) -> list[Charge]:
        """Return what each node of one job or of all jobs has cost, oldest first."""
        columns = sql_tables.charges.c
        query = select(sql_tables.charges).order_by(columns.from_at, columns.job, columns.node)
        if job is not None:
            query = query.where(columns.job == job)
        with self._database.reading() as connection:
            return [parsed(found, Charge) for found in connection.execute(query).mappings()]

    def cost_report(self, by: CostBy) -> list[CostLine]:
        """Return the sums of all charges by job, day, kind, tag or fleet."""
        jobs = {row.id: row for row in self.jobs()}
        return cost_lines(self.charges(), by, jobs, self._gpus_per_node())

    def _gpus_per_node(self) -> dict[str, int]:
        """Return the GPUs of a node of every job whose nodes have several."""
        columns = sql_tables.journal.c
        query = select(columns.stream, columns.body).where(columns.tag == _SUBMITTED)
        found = {}
        with self._database.reading() as connection:
            for stream, body in connection.execute(query):
                with contextlib.suppress(msgspec.MsgspecError):
                    found[stream] = msgspec.json.decode(body, type=_Bought).task.gpus
        return {stream: gpus for stream, gpus in found.items() if gpus != 1}


def _matching(
    connection: Connection, meant: ColumnElement[bool] | None, *, limit: int | None
) -> list[JobRow]:
    columns = sql_tables.jobs.c
    query = select(sql_tables.jobs).order_by(columns.submitted_at.desc(), columns.id).limit(limit)
    if meant is not None:
        query = query.where(meant)
    return [parsed(found, JobRow) for found in connection.execute(query).mappings()]


def _named(rows: Sequence[JobRow]) -> str:
    names = [f"{row.id} ({row.name})" for row in rows[:_NAMED]]
    return ", ".join(names + ["..."] * (len(rows) > _NAMED))


class _Nodes(msgspec.Struct):
    gpus: int = 1


class _Bought(msgspec.Struct):
    """What a submission says about the nodes of its job."""

    task: _Nodes


class _Share(NamedTuple):
    """The part of a charge that belongs to one line of the report."""

    key: str
    dollars: float
    seconds: float


def cost_lines(
    charges: Iterable[Charge],
    by: CostBy,
    jobs: Mapping[str, JobRow],
    gpus: Mapping[str, int] | None = None,
) -> list[CostLine]:
    """Return one line per key, sorted by key. ``jobs`` has the rows of the jobs by their ids,
    ``gpus`` the GPUs of a node of each job, if it has several.
    """
    shares: dict[str, list[_Share]] = {}
    for charge in charges:
        own = (gpus or {}).get(charge.job, 1)
        for share in _shares(charge, by, jobs.get(charge.job)):
            in_gpus = share._replace(seconds=share.seconds * own)
            shares.setdefault(share.key, []).append(in_gpus)
    return [
        CostLine(
            key=key,
            dollars=math.fsum(share.dollars for share in found),
            gpu_hours=math.fsum(share.seconds for share in found) / _HOUR_S,
            nodes=len(found),
        )
        for key, found in sorted(shares.items())
    ]


def _shares(charge: Charge, by: CostBy, job: JobRow | None) -> Iterator[_Share]:
    seconds = max(0.0, charge.to_at - charge.from_at)
    match by:
        case CostBy.JOB:
            yield _Share(charge.job, charge.dollars, seconds)
        case CostBy.KIND:
            yield _Share(charge.kind.value, charge.dollars, seconds)
        case CostBy.TAG:
            for tag in sorted(set(() if job is None else job.tags)) or [""]:
                yield _Share(tag, charge.dollars, seconds)
        case CostBy.FLEET:
            yield _Share("" if job is None else job.fleet, charge.dollars, seconds)
        case CostBy.DAY:
            yield from _days(charge, seconds)
        case _:
            assert_never(by)


def _days(charge: Charge, seconds: float) -> Iterator[_Share]:
    """Split a charge by the time on each day (UTC); the bill has no hourly prices."""
    first = math.floor(charge.from_at / _DAY_S)
    last = max(first, math.ceil(charge.to_at / _DAY_S) - 1)
    if first == last:
        yield _Share(_day(first), charge.dollars, seconds)
        return
    for day in range(first, last + 1):
        begun = max(charge.from_at, day * _DAY_S)
        ended = min(charge.to_at, (day + 1) * _DAY_S)
        yield _Share(_day(day), charge.dollars * (ended - begun) / seconds, ended - begun)


def _day(number: int) -> str:
    return datetime.fromtimestamp(number * _DAY_S, UTC).date().isoformat()
