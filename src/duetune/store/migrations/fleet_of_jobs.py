"""The fleet of each job, in a home whose jobs run on several fleets."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision: str | None = "0006"
branch_labels: str | None = None
depends_on: str | None = None


def upgrade() -> None:
    # No journal from before names a fleet, so the rows need not be computed anew.
    op.add_column("jobs", sa.Column("fleet", sa.Text, nullable=False, server_default=""))
