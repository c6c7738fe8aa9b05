"""A database and its transactions, in an SQLite file or in PostgreSQL.

Every failure of the database becomes ``StoreError``. The tables are in ``sql_tables``.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import sqlite3
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import quote

import msgspec
from sqlalchemy import URL, create_engine, event
from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.pool import StaticPool

from duetune.errors import InvalidInput, MissingExtra, StoreError, StoreLost
from duetune.files import OWNER
from duetune.store.sql_tables import metadata

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from sqlalchemy import RowMapping
    from sqlalchemy.engine import Connection, Engine
    from sqlalchemy.engine.interfaces import DBAPIConnection
    from sqlalchemy.pool import ConnectionPoolEntry

Key = TypeVar("Key")
Row = TypeVar("Row", bound=msgspec.Struct)

WRITES = "duetune_writes"
"""The execution option of connections that will write."""

_AT_ONCE = 500

BUSY_S = 30.0
"""A writer waits this many seconds for another one."""

CHECKPOINT_S = 3.0
"""A file that cannot be read for this many seconds is damaged, and not only being written to."""

_MOST_IDENTITIES = 2**31 - 1

_REFUSALS = {
    sqlite3.SQLITE_NOTADB: "an SQLite database",
    sqlite3.SQLITE_CORRUPT: "an SQLite database",
    sqlite3.SQLITE_READONLY: "a file and a folder that can be written",
    sqlite3.SQLITE_CANTOPEN: "a file and a folder that can be written",
    sqlite3.SQLITE_PERM: "a file and a folder that can be written",
}
"""What is expected of the file, by SQLite's error code; only errors that the user can fix."""


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

    def identify(self) -> None:
        """Give an SQLite file its identity if it has none; called once it is known to be ours."""
        if self._file is not None:
            with self._translated():
                self._file.identify()

    def save_copy(self, path: Path) -> None:
        """Write all of an SQLite database to a new file; called when its own file was deleted.

        Nothing can be saved of a file that was overwritten.
        """
        if self._file is not None and self._file.overwritten():
            self._file.remove_beside()
            raise StoreError(self.name, "its content was overwritten; restore a backup")
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


def memory_database() -> Database:
    """Return a new database in memory that has all tables and no rows."""
    engine = create_engine("sqlite://", poolclass=StaticPool)
    metadata.create_all(engine)
    return Database(engine, "memory")


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


def sqlite_database(path: Path) -> Database:
    """Return the database in the file ``path``; creates it if there is none.

    The caller opens one database at a time: closing a file drops all locks of the process on it.
    """
    _make_file(path)
    # By this form of the name a connection never creates a file in place of one that was deleted.
    place = URL.create(
        "sqlite", database=f"file:{quote(str(path))}", query={"mode": "rw", "uri": "true"}
    )
    engine = create_engine(place)
    event.listen(engine, "connect", _connected)
    event.listen(engine, "begin", _begun)
    with _refusal(path):
        _use_write_ahead_log(path)
    return Database(engine, str(path), DatabaseFile(path))


