"""A database and its transactions. Every failure of the database becomes ``StoreError``.

The tables are in ``sql_tables``; how an SQLite file is opened is in ``sqlite``.
"""

from __future__ import annotations

import contextlib
import sqlite3
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

import msgspec
from sqlalchemy import create_engine
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from duetune.errors import MissingExtra, StoreError, StoreLost
from duetune.files import OWNER

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from sqlalchemy import URL, RowMapping
    from sqlalchemy.engine import Connection, Engine

    from duetune.store.sqlite import DatabaseFile

Key = TypeVar("Key")
Row = TypeVar("Row", bound=msgspec.Struct)

WRITES = "duetune_writes"
"""The execution option of connections that will write."""

_AT_ONCE = 500


class Database:
    """An open database. ``name`` stands in messages: a path, or a URL without its password.

    ``file`` is the file of an SQLite database, None for a server.
    """

    def __init__(self, engine: Engine, name: str, file: DatabaseFile | None = None) -> None:
        self.name = name
        self._file = file
        self._engine = engine
        self._writer = engine.execution_options(**{WRITES: True})

    @property
    def dialect(self) -> str:
        """Return ``sqlite`` or ``postgresql``."""
        return self._engine.dialect.name

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """Open a transaction that sees one state of the database."""
        self._check()
        with self._translated(), self._engine.begin() as connection:
            yield connection

    @contextmanager
    def writing(self) -> Iterator[Connection]:
        """Open a transaction that is committed at the end, or rolled back by an exception."""
        self._check()
        with self._translated(), self._writer.begin() as connection:
            yield connection

    def save_copy(self, path: Path) -> None:
        """Write all of an SQLite database to a new file; called when its own file was deleted."""
        with self._translated(), contextlib.closing(self._engine.raw_connection()) as connection:
            # A connection that was opened before the deletion still has the whole content.
            connection.cursor().execute("VACUUM INTO ?", (str(path),))
            path.chmod(OWNER)
        if self._file is not None:
            self._file.remove_beside()

    def close(self) -> None:
        """Close all connections."""
        self._engine.dispose()

    def _check(self) -> None:
        if self._file is not None and (reason := self._file.lost()):
            raise StoreLost(self.name, reason)

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except (SQLAlchemyError, sqlite3.Error, OverflowError) as failure:
            raise StoreError(self.name, _first_line(failure)) from failure


def postgres_database(url: URL) -> Database:
    """Return the PostgreSQL database at ``url``; broken connections are replaced when used next."""
    url = url.set(drivername="postgresql+psycopg")
    shown = url.difference_update_query(["password"]).render_as_string(hide_password=True)
    try:
        engine = create_engine(url, pool_pre_ping=True)
    except ImportError as missing:
        raise MissingExtra("a PostgreSQL journal", "postgres") from missing
    return Database(engine, shown)


def parsed(found: RowMapping, kind: type[Row]) -> Row:
    """Return a row of a table as the struct with the same fields."""
    # Some keys are SQLAlchemy's own string type. Bytes stay bytes; JSON would have base64.
    fields = {str(key): value for key, value in found.items()}
    return msgspec.convert(fields, kind, builtin_types=(bytes,))


def batched(keys: Sequence[Key]) -> Iterator[Sequence[Key]]:
    """Return ``keys`` in parts: databases limit the number of parameters of a statement."""
    for start in range(0, len(keys), _AT_ONCE):
        yield keys[start : start + _AT_ONCE]


def _first_line(failure: BaseException) -> str:
    """Return the database's message without the statement and its parameters."""
    cause = failure.orig if isinstance(failure, DBAPIError) and failure.orig else failure
    lines = str(cause).strip().splitlines()
    return lines[0] if lines else type(cause).__name__
