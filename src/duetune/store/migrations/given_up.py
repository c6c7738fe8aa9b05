"""Jobs that their policy has given up: the reason, and the terms that would save the job."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision: str | None = "0004"
branch_labels: str | None = None
depends_on: str | None = None


def upgrade() -> None:
    # No journal from before says that a job was given up, so the rows need not be computed anew.
    op.add_column("jobs", sa.Column("given_up", sa.JSON(none_as_null=True)))
