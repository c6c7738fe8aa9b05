from __future__ import annotations

import msgspec
import pytest

from duetune.core.events import Amend, Cancel, Pause, Resume, UserRequested
from duetune.errors import InvalidInput, StaleController
from duetune.store.store import open_store
from duetune.testing.sample_events import decision, submission


def test_requests_wait_in_order(store):
    requests = [("a", Pause()), ("b", Cancel()), ("a", Amend(deadline=5.5)), ("a", Resume())]
    ids = [store.requests.ask(job, request) for job, request in requests]
    assert ids == sorted(set(ids))
    assert store.requests.pending() == [
        (key, job, request) for key, (job, request) in zip(ids, requests, strict=True)
    ]


def test_another_process_sees_them(store):
    store.requests.ask("a", Pause())
    with open_store(store.name) as other:
        (pending,) = other.requests.pending()
        other.requests.taken([pending.id])
    assert store.requests.pending() == []


def test_taking_twice_is_harmless(store):
    first, second = store.requests.ask("a", Pause()), store.requests.ask("a", Resume())
    store.requests.taken([first])
    store.requests.taken([first, first, 999])
    store.requests.taken([])
    assert [pending.id for pending in store.requests.pending()] == [second]


def test_the_journal_takes_a_request_in_the_same_breath(store):
    key = store.requests.ask("a", Pause())
    other = store.requests.ask("b", Pause())
    event = UserRequested(at=1.0, wish_id=key, wish=Pause())
    with pytest.raises(StaleController):
        store.journal.append("a", [submission(), event], expected=7)
    assert len(store.requests.pending()) == 2
    store.journal.append("a", [submission(), event], expected=0)
    assert [pending.id for pending in store.requests.pending()] == [other]


def test_a_stream_takes_only_its_own_requests(store):
    key = store.requests.ask("a", Pause())
    store.journal.append("b", [UserRequested(at=1.0, wish_id=key, wish=Pause())], expected=0)
    assert len(store.requests.pending()) == 1


def test_a_rebuild_takes_what_the_journal_has(store):
    key = store.requests.ask("a", Pause())
    store.journal.append("a", [UserRequested(at=1.0, wish_id=key, wish=Pause())], expected=0)
    with store._database.writing() as connection:
        connection.exec_driver_sql("UPDATE wishes SET taken_at = NULL")
    store.rebuild()
    assert store.requests.pending() == []


def test_an_id_is_never_given_twice(store):
    key = store.requests.ask("a", Pause())
    with store._database.writing() as connection:
        connection.exec_driver_sql("DELETE FROM wishes")
    assert store.requests.ask("a", Pause()) > key


@pytest.mark.parametrize("name", ["", "a\0b", "a\nb", "x" * 201])
def test_names_that_cannot_be_jobs_are_refused(store, name):
    with pytest.raises(InvalidInput, match="1 to 200 printable characters"):
        store.requests.ask(name, Pause())
    with pytest.raises(InvalidInput, match="1 to 200 printable characters"):
        store.journal.append(name, [decision(1)], expected=0)


def test_the_controller_of_a_fleet_reads_the_requests_of_its_jobs_alone(store):
    for job, fleet in (("old", ""), ("here", "lab"), ("there", "campus")):
        event = msgspec.structs.replace(submission(), fleet=fleet)
        store.journal.append(job, [event], expected=0)
    for job in ("old", "here", "there", "unknown"):
        store.requests.ask(job, Pause())

    def read(*fleets):
        return [pending.job for pending in store.requests_of(fleets).pending()]

    assert read("lab", "") == ["old", "here", "unknown"]
    assert read("campus") == ["there", "unknown"]
    assert [pending.job for pending in store.requests.pending()][:3] == ["old", "here", "there"]
