"""A store in a PostgreSQL database of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlalchemy import create_engine

from duetune.errors import MissingExtra
from duetune.store.database import Database

if TYPE_CHECKING:
    from sqlalchemy import URL


def postgres_database(url: URL) -> Database:
    """Connections that have died, by a restart of the server, are replaced when next used."""
    url = url.set(drivername="postgresql+psycopg")
    shown = url.difference_update_query(["password"]).render_as_string(hide_password=True)
    try:
        engine = create_engine(url, pool_pre_ping=True)
    except ImportError as missing:
        raise MissingExtra("a PostgreSQL journal", "postgres") from missing
    return Database(engine, shown)
