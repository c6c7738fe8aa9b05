"""Migrates a database to the schema that this code uses; the steps are in ``migrations``."""

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
"""The key of the advisory lock for migrations: "duetune" in ASCII."""

_version = Table(VERSION_TABLE, MetaData(), Column("version_num", Text))


def migrate(database: Database) -> None:
    """Migrate the database if needed; called at every opening.

    Of several processes one migrates; the others wait and find it done.
    """
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
    """Run the migrations up to ``target`` in the transaction of ``connection``."""
    # Slow to import, and needed only when a database is made or migrated.
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
    """Return the schema of the database; None if it has no duetune tables."""
    if not inspect(connection).has_table(VERSION_TABLE):
        return None
    revision = connection.scalar(select(_version.c.version_num))
    if revision is not None and revision not in REVISIONS:
        raise InvalidInput(
            f"schema of {name}", revision, f"{REVISIONS[-1]} or older; upgrade duetune"
        )
    return None if revision is None else str(revision)


def _check_empty(connection: Connection, name: str) -> None:
    """Raise ``InvalidInput`` if the database has tables of another program."""
    found = set(inspect(connection).get_table_names()) - {VERSION_TABLE}
    # A PostgreSQL database may be shared if no table name collides.
    foreign = found if connection.dialect.name == "sqlite" else found & set(metadata.tables)
    if foreign:
        raise InvalidInput(
            "store",
            name,
            f"a database of duetune, or an empty one; has {', '.join(sorted(foreign))}",
        )
