"""The rows of a step become a field of what jobs have measured: they stood in its words alone."""

from __future__ import annotations

import hashlib
import re

import msgspec
import sqlalchemy as sa
from alembic import op

from duetune.store.migrations.measurements import _told

revision = "0004"
down_revision: str | None = "0003"
branch_labels: str | None = None
depends_on: str | None = None

_ROWS = re.compile(r"steps of ([1-9]\d{0,17}) rows")

_measurements = sa.table("measurements", sa.column("key"), sa.column("document"))


def upgrade() -> None:
    connection, columns = op.get_bind(), _measurements.c
    wanted = columns.document.contains("steps of")
    for key, text in connection.execute(sa.select(_measurements).where(wanted)).all():
        document = msgspec.json.decode(text, type=dict[str, object])
        found = _ROWS.fullmatch(str(document.get("protocol")))
        if found is None or document.get("step_rows"):
            continue
        document["step_rows"] = int(found[1])
        connection.execute(
            sa.update(_measurements)
            .where(columns.key == key)
            .values(key=_key(document), document=_text(document).decode())
        )


def downgrade() -> None:
    raise NotImplementedError("what was measured is never thrown away")


def _key(document: dict[str, object]) -> str:
    """As the store made keys when this revision was made."""
    configuration = document["configuration"]
    assert isinstance(configuration, dict)
    told = {**_told(document), "configuration": _told(configuration)}
    return hashlib.blake2b(_text(told), digest_size=8).hexdigest()


def _text(document: dict[str, object]) -> bytes:
    return msgspec.json.encode(document, order="sorted")
