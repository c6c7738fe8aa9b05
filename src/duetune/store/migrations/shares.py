"""What a job may hold where jobs share a finite fleet: priority, project, share and wish."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision: str | None = "0002"
branch_labels: str | None = None
depends_on: str | None = None


def upgrade() -> None:
    # Jobs from before had none of these, so the rows need not be computed anew.
    op.add_column("jobs", sa.Column("priority", sa.BigInteger, nullable=False, server_default="0"))
    op.add_column("jobs", sa.Column("project", sa.Text, nullable=False, server_default=""))
    op.add_column("jobs", sa.Column("share", sa.BigInteger))
    op.add_column("jobs", sa.Column("wish", sa.BigInteger))
