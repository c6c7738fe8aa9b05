"""A database whose file is deleted or replaced while it is in use."""

from __future__ import annotations

import os
import shutil
import sqlite3
from contextlib import closing

import pytest

from duetune.errors import StoreError, StoreLost
from duetune.settings import load_settings
from duetune.store.database import DatabaseFile
from duetune.store.store import open_store, opened_store
from duetune.testing.sample_events import submission


@pytest.fixture
def file(tmp_path):
    return tmp_path / "a%20 b?#.db"


@pytest.mark.parametrize("how", ["deleted", "replaced"])
def test_it_is_noticed_before_the_next_read_or_write_and_can_be_saved(file, tmp_path, how):
    other = tmp_path / "other.db"
    open_store(other).close()
    with open_store(file) as store:
        store.journal.append("tuning", [submission()], expected=0)
        if how == "deleted":
            file.unlink()
        else:
            other.replace(file)
        with pytest.raises(StoreLost, match=f"its file was {how}"):
            store.journal.append("more", [submission()], expected=0)
        with pytest.raises(StoreError):
            store.active()
        saved = store.rescue(tmp_path)
    assert file.exists() == (how == "replaced")
    saved.replace(file)
    with open_store(file) as again:
        assert again.job("tuning").name == "tuning"
        assert again.journal.length("more") == 0
        again.journal.append("more", [submission()], expected=0)


def test_no_empty_one_is_created_where_jobs_are(tmp_path):
    settings = load_settings({"DUETUNE_HOME": str(tmp_path)})
    opened_store(settings).close()
    settings.folder("tuning-1").mkdir(parents=True)
    opened_store(settings).close()
    (tmp_path / "duetune.db").unlink()
    with pytest.raises(StoreLost, match=r"the file is missing, but jobs exist \(tuning-1\)"):
        opened_store(settings)
    assert not (tmp_path / "duetune.db").exists()
    shutil.rmtree(settings.jobs)
    opened_store(settings).close()


class TestOverwritten:
    """A file that keeps its number and gets the content of another database."""

    def overwrite(self, path, content):
        with path.open("r+b") as file:
            file.truncate(0)
            file.write(content)
        later = path.stat().st_mtime_ns + 1_000_000_000
        os.utime(path, ns=(later, later))

    @pytest.mark.parametrize("content", ["another", "foreign", "empty", "text"])
    def test_it_is_noticed(self, tmp_path, content):
        open_store(tmp_path / "another").close()
        with closing(sqlite3.connect(tmp_path / "foreign")) as foreign:
            foreign.execute("CREATE TABLE foreign_rows (number INTEGER)")
        (tmp_path / "empty").touch()
        (tmp_path / "text").write_text("no database at all" * 300)
        with open_store(tmp_path / "duetune.db") as store:
            assert store.journal.streams() == []
            self.overwrite(tmp_path / "duetune.db", (tmp_path / content).read_bytes())
            with pytest.raises(StoreLost, match="overwritten"):
                store.journal.streams()
            with pytest.raises(StoreError, match="restore a backup"):
                store.rescue(tmp_path)

    def test_a_file_that_is_deleted_during_the_look_is_not_mistaken_for_it(
        self, tmp_path, monkeypatch
    ):
        path = tmp_path / "duetune.db"
        read = DatabaseFile._written_identity

        def too_late(file):
            path.unlink()
            return read(file)

        with open_store(path) as store:
            store.journal.append("job", [submission()], expected=0)
            later = path.stat().st_mtime_ns + 1_000_000_000
            os.utime(path, ns=(later, later))
            monkeypatch.setattr(DatabaseFile, "_written_identity", too_late)
            store.journal.streams()
            with pytest.raises(StoreLost, match="deleted"):
                store.journal.streams()
            assert store.rescue(tmp_path).exists()

    def test_a_checkpoint_that_is_half_written_is_not_mistaken_for_it(self, tmp_path, monkeypatch):
        path = tmp_path / "duetune.db"
        read, failures = DatabaseFile._written_identity, [1, 2]

        def torn(file):
            if failures:
                failures.pop()
                raise sqlite3.DatabaseError("database disk image is malformed")
            return read(file)

        with open_store(path) as store:
            store.journal.append("job", [submission()], expected=0)
            later = path.stat().st_mtime_ns + 1_000_000_000
            os.utime(path, ns=(later, later))
            monkeypatch.setattr(DatabaseFile, "_written_identity", torn)
            assert store.journal.streams() == ["job"]
            assert not failures

    def test_a_checkpoint_and_another_process_are_not_mistaken_for_it(self, tmp_path):
        path = tmp_path / "duetune.db"
        with open_store(path) as store, open_store(path) as other:
            other.journal.append("job", [submission()], expected=0)
            with closing(sqlite3.connect(path)) as connection:
                connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            assert store.journal.streams() == ["job"]

    def test_a_database_without_an_identity_gets_one(self, tmp_path):
        path = tmp_path / "duetune.db"
        open_store(path).close()
        with closing(sqlite3.connect(path)) as connection:
            connection.execute("PRAGMA user_version = 0")
        open_store(path).close()
        with closing(sqlite3.connect(path)) as connection:
            assert connection.execute("PRAGMA user_version").fetchone()[0] > 0
