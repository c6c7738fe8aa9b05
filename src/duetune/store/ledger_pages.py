"""The ledger pages of fleets that others run (table ``fleet_nodes``).

``duetune.fleets.node_ledger`` knows what a page says; here it is a text with a version.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlalchemy import insert, select, update
from sqlalchemy.exc import IntegrityError

from duetune.core.fleet import LedgerPage
from duetune.errors import FleetError
from duetune.store import sql_tables

if TYPE_CHECKING:
    from collections.abc import Sequence

    from duetune.store.database import Database


class LedgerPages:
    """The pages of one fleet. A page is replaced only by someone who has read its last version."""

    def __init__(self, database: Database, fleet: str) -> None:
        self._database = database
        self._fleet = fleet

    def read(self, job: str | None = None, *, only_open: bool = False) -> list[LedgerPage]:
        """Return the pages of a job, or of all jobs; ``only_open`` leaves out what has ended."""
        columns = sql_tables.fleet_nodes.c
        query = select(columns.job, columns.node, columns.version, columns.open, columns.body)
        query = query.where(columns.fleet == self._fleet).order_by(columns.job, columns.node)
        if job is not None:
            query = query.where(columns.job == job)
        if only_open:
            query = query.where(columns.open == 1)
        with self._database.reading() as connection:
            rows = connection.execute(query).all()
        return [
            LedgerPage(job=job, node=node, version=version, open=bool(still), body=body)
            for job, node, version, still, body in rows
        ]

    def write(self, pages: Sequence[LedgerPage]) -> None:
        """Write the next version of all pages, or of none.

        ``FleetError`` is raised if another process has written one of them since it was read.
        """
        columns = sql_tables.fleet_nodes.c
        with self._database.writing() as connection:
            for page in pages:
                values = {"open": int(page.open), "body": page.body, "version": page.version + 1}
                if page.version == 0:
                    key = {"fleet": self._fleet, "job": page.job, "node": page.node}
                    try:
                        connection.execute(insert(sql_tables.fleet_nodes).values(**key, **values))
                    except IntegrityError:
                        raise _overtaken(page) from None
                    continue
                done = connection.execute(
                    update(sql_tables.fleet_nodes)
                    .where(columns.fleet == self._fleet, columns.job == page.job)
                    .where(columns.node == page.node, columns.version == page.version)
                    .values(**values)
                )
                if done.rowcount != 1:
                    raise _overtaken(page)


def _overtaken(page: LedgerPage) -> FleetError:
    return FleetError(f"another process has changed node {page.node!r} of job {page.job!r}")
