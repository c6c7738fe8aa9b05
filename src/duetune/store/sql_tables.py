"""The tables, the same on SQLite and PostgreSQL. A change here needs a migration.

``journal``, ``wishes`` (user requests), ``selector_states``, ``measurements`` and ``fleet_nodes``
hold original data. ``jobs`` and ``charges`` are read models, computed from the journal.
"""

from __future__ import annotations

from sqlalchemy import (
    JSON,
    BigInteger,
    Column,
    Double,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    Text,
    UniqueConstraint,
)

REVISIONS = ("0001", "0002", "0003", "0004", "0005", "0006", "0007")
"""Every schema that this code can migrate from, oldest first; it uses the last one."""

VERSION_TABLE = "duetune_schema"

# SQLite numbers rows automatically only in a column of type INTEGER.
_Count = BigInteger().with_variant(Integer(), "sqlite")

metadata = MetaData()

journal = Table(
    "journal",
    metadata,
    Column("stream", Text, primary_key=True),
    Column("position", BigInteger, primary_key=True, autoincrement=False),
    Column("schema", Integer, nullable=False),
    Column("tag", Text, nullable=False),
    Column("body", Text, nullable=False),
    Column("recorded_at", Double, nullable=False),
)

wishes = Table(
    "wishes",
    metadata,
    Column("id", _Count, primary_key=True, autoincrement=True),
    Column("job", Text, nullable=False),
    Column("body", Text, nullable=False),
    Column("asked_at", Double, nullable=False),
    Column("taken_at", Double),
    Index("wishes_by_job", "job"),
    # An id must never be used again, because the journal keeps it.
    sqlite_autoincrement=True,
)

jobs = Table(
    "jobs",
    metadata,
    Column("id", Text, primary_key=True),
    Column("name", Text, nullable=False),
    Column("status", Text, nullable=False),
    Column("reason", Text, nullable=False),
    Column("policy", Text, nullable=False),
    Column("model", Text, nullable=False),
    Column("tags", JSON, nullable=False),
    Column("submitted_at", Double, nullable=False),
    Column("deadline_at", Double, nullable=False),
    Column("budget", Double),
    Column("step", BigInteger, nullable=False),
    Column("total_steps", BigInteger, nullable=False),
    Column("loss", Double),
    Column("spot", Integer, nullable=False),
    Column("on_demand", Integer, nullable=False),
    Column("preemptions", Integer, nullable=False),
    Column("spent", Double, nullable=False),
    Column("cost", Double),
    Column("value", Double),
    Column("output", Text, nullable=False),
    Column("finished_at", Double),
    Column("ended_at", Double),
    Column("learned_at", Double),
    Column("updated_at", Double, nullable=False),
    Column("events", BigInteger, nullable=False),
    Column("priority", BigInteger, nullable=False),
    Column("project", Text, nullable=False),
    Column("share", BigInteger),
    Column("wish", BigInteger),
    Column("given_up", JSON(none_as_null=True)),
    Column("fleet", Text, nullable=False),
    Index("jobs_by_submission", "submitted_at"),
    Index("jobs_by_name", "name"),
)

charges = Table(
    "charges",
    metadata,
    Column("job", Text, primary_key=True),
    Column("node", Text, primary_key=True),
    Column("kind", Text, nullable=False),
    Column("state", Text, nullable=False),
    Column("dollars", Double, nullable=False),
    Column("from_at", Double, nullable=False),
    Column("to_at", Double, nullable=False),
)

selector_states = Table(
    "selector_states",
    metadata,
    Column("pool", Text, primary_key=True),
    Column("version", BigInteger, primary_key=True, autoincrement=False),
    Column("job", Text),
    Column("payload", LargeBinary, nullable=False),
    Column("saved_at", Double, nullable=False),
    # A pool learns from a job once, even after a crash.
    UniqueConstraint("pool", "job", name="selector_states_once_per_job"),
)

measurements = Table(
    "measurements",
    metadata,
    Column("key", Text, primary_key=True),
    Column("measured_at", Double, nullable=False),
    Column("origin", Text, nullable=False),
    Column("provenance", Text, nullable=False),
    Column("model", Text, nullable=False),
    Column("gpu_model", Text, nullable=False),
    Column("method", Text, nullable=False),
    Column("num_gpus", Integer, nullable=False),
    Column("outcome", Text, nullable=False),
    Column("configuration_key", Text, nullable=False),
    # The whole observation as JSON; the other columns are for queries.
    Column("document", Text, nullable=False),
    Index("measurements_by_model", "model"),
    Index("measurements_by_provenance", "provenance"),
)

fleet_nodes = Table(
    "fleet_nodes",
    metadata,
    Column("fleet", Text, primary_key=True),
    Column("job", Text, primary_key=True),
    # Empty for what concerns the whole job, such as its limit.
    Column("node", Text, primary_key=True),
    Column("version", BigInteger, nullable=False),
    Column("open", Integer, nullable=False),
    Column("body", Text, nullable=False),
    Index("fleet_nodes_by_job", "fleet", "job"),
    Index("fleet_nodes_open", "fleet", "open"),
)
