"""A database and its transactions; every failure of it becomes one clear error."""

from __future__ import annotations

import sqlite3
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

import msgspec
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from duetune.errors import StoreError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from sqlalchemy import RowMapping
    from sqlalchemy.engine import Connection, Engine

Key = TypeVar("Key")
Row = TypeVar("Row", bound=msgspec.Struct)

WRITES = "duetune_writes"
"""Execution option of connections that will write."""

_AT_ONCE = 500


class Database:
    """``name`` is what messages call it: a path, or a URL without its password."""

    def __init__(self, engine: Engine, name: str) -> None:
        self.name = name
        self._engine = engine
        self._writer = engine.execution_options(**{WRITES: True})

    @property
    def dialect(self) -> str:
        return self._engine.dialect.name

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """A transaction that sees one state of the database."""
        with self._translated(), self._engine.begin() as connection:
            yield connection

    @contextmanager
    def writing(self) -> Iterator[Connection]:
        """A transaction that is committed at the end, or rolled back by whatever is raised."""
        with self._translated(), self._writer.begin() as connection:
            yield connection

    def close(self) -> None:
        self._engine.dispose()

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except (SQLAlchemyError, sqlite3.Error, OverflowError) as failure:
            raise StoreError(self.name, first_line(failure)) from failure


def parsed(found: RowMapping, kind: type[Row]) -> Row:
    """A row of a table as the struct with the same fields."""
    # Some keys are of SQLAlchemy's own kind of string; bytes are bytes, not base64 as in JSON.
    fields = {str(key): value for key, value in found.items()}
    return msgspec.convert(fields, kind, builtin_types=(bytes,))


def batched(keys: Sequence[Key]) -> Iterator[Sequence[Key]]:
    """Few enough for one statement: databases bound the number of parameters."""
    for start in range(0, len(keys), _AT_ONCE):
        yield keys[start : start + _AT_ONCE]


def first_line(failure: BaseException) -> str:
    """What the database said, without the statement and the parameters."""
    cause = failure.orig if isinstance(failure, DBAPIError) and failure.orig else failure
    lines = str(cause).strip().splitlines()
    return lines[0] if lines else type(cause).__name__
