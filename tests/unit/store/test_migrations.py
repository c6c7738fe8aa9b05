from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import inspect

import duetune.store
from duetune.core.events import Status
from duetune.store import StoreError, open_store, schema
from duetune.store.tables import REVISIONS, VERSION_TABLE, metadata
from duetune.testing.events import decision

pytest_plugins = ["postgres"]

ASSETS = Path(__file__).parents[2] / "assets" / "journals"


def test_the_migrations_make_the_tables_of_the_code(store):
    with store._database.reading() as connection:
        context = MigrationContext.configure(
            connection, opts={"version_table": VERSION_TABLE, "compare_type": True}
        )
        assert compare_metadata(context, metadata) == []


def test_the_revisions_are_those_of_the_migrations():
    scripts = ScriptDirectory(str(schema.MIGRATIONS), version_locations=[str(schema.MIGRATIONS)])
    assert tuple(each.revision for each in scripts.walk_revisions())[::-1] == REVISIONS


def test_the_migrations_are_part_of_the_package():
    assert schema.MIGRATIONS.is_relative_to(Path(duetune.store.__file__).parent)
    assert (schema.MIGRATIONS / "__init__.py").exists()


def test_opening_again_changes_nothing(store):
    store.journal.append("job", [decision(1)], expected=0)
    with open_store(store.name) as again:
        assert again.journal.length("job") == 1


def test_a_migration_that_fails_leaves_nothing_behind(place, monkeypatch):
    whole = schema.upgrade

    def broken(connection, target):
        whole(connection, target)
        connection.exec_driver_sql("SELECT * FROM power_failure")

    with monkeypatch.context() as patched:
        patched.setattr(schema, "upgrade", broken)
        with pytest.raises(StoreError, match="power_failure"):
            open_store(place)
    with open_store(place) as store:
        assert store.journal.streams() == []
        with store._database.reading() as connection:
            assert set(metadata.tables) <= set(inspect(connection).get_table_names())


@pytest.mark.parametrize("revision", REVISIONS)
def test_a_database_of_every_schema_there_was_still_opens(revision, tmp_path):
    path = tmp_path / "old.db"
    connection = sqlite3.connect(path)
    connection.executescript((ASSETS / f"database-{revision}.sql").read_text())
    connection.close()
    with open_store(path) as store:
        (row,) = store.jobs()
        assert (row.id, row.status, row.spent) == ("tuning", Status.CANCELLED, 2.5)
        before = store.charges()
        assert store.rebuild() == 1
        assert (store.jobs(), store.charges()) == ([row], before)
        assert store.wishes.pending() == []
        assert store.selector.load("a1b2").payload == b"[3.5,-1.0]"
        assert [each.gpus for each in store.observations.observations()] == [3]
