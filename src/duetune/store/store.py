"""The store: everything that outlives a process, behind one object."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Self

from sqlalchemy import make_url
from sqlalchemy.exc import ArgumentError

from duetune.errors import InvalidInput
from duetune.store import read_models
from duetune.store.database_journal import DatabaseJournal
from duetune.store.database_schema import migrate
from duetune.store.inbox import Inbox
from duetune.store.measured_runs_table import Observations
from duetune.store.postgres import postgres_database
from duetune.store.queries import Queries
from duetune.store.selector import SelectorStates
from duetune.store.sqlite import sqlite_database

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from duetune.store.database import Database

ALLOWED = "a file, sqlite:///FILE or postgresql+psycopg://USER:PASSWORD@HOST/DATABASE"

# Alembic keeps the migration that runs in a global variable, and a file of SQLite must not be
# closed by one thread while another opens it.
_opening = threading.Lock()


class Store(Queries):
    """May be used by many threads and, each with its own, by many processes. ``clock`` gives the
    wall time at which things are recorded; nothing is decided by it.
    """

    def __init__(self, database: Database, clock: Callable[[], float] = time.time) -> None:
        super().__init__(database)
        self._clock = clock
        self.name = database.name
        self.journal = DatabaseJournal(database, clock)
        self.wishes = Inbox(database, clock)
        self.selector = SelectorStates(database, clock)
        self.observations = Observations(database)

    def rebuild(self) -> int:
        """Compute the read models anew from the journal; returns how many jobs there are."""
        with self._database.writing() as connection:
            return read_models.rebuild(connection, at=self._clock())

    def close(self) -> None:
        self._database.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def open_store(url_or_path: str | Path, *, clock: Callable[[], float] = time.time) -> Store:
    """The store in an SQLite file or a PostgreSQL database, made or migrated if need be."""
    with _opening:
        database = _database(url_or_path)
        try:
            migrate(database)
        except BaseException:
            database.close()
            raise
    return Store(database, clock)


def _database(url_or_path: str | Path) -> Database:
    if isinstance(url_or_path, Path) or "://" not in url_or_path:
        if not str(url_or_path):
            raise InvalidInput("store", url_or_path, ALLOWED)
        return sqlite_database(Path(url_or_path))
    try:
        url = make_url(url_or_path)
    except (ArgumentError, ValueError):
        # The text itself may hold a password.
        raise InvalidInput("store", url_or_path.partition("://")[0] + "://...", ALLOWED) from None
    kind = url.get_backend_name()
    if kind == "sqlite" and url.database and url.database != ":memory:":
        return sqlite_database(Path(url.database))
    if kind == "postgresql":
        return postgres_database(url)
    raise InvalidInput("store", url.render_as_string(hide_password=True), ALLOWED)
