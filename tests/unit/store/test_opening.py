from __future__ import annotations

import os
import shutil
import sqlite3
import stat
import sys
import tempfile
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import pytest

from duetune.errors import InvalidInput, MissingExtra, StoreError
from duetune.store.store import open_store
from duetune.testing.sample_events import decision, story

NOBODY = 65534

# Children of a clean process that has imported what they need.
processes = get_context("forkserver")
processes.set_forkserver_preload(["duetune.store", "duetune.testing.sample_events"])


def append_once(place, name):
    with open_store(place) as store:
        return store.journal.append(name, [decision(1)], expected=0)


def pragma(store, name):
    with store._database.reading() as connection:
        return connection.exec_driver_sql(f"PRAGMA {name}").scalar()


def test_a_path_a_name_and_an_url_open_the_same_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with open_store("a.db") as store:
        store.journal.append("job", [decision(1)], expected=0)
    for place in (tmp_path / "a.db", f"sqlite:///{tmp_path}/a.db", "sqlite:///a.db"):
        with open_store(place) as store:
            assert store.journal.streams() == ["job"]


def test_names_with_signs_are_only_names(tmp_path):
    for name in ("a b.db", "100%.db", "what?x=1#y.db", "größe.db", "file:x.db"):
        with open_store(tmp_path / name) as store:
            store.journal.append("job", [decision(1)], expected=0)
        assert (tmp_path / name).stat().st_size > 0


def test_only_the_owner_may_read_the_file(tmp_path):
    with open_store(tmp_path / "a.db") as store:
        store.journal.append("job", story(), expected=0)
        modes = {stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()}
        assert modes == {0o600}


def test_an_event_is_on_disk_and_readers_do_not_wait(tmp_path):
    with open_store(tmp_path / "a.db") as store:
        assert pragma(store, "journal_mode") == "wal"
        assert pragma(store, "synchronous") == 2  # FULL
        assert pragma(store, "foreign_keys") == 1
        assert pragma(store, "busy_timeout") >= 10_000


def test_many_may_open_a_new_store_at_once(place):
    with ThreadPoolExecutor(6) as pool:
        done = list(pool.map(lambda number: append_once(place, f"thread-{number}"), range(6)))
    assert done == [1] * 6


def test_many_processes_may_open_a_new_store_at_once(place):
    with ProcessPoolExecutor(3, mp_context=processes) as pool:
        done = [pool.submit(append_once, place, f"process-{number}") for number in range(3)]
        assert [each.result() for each in done] == [1] * 3
    with open_store(place) as store:
        assert store.journal.streams() == [f"process-{number}" for number in range(3)]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("missing/a.db", "expected a file in a folder that exists"),
        ("folder", "expected a file; this is a folder"),
        ("notes.txt", "expected an SQLite database"),
        ("other.db", "expected a database of duetune, or an empty one; has guests"),
    ],
)
def test_what_cannot_be_a_store_is_refused_in_one_line(tmp_path, name, message):
    (tmp_path / "folder").mkdir()
    (tmp_path / "notes.txt").write_text("no database at all, but long enough to look at\n" * 100)
    other = sqlite3.connect(tmp_path / "other.db")
    other.execute("CREATE TABLE guests (name TEXT)")
    other.close()
    before = (tmp_path / "notes.txt").read_bytes()
    with pytest.raises(InvalidInput) as refused:
        open_store(tmp_path / name)
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)
    assert (tmp_path / "notes.txt").read_bytes() == before


@pytest.mark.parametrize(
    "url", ["", "sqlite://", "sqlite:///:memory:", "mysql://x/y", "nonsense://", "://"]
)
def test_other_databases_are_refused(url):
    with pytest.raises(InvalidInput, match="sqlite:///FILE or postgresql"):
        open_store(url)


def test_a_password_is_never_shown():
    for url in ("mysql://me:geheim@host/x", "postgresql+psycopg://me:geheim@host:port/x"):
        with pytest.raises(InvalidInput) as refused:
            open_store(url)
        assert "geheim" not in str(refused.value)
    for query in ("", "?password=geheim"):
        with pytest.raises(StoreError) as failed:
            open_store(f"postgresql://me:geheim@/x{query or '?'}&host=/nowhere/at/all")
        assert "geheim" not in str(failed.value)
        assert "\n" not in str(failed.value)


def test_postgres_without_its_driver_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(MissingExtra, match=r"a PostgreSQL journal .*duetune\[postgres\]"):
        open_store("postgresql+psycopg://host/x")


def test_a_store_of_a_newer_version_is_left_alone(place):
    with open_store(place) as store, store._database.writing() as connection:
        connection.exec_driver_sql("UPDATE duetune_schema SET version_num = '0999'")
    with pytest.raises(InvalidInput, match=r"'0999' is not allowed; .* upgrade duetune"):
        open_store(place)


def test_a_server_that_was_restarted_is_found_again(postgres_url):
    with open_store(postgres_url) as store, open_store(postgres_url) as other:
        store.journal.append("job", [decision(1)], expected=0)
        with other._database.reading() as connection:
            connection.exec_driver_sql(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )
        assert store.journal.append("job", [decision(2)], expected=1) == 2


@pytest.fixture
def folder_of_nobody():
    """Root may write anywhere, so it steps down."""
    folder = Path(tempfile.mkdtemp(prefix="duetune-"))
    was_root = os.geteuid() == 0
    if was_root:
        os.chown(folder, NOBODY, NOBODY)
        os.seteuid(NOBODY)
    yield folder
    if was_root:
        os.seteuid(0)
    folder.chmod(0o700)
    shutil.rmtree(folder)


def test_a_file_that_cannot_be_written_is_refused(folder_of_nobody):
    file = folder_of_nobody / "a.db"
    open_store(file).close()
    file.chmod(0o400)
    with pytest.raises(InvalidInput, match="expected a file that can be read and written"):
        open_store(file)


def test_a_folder_that_cannot_be_written_is_refused(folder_of_nobody):
    open_store(folder_of_nobody / "a.db").close()
    folder_of_nobody.chmod(0o500)
    with pytest.raises(InvalidInput, match="a file that can be created"):
        open_store(folder_of_nobody / "b.db")
    with pytest.raises(InvalidInput, match="a file and a folder that can be written"):
        open_store(folder_of_nobody / "a.db")
    assert [each.name for each in folder_of_nobody.iterdir()] == ["a.db"]
