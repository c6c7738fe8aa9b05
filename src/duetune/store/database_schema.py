"""Brings a database to the schema this code works with."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from sqlalchemy import Column, MetaData, Table, Text, inspect, select, text

from duetune.errors import InvalidInput
from duetune.store.sql_tables import REVISIONS, VERSION_TABLE, metadata

if TYPE_CHECKING:
    from sqlalchemy.engine import Connection

    from duetune.store.database import Database

MIGRATIONS = Path(__file__).parent / "migrations"

_LOCK = 0x6475_6574_756E_65
"""The advisory lock of who migrates: "duetune" in letters."""

_version = Table(VERSION_TABLE, MetaData(), Column("version_num", Text))


def migrate(database: Database) -> None:
    """Every opener may call it at any time: one migrates, the others wait and find it done."""
    with database.reading() as connection:
        if _revision(connection, database.name) == REVISIONS[-1]:
            return
    with database.writing() as connection:
        if connection.dialect.name == "postgresql":
            connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _LOCK})
        revision = _revision(connection, database.name)
        if revision is None:
            _check_empty(connection, database.name)
        if revision != REVISIONS[-1]:
            upgrade(connection, REVISIONS[-1])


def upgrade(connection: Connection, target: str) -> None:
    """Run the migrations up to ``target`` in the transaction that ``connection`` is in."""
    # Slow to import, and needed once in a database's life.
    from alembic.operations import Operations  # noqa: PLC0415
    from alembic.runtime.migration import MigrationContext  # noqa: PLC0415
    from alembic.script import ScriptDirectory  # noqa: PLC0415

    scripts = ScriptDirectory(str(MIGRATIONS), version_locations=[str(MIGRATIONS)])
    context = MigrationContext.configure(
        connection,
        opts={
            "version_table": VERSION_TABLE,
            "fn": lambda revision, _: scripts._upgrade_revs(target, revision),  # noqa: SLF001 - as Alembic's own commands do
        },
    )
    with Operations.context(context):
        context.run_migrations()


def _revision(connection: Connection, name: str) -> str | None:
    """Which schema the database has; None if it has none of ours."""
    if not inspect(connection).has_table(VERSION_TABLE):
        return None
    revision = connection.scalar(select(_version.c.version_num))
    if revision is not None and revision not in REVISIONS:
        raise InvalidInput(
            f"schema of {name}", revision, f"{REVISIONS[-1]} or older; upgrade duetune"
        )
    return None if revision is None else str(revision)


def _check_empty(connection: Connection, name: str) -> None:
    """Somebody else's tables must not be mixed with ours."""
    found = set(inspect(connection).get_table_names()) - {VERSION_TABLE}
    # A PostgreSQL database may be shared, as long as no name is taken.
    foreign = found if connection.dialect.name == "sqlite" else found & set(metadata.tables)
    if foreign:
        raise InvalidInput(
            "store",
            name,
            f"a database of duetune, or an empty one; has {', '.join(sorted(foreign))}",
        )
