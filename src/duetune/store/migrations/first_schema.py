"""The journal, the inbox, the read models, the selector's states and the observations."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision: str | None = None
branch_labels: str | None = None
depends_on: str | None = None


def upgrade() -> None:
    op.create_table(
        "journal",
        sa.Column("stream", sa.Text, primary_key=True),
        sa.Column("position", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("schema", sa.Integer, nullable=False),
        sa.Column("tag", sa.Text, nullable=False),
        sa.Column("body", sa.Text, nullable=False),
        sa.Column("recorded_at", sa.Double, nullable=False),
    )
    op.create_table(
        "wishes",
        sa.Column(
            "id",
            sa.BigInteger().with_variant(sa.Integer(), "sqlite"),
            primary_key=True,
            autoincrement=True,
        ),
        sa.Column("job", sa.Text, nullable=False),
        sa.Column("body", sa.Text, nullable=False),
        sa.Column("asked_at", sa.Double, nullable=False),
        sa.Column("taken_at", sa.Double),
        sqlite_autoincrement=True,
    )
    op.create_index("wishes_by_job", "wishes", ["job"])
    op.create_table(
        "jobs",
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("status", sa.Text, nullable=False),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("policy", sa.Text, nullable=False),
        sa.Column("model", sa.Text, nullable=False),
        sa.Column("tags", sa.JSON, nullable=False),
        sa.Column("submitted_at", sa.Double, nullable=False),
        sa.Column("deadline_at", sa.Double, nullable=False),
        sa.Column("budget", sa.Double),
        sa.Column("step", sa.BigInteger, nullable=False),
        sa.Column("total_steps", sa.BigInteger, nullable=False),
        sa.Column("loss", sa.Double),
        sa.Column("spot", sa.Integer, nullable=False),
        sa.Column("on_demand", sa.Integer, nullable=False),
        sa.Column("preemptions", sa.Integer, nullable=False),
        sa.Column("spent", sa.Double, nullable=False),
        sa.Column("cost", sa.Double),
        sa.Column("value", sa.Double),
        sa.Column("output", sa.Text, nullable=False),
        sa.Column("finished_at", sa.Double),
        sa.Column("ended_at", sa.Double),
        sa.Column("learned_at", sa.Double),
        sa.Column("updated_at", sa.Double, nullable=False),
        sa.Column("events", sa.BigInteger, nullable=False),
    )
    op.create_index("jobs_by_submission", "jobs", ["submitted_at"])
    op.create_index("jobs_by_name", "jobs", ["name"])
    op.create_table(
        "charges",
        sa.Column("job", sa.Text, primary_key=True),
        sa.Column("node", sa.Text, primary_key=True),
        sa.Column("kind", sa.Text, nullable=False),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("dollars", sa.Double, nullable=False),
        sa.Column("from_at", sa.Double, nullable=False),
        sa.Column("to_at", sa.Double, nullable=False),
    )
    op.create_table(
        "selector_states",
        sa.Column("pool", sa.Text, primary_key=True),
        sa.Column("version", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("job", sa.Text),
        sa.Column("payload", sa.LargeBinary, nullable=False),
        sa.Column("saved_at", sa.Double, nullable=False),
        sa.UniqueConstraint("pool", "job", name="selector_states_once_per_job"),
    )
    op.create_table(
        "observations",
        sa.Column("job", sa.Text, primary_key=True),
        sa.Column("gpus", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("model", sa.Text, nullable=False),
        sa.Column("method", sa.Text, nullable=False),
        sa.Column("gpu", sa.Text, nullable=False),
        sa.Column("microbatch", sa.Integer, nullable=False),
        sa.Column("global_batch", sa.Integer, nullable=False),
        sa.Column("sequence_length", sa.Integer, nullable=False),
        sa.Column("precision", sa.Text, nullable=False),
        sa.Column("steps_per_s", sa.Double),
        sa.Column("tokens_per_s", sa.Double),
        sa.Column("measured_at", sa.Double, nullable=False),
        sa.Column("versions", sa.JSON, nullable=False),
        sa.Column("outcome", sa.Text, nullable=False),
    )


def downgrade() -> None:
    raise NotImplementedError("the journal is never thrown away")
