from __future__ import annotations

import functools

import pytest

import duetune.store
from duetune.store.database_journal import DatabaseJournal
from duetune.store.memory_journal import MemoryJournal
from duetune.store.store import open_store
from duetune.testing import JournalContract
from duetune.testing.sample_events import decision
from support.discovery import classes_with


def open_journal(place):
    return open_store(place).journal


class TestMemoryJournal(JournalContract):
    def make(self):
        return MemoryJournal()


class DatabaseContract(JournalContract):
    """``place`` is what ``open_store`` takes."""

    def make(self):
        self.stores.append(open_store(self.place))
        return self.stores[-1].journal

    def opener(self):
        return functools.partial(open_journal, self.place)

    @pytest.fixture(autouse=True)
    def _stores(self):
        self.stores = []
        yield
        for store in self.stores:
            store.close()

    def test_a_second_opener_sees_and_continues_it(self):
        first, second = self.make(), self.make()
        first.append("job", [decision(1)], expected=0)
        assert second.append("job", [decision(2)], expected=1) == 2
        assert [each.event for each in first.read("job")] == [decision(1), decision(2)]


class TestSqliteJournal(DatabaseContract):
    @pytest.fixture(autouse=True)
    def _place(self, tmp_path):
        self.place = tmp_path / "journal.db"


class TestPostgresJournal(DatabaseContract):
    @pytest.fixture(autouse=True)
    def _place(self, postgres_url):
        self.place = postgres_url


def test_every_journal_of_the_package_runs_through_the_suite():
    assert classes_with(duetune.store, "append", "read") == [DatabaseJournal, MemoryJournal]
