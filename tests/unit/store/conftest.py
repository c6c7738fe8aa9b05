from __future__ import annotations

import pytest

from duetune.store.sql_tables import metadata
from duetune.store.store import open_store


@pytest.fixture(params=["sqlite", "postgres"])
def place(request, tmp_path):
    """Where a new store can be opened, on each database."""
    if request.param == "sqlite":
        return tmp_path / "duetune.db"
    return request.getfixturevalue("postgres_url")


@pytest.fixture(scope="session")
def postgres_store(postgres_server):
    """One for all tests of a worker: to make it anew takes longer than most of them."""
    with open_store(postgres_server.create("stores")) as opened:
        yield opened


@pytest.fixture(params=["sqlite", "postgres"])
def store(request, tmp_path):
    """An empty store, on each database. Its name opens it again."""
    if request.param == "sqlite":
        with open_store(tmp_path / "duetune.db") as opened:
            yield opened
        return
    opened = request.getfixturevalue("postgres_store")
    with opened._database.writing() as connection:
        connection.exec_driver_sql(f"TRUNCATE {', '.join(metadata.tables)} RESTART IDENTITY")
    yield opened
