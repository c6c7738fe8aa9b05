"""The ledger of fleets that others run: every node that was ever asked for."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision: str | None = "0005"
branch_labels: str | None = None
depends_on: str | None = None


def upgrade() -> None:
    op.create_table(
        "fleet_nodes",
        sa.Column("fleet", sa.Text, primary_key=True),
        sa.Column("job", sa.Text, primary_key=True),
        sa.Column("node", sa.Text, primary_key=True),
        sa.Column("version", sa.BigInteger, nullable=False),
        sa.Column("open", sa.Integer, nullable=False),
        sa.Column("body", sa.Text, nullable=False),
    )
    op.create_index("fleet_nodes_by_job", "fleet_nodes", ["fleet", "job"])
    op.create_index("fleet_nodes_open", "fleet_nodes", ["fleet", "open"])