class DatabaseFile:
    """The file of an open database, and the two files that SQLite keeps beside it.

    A file's number is not given to another file as long as a connection has the file open. A file
    that is overwritten keeps its number; its content is known by an identity, which is a random
    number in SQLite's ``user_version``.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._number = _file_number(path)
        self._changed_ns = 0
        self._identities: set[int] = set()
        self._beside: dict[Path, tuple[int, int] | None] = {
            path.with_name(f"{path.name}{end}"): None for end in ("-wal", "-shm")
        }

    def lost(self) -> str:
        """Return why it is no longer the file that was opened; empty if it still is."""
        now = _file_number(self._path)
        if now != self._number:
            return "its file was deleted" if now is None else "its file was replaced by another"
        if self.overwritten():
            return "its file was overwritten with another"
        self._beside = {path: _file_number(path) for path in self._beside}
        return ""

    def identify(self) -> None:
        """Read the identity; a new one is written if there is none."""
        with contextlib.closing(sqlite3.connect(self._path, timeout=BUSY_S)) as connection:
            connection.isolation_level = None
            if not _identity(connection):
                connection.execute("BEGIN IMMEDIATE")
                if not _identity(connection):
                    chosen = secrets.randbelow(_MOST_IDENTITIES) + 1
                    connection.execute(f"PRAGMA user_version = {chosen}")
                connection.execute("COMMIT")
                connection.execute("PRAGMA wal_checkpoint").fetchall()
            # The file itself may have none yet, if another process delays the checkpoint.
            self._identities = {_identity(connection), self._written_identity()}
        self._changed_ns = self._path.stat().st_mtime_ns

    def overwritten(self) -> bool:
        """Return whether the file has the content of another; read only if it was written to."""
        try:
            changed_ns = self._path.stat().st_mtime_ns
        except OSError:
            return False  # It was deleted, at this moment perhaps.
        if not self._identities or changed_ns == self._changed_ns:
            return False
        found = self._settled_identity()
        if found is None:
            return _file_number(self._path) == self._number
        if _file_number(self._path) != self._number:
            return False
        if found not in self._identities:
            return True
        if found:
            self._identities = {found}
        self._changed_ns = changed_ns
        return False

    def _settled_identity(self) -> int | None:
        """Return the identity in the file, or None if the file is damaged.

        A checkpoint of another process writes the first page before it has made the file longer,
        which looks like damage until it is done.
        """
        end = time.monotonic() + CHECKPOINT_S
        while True:
            try:
                return self._written_identity()
            except sqlite3.DatabaseError:
                if time.monotonic() > end or _file_number(self._path) != self._number:
                    return None
                time.sleep(0.05)

    def _written_identity(self) -> int:
        """Return the identity in the file itself, without what is still in the log beside it."""
        # SQLite opens the file, because closing it ourselves would drop the locks of this process.
        place = f"file:{quote(str(self._path))}?mode=ro&immutable=1"
        with contextlib.closing(sqlite3.connect(place, uri=True)) as connection:
            return _identity(connection)

    def remove_beside(self) -> None:
        """Remove the files beside it: SQLite would apply them to the next file of this name."""
        for path, number in self._beside.items():
            if number is not None and _file_number(path) == number:
                path.unlink(missing_ok=True)


def _identity(connection: sqlite3.Connection) -> int:
    (found,) = connection.execute("PRAGMA user_version").fetchone()
    return int(found)


def _file_number(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino


def _make_file(path: Path) -> None:
    """Create the file if it does not exist; only its owner may read it, as it holds users' data."""
    if not path.parent.is_dir():
        raise InvalidInput("database", str(path), "a file in a folder that exists")
    if path.is_dir():
        raise InvalidInput("database", str(path), "a file; this is a folder")
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
    except FileExistsError:
        pass
    except OSError as failure:
        allowed = f"a file that can be created ({failure.strerror})"
        raise InvalidInput("database", str(path), allowed) from failure
    if not os.access(path, os.R_OK | os.W_OK, effective_ids=os.access in os.supports_effective_ids):
        raise InvalidInput("database", str(path), "a file that can be read and written")


def _use_write_ahead_log(path: Path) -> None:
    """Switch to write-ahead logging: readers then never wait for a writer. The file keeps it."""
    give_up = time.monotonic() + BUSY_S
    with contextlib.closing(sqlite3.connect(path, timeout=BUSY_S)) as connection:
        while True:
            try:
                connection.execute("PRAGMA journal_mode = WAL")
            except sqlite3.OperationalError as failure:
                # Two processes that switch at once do not wait for each other as writers do.
                if failure.sqlite_errorcode != sqlite3.SQLITE_BUSY or time.monotonic() > give_up:
                    raise
                time.sleep(0.01)
            else:
                return


@contextlib.contextmanager
def _refusal(path: Path) -> Iterator[None]:
    """Turn errors of SQLite into ``InvalidInput`` if the user can fix them, else ``StoreError``."""
    try:
        yield
    except sqlite3.DatabaseError as failure:
        allowed = _REFUSALS.get(getattr(failure, "sqlite_errorcode", 0) & 0xFF)
        if allowed is None:
            raise StoreError(str(path), str(failure)) from failure
        raise InvalidInput("database", str(path), f"{allowed} ({failure})") from failure


def _connected(connection: DBAPIConnection, _entry: ConnectionPoolEntry) -> None:
    # The driver would begin its transactions too late; ours begin in _begun.
    connection.isolation_level = None
    cursor = connection.cursor()
    for pragma in (
        f"busy_timeout = {BUSY_S * 1000:.0f}",
        # The journal must survive a power cut, not only the death of the process.
        "synchronous = FULL",
        "foreign_keys = ON",
    ):
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()


def _begun(connection: Connection) -> None:
    # A writer that begins as a reader would fail instead of waiting for another writer.
    writes = connection.get_execution_options().get(WRITES, False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")
