from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import inspect

import duetune.store
from duetune.core.events import Status
from duetune.errors import StoreError
from duetune.fleets.node_ledger import NodeLedger
from duetune.knowledge.configurations.configuration import Method, Precision, Sharding
from duetune.knowledge.observation import Origin, RunOutcome
from duetune.store import database_schema
from duetune.store import store as store_module
from duetune.store.sql_tables import REVISIONS, VERSION_TABLE, metadata
from duetune.store.store import open_store
from duetune.testing.sample_events import decision
from support.places import JOURNALS


def test_the_migrations_make_the_tables_of_the_code(store):
    with store._database.reading() as connection:
        context = MigrationContext.configure(
            connection, opts={"version_table": VERSION_TABLE, "compare_type": True}
        )
        assert compare_metadata(context, metadata) == []


def test_the_revisions_are_those_of_the_migrations():
    scripts = ScriptDirectory(
        str(database_schema.MIGRATIONS), version_locations=[str(database_schema.MIGRATIONS)]
    )
    assert tuple(each.revision for each in scripts.walk_revisions())[::-1] == REVISIONS


def test_the_migrations_are_part_of_the_package():
    assert database_schema.MIGRATIONS.is_relative_to(Path(duetune.store.__file__).parent)
    assert (database_schema.MIGRATIONS / "__init__.py").exists()


def test_opening_again_changes_nothing(store):
    store.journal.append("job", [decision(1)], expected=0)
    with open_store(store.name) as again:
        assert again.journal.length("job") == 1


def test_a_migration_that_fails_leaves_nothing_behind(place, monkeypatch):
    whole = database_schema.upgrade

    def broken(connection, target):
        whole(connection, target)
        connection.exec_driver_sql("SELECT * FROM power_failure")

    with monkeypatch.context() as patched:
        patched.setattr(database_schema, "upgrade", broken)
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
    connection.executescript((JOURNALS / f"database-{revision}.sql").read_text())
    connection.close()
    with open_store(path) as store:
        (row,) = store.jobs()
        assert (row.id, row.status, row.spent) == ("tuning", Status.CANCELLED, 2.5)
        assert row.fleet == ("cluster" if revision >= "0007" else "")
        before = store.charges()
        assert store.rebuild() == 1
        assert (store.jobs(), store.charges()) == ([row], before)
        assert store.requests.pending() == []
        assert store.selector.load("a1b2").payload == b"[3.5,-1.0]"
        (measured,) = store.observations.history()
        assert (measured.configuration.num_gpus, measured.tokens_per_s) == (3, 49152.0)
        assert measured.step_rows == 12
        assert store.observations.record_all([measured]) == 0
        nodes = [entry.node.id for entry in NodeLedger(store.ledger("cluster")).of_job("tuning")]
        assert nodes == (["tuning-n1"] if revision >= "0006" else [])


OLD = {
    "job": "tuning",
    "gpus": 3,
    "model": "org/model",
    "method": "full",
    "gpu": "A100-80GB",
    "microbatch": 2,
    "global_batch": 8,
    "sequence_length": 1024,
    "precision": "bf16",
    "steps_per_s": 4.0,
    "tokens_per_s": 30_000.0,
    "measured_at": 1_750_000_100.5,
    "versions": {"torch": "2.13.0", "duetune": "0.1.0", "x": "\0"},
    "outcome": "measured",
}


@pytest.fixture
def migrated(place):
    """What becomes of rows that the first schema had, on each database."""

    def migrate(*rows):
        database = store_module._database(place)
        with database.writing() as connection:
            database_schema.upgrade(connection, "0001")
            table = sa.Table("observations", sa.MetaData(), autoload_with=connection)
            connection.execute(sa.insert(table), [OLD | row for row in rows])
        database.close()
        with open_store(place) as store:
            with store._database.reading() as connection:
                assert "observations" not in inspect(connection).get_table_names()
            return store.observations.history()

    return migrate


def test_what_jobs_have_shown_is_taken_over(migrated):
    (measured,) = migrated({})
    told = measured.configuration
    assert (told.model, told.method, told.gpu_model) == ("org/model", Method.FULL, "A100-80GB")
    # Four microbatches of two on three GPUs: two rounds.
    assert (told.num_gpus, told.batch_size, told.grad_accum) == (3, 6, 2)
    assert (told.tokens_per_sample, told.precision) == (1024, Precision.BF16_MIXED)
    assert (told.sharding, told.num_nodes) == (Sharding.DDP, 3)
    assert told.software == "duetune 0.1.0, torch 2.13.0, x \0"
    assert (measured.outcome, measured.tokens_per_s) == (RunOutcome.VALID, 30_000)
    assert measured.step_s == 0.125
    assert (measured.origin, measured.provenance) == (Origin.PRODUCTION, "job tuning")
    assert measured.measured_at == 1_750_000_100.5
    assert (measured.protocol, measured.step_rows) == ("steps of 8 rows", 8)


@pytest.mark.parametrize(
    ("row", "outcome", "tokens_per_s", "flags"),
    [
        ({"outcome": "out_of_memory", "steps_per_s": None}, RunOutcome.OOM, None, ()),
        ({"outcome": "failed"}, RunOutcome.FAILED, None, ()),
        ({"tokens_per_s": None}, RunOutcome.VALID, 4.0 * 8 * 1024, ("assumed_length",)),
        ({"tokens_per_s": None, "steps_per_s": None}, RunOutcome.STOPPED, None, ()),
    ],
)
def test_what_was_not_measured_is_not_made_up(migrated, row, outcome, tokens_per_s, flags):
    (measured,) = migrated(row)
    assert (measured.outcome, measured.tokens_per_s) == (outcome, tokens_per_s)
    assert measured.flags == flags


def test_what_ran_on_no_gpu_teaches_nothing_about_one(migrated):
    history = migrated({"gpu": "emulated"}, {"gpu": "cpu", "gpus": 1, "precision": "fp32"})
    assert {each.configuration.gpu_model for each in history} == {"emulated", "CPU"}
    assert not len(history.plausible)
