"""The saved states of the policy selector, version by version."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from sqlalchemy import func, insert, select
from sqlalchemy.exc import IntegrityError

from duetune.store import sql_tables
from duetune.store.database import parsed

if TYPE_CHECKING:
    from collections.abc import Callable

    from duetune.store.database import Database


class SelectorState(msgspec.Struct, frozen=True):
    """Version ``version`` (from 1) of a pool's state; ``job`` is the job it was learned from."""

    pool: str
    version: int
    payload: bytes
    job: str | None
    saved_at: float


class SelectorStates:
    """The states of each pool of policies, named by the pool's digest; old versions are kept."""

    def __init__(self, database: Database, clock: Callable[[], float]) -> None:
        self._database = database
        self._clock = clock

    def save(self, pool: str, payload: bytes, *, expected: int, job: str | None = None) -> bool:
        """Save version ``expected`` + 1 and return True; else save nothing and return False.

        Nothing is saved if ``expected`` is not the latest version (then load, learn and save again)
        or if the pool has already learned from ``job``.
        """
        columns = sql_tables.selector_states.c
        latest = select(func.max(columns.version)).where(columns.pool == pool)
        with self._database.writing() as connection:
            if (connection.scalar(latest) or 0) != expected:
                return False
            try:
                with connection.begin_nested():
                    connection.execute(
                        insert(sql_tables.selector_states).values(
                            pool=pool,
                            version=expected + 1,
                            job=job,
                            payload=payload,
                            saved_at=self._clock(),
                        )
                    )
            except IntegrityError:
                return False
        return True

    def load(self, pool: str) -> SelectorState | None:
        """Return the latest version; None if the pool has learned nothing yet."""
        history = self._states(pool, limit=1)
        return history[0] if history else None

    def history(self, pool: str) -> list[SelectorState]:
        """Return all versions, oldest first."""
        return self._states(pool, limit=None)[::-1]

    def learnt(self, pool: str, job: str) -> bool:
        """Return whether the pool has learned from ``job``."""
        columns = sql_tables.selector_states.c
        query = select(columns.version).where(columns.pool == pool, columns.job == job)
        with self._database.reading() as connection:
            return connection.scalar(query) is not None

    def _states(self, pool: str, *, limit: int | None) -> list[SelectorState]:
        columns = sql_tables.selector_states.c
        query = (
            select(sql_tables.selector_states)
            .where(columns.pool == pool)
            .order_by(columns.version.desc())
            .limit(limit)
        )
        with self._database.reading() as connection:
            return [parsed(found, SelectorState) for found in connection.execute(query).mappings()]
