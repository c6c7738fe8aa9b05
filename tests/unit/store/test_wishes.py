from __future__ import annotations

import pytest

from duetune.core.events import Amend, Cancel, Pause, Resume, UserRequested
from duetune.errors import InvalidInput, StaleController
from duetune.store import open_store
from duetune.testing.sample_events import decision, submission


def test_wishes_wait_in_order(store):
    wishes = [("a", Pause()), ("b", Cancel()), ("a", Amend(deadline=5.5)), ("a", Resume())]
    ids = [store.wishes.ask(job, wish) for job, wish in wishes]
    assert ids == sorted(set(ids))
    assert store.wishes.pending() == [
        (key, job, wish) for key, (job, wish) in zip(ids, wishes, strict=True)
    ]
    assert [wish for _, _, wish in store.wishes.pending("b")] == [Cancel()]
    assert store.wishes.pending("c") == []


def test_another_process_sees_them(store):
    store.wishes.ask("a", Pause())
    with open_store(store.name) as other:
        (pending,) = other.wishes.pending()
        other.wishes.taken([pending.id])
    assert store.wishes.pending() == []


def test_taking_twice_is_harmless(store):
    first, second = store.wishes.ask("a", Pause()), store.wishes.ask("a", Resume())
    store.wishes.taken([first])
    store.wishes.taken([first, first, 999])
    store.wishes.taken([])
    assert [pending.id for pending in store.wishes.pending()] == [second]


def test_the_journal_takes_a_wish_in_the_same_breath(store):
    key = store.wishes.ask("a", Pause())
    other = store.wishes.ask("b", Pause())
    event = UserRequested(at=1.0, wish_id=key, wish=Pause())
    with pytest.raises(StaleController):
        store.journal.append("a", [submission(), event], expected=7)
    assert len(store.wishes.pending()) == 2
    store.journal.append("a", [submission(), event], expected=0)
    assert [pending.id for pending in store.wishes.pending()] == [other]


def test_a_stream_takes_only_its_own_wishes(store):
    key = store.wishes.ask("a", Pause())
    store.journal.append("b", [UserRequested(at=1.0, wish_id=key, wish=Pause())], expected=0)
    assert len(store.wishes.pending()) == 1


def test_a_rebuild_takes_what_the_journal_has(store):
    key = store.wishes.ask("a", Pause())
    store.journal.append("a", [UserRequested(at=1.0, wish_id=key, wish=Pause())], expected=0)
    with store._database.writing() as connection:
        connection.exec_driver_sql("UPDATE wishes SET taken_at = NULL")
    store.rebuild()
    assert store.wishes.pending() == []


def test_an_id_is_never_given_twice(store):
    key = store.wishes.ask("a", Pause())
    with store._database.writing() as connection:
        connection.exec_driver_sql("DELETE FROM wishes")
    assert store.wishes.ask("a", Pause()) > key


@pytest.mark.parametrize("name", ["", "a\0b", "a\nb", "x" * 201])
def test_names_that_cannot_be_jobs_are_refused(store, name):
    with pytest.raises(InvalidInput, match="1 to 200 printable characters"):
        store.wishes.ask(name, Pause())
    with pytest.raises(InvalidInput, match="1 to 200 printable characters"):
        store.journal.append(name, [decision(1)], expected=0)
