from __future__ import annotations

import msgspec
import pytest

from duetune.core.decision import Allocation
from duetune.core.events import (
    Amend,
    Cancel,
    Decided,
    Ended,
    Learned,
    Observed,
    Pause,
    Reported,
    Resume,
    Status,
    UserRequested,
)
from duetune.core.fleet import Node, NodeEnd, NodeKind, NodeState
from duetune.core.market import Slot
from duetune.core.progress import Phase, Progress
from duetune.engine.effects import STALL_SLOTS
from duetune.engine.engine import Engine
from duetune.errors import StoreError
from duetune.store import database_journal
from duetune.store.projection import Follower
from duetune.store.store import open_store
from duetune.testing import Idle
from duetune.testing.sample_events import decision, story, submission

SUBMITTED = submission(name="tuning", spec='{"model": "org/model", "tags": {"team": "nlp"}}')
T = SUBMITTED.origin
SLOT = Observed(
    at=T,
    slot=1,
    progress=0.0,
    held=Allocation(),
    market=Slot(0.3, 6, 1.0),
    forecast_price=(),
    forecast_available=(),
    spent=0.0,
)


def node(name, state=NodeState.RUNNING, *, kind=NodeKind.SPOT, billed=0.0, ended_at=None):
    return Node(
        id=name,
        job="tuning",
        kind=kind,
        state=state,
        requested_at=T + 1,
        started_at=None if state in {NodeState.REQUESTED, NodeState.REFUSED} else T + 2,
        ended_at=ended_at,
        billed=billed,
    )


def row_after(store, *events):
    store.journal.append("tuning", [SUBMITTED, *events], expected=0)
    return store.job("tuning")


def requested(*requests):
    return [
        UserRequested(at=T + 9, wish_id=number, wish=request)
        for number, request in enumerate(requests)
    ]


def test_a_submitted_job_waits(store):
    row = row_after(store)
    assert (row.status, row.name, row.policy) == (Status.QUEUED, "tuning", "ahap")
    assert (row.model, row.tags) == ("org/model", ("team=nlp",))
    assert (row.submitted_at, row.updated_at) == (SUBMITTED.at, SUBMITTED.at)
    assert row.deadline_at == T + 10 * 1800
    assert (row.step, row.total_steps, row.budget, row.cost) == (0, 30, 40.0, None)


def test_a_stream_that_was_never_submitted_is_no_job(store):
    store.journal.append("tuning", [decision(1), Reported(T, (node("a", billed=2.0),))], expected=0)
    assert store.jobs() == []
    assert store.charges() == []
    assert store.active() == []


@pytest.mark.parametrize("spec", ["", "not json", "[]", '{"model": 7}', '{"tags": [1]}'])
def test_a_document_that_is_not_understood_is_no_hindrance(store, spec):
    store.journal.append("tuning", [submission(spec=spec)], expected=0)
    row = store.job("tuning")
    assert (row.model, row.tags) == ("", ())


@pytest.mark.parametrize(
    ("requests", "status"),
    [
        ((), Status.RUNNING),
        ((Pause(),), Status.PAUSED),
        ((Pause(), Resume()), Status.RUNNING),
        ((Cancel(),), Status.STOPPING),
        ((Pause(), Cancel()), Status.STOPPING),
        ((Cancel(), Resume(), Pause()), Status.STOPPING),
    ],
)
def test_requests_change_the_status(store, requests, status):
    assert row_after(store, SLOT, *requested(*requests)).status is status


def test_the_terms_can_be_amended_one_by_one(store):
    row = row_after(store, *requested(Amend(deadline=T + 99), Amend(budget=7.5), Amend()))
    assert (row.deadline_at, row.budget) == (T + 99, 7.5)


def test_what_runs_is_counted_and_what_was_taken(store):
    on_demand = node("b", kind=NodeKind.ON_DEMAND, billed=3.0)
    row = row_after(store, SLOT, Reported(T + 5, (node("a", billed=1.0), on_demand)))
    assert (row.spot, row.on_demand, row.preemptions, row.spent) == (1, 1, 0, 4.0)
    lost = node("a", NodeState.LOST, billed=1.5, ended_at=T + 6)
    more = (lost, node("c", NodeState.REQUESTED), node("d", NodeState.REFUSED), node("e"))
    store.journal.append("tuning", [Reported(T + 6, more)], expected=3)
    row = store.job("tuning")
    assert (row.spot, row.on_demand, row.preemptions, row.spent) == (1, 1, 1, 4.5)
    # Told again, by the same words, nothing changes.
    store.journal.append("tuning", [Reported(T + 9, more)], expected=4)
    assert store.job("tuning") == msgspec.structs.replace(row, updated_at=T + 9, events=5)


def test_nodes_that_never_started_are_not_in_the_bill(store):
    row_after(store, Reported(T + 6, (node("c", NodeState.REQUESTED), node("d"))))
    assert [charge.node for charge in store.charges("tuning")] == ["d"]


def test_a_charge_goes_to_the_last_word_or_the_end(store):
    row_after(store, Reported(T + 50, (node("a", billed=1.0),)))
    (charge,) = store.charges()
    assert (charge.from_at, charge.to_at, charge.dollars) == (T + 2, T + 50, 1.0)
    ended = node("a", NodeState.RELEASED, billed=2.0, ended_at=T + 70)
    store.journal.append("tuning", [Reported(T + 99, (ended,))], expected=2)
    (charge,) = store.charges()
    assert (charge.from_at, charge.to_at, charge.dollars) == (T + 2, T + 70, 2.0)
    assert charge.state is NodeState.RELEASED


def test_progress_and_the_reason_of_the_last_decision_are_shown(store):
    training = Progress(step=7, total_steps=40, loss=1.5, phase=Phase.TRAINING)
    decided = Decided(T, 1, Allocation(2, 0), "spot is cheap")
    row = row_after(store, SLOT, decided, Reported(T + 9, progress=training))
    assert (row.step, row.total_steps, row.loss) == (7, 40, 1.5)
    assert row.reason == "spot is cheap"
    assert row.updated_at == T + 9


@pytest.mark.parametrize(
    ("phase", "reason"), [(Phase.FINISHED, "finished"), (Phase.FAILED, "out of memory")]
)
def test_training_that_is_over_stops_the_job(store, phase, reason):
    over = Progress(step=30, phase=phase, message="out of memory", output="/out")
    row = row_after(store, SLOT, Reported(T + 9, progress=over))
    assert (row.status, row.reason, row.output) == (Status.STOPPING, reason, "/out")


def test_the_end_is_final(store):
    ended = Ended(T + 9, Status.SUCCEEDED, "finished", 12.5, 60.0, T + 8, "/out")
    row = row_after(store, SLOT, ended, *requested(Cancel()))
    assert (row.status, row.reason, row.cost) == (Status.SUCCEEDED, "finished", 12.5)
    assert (row.value, row.finished_at, row.ended_at, row.output) == (60.0, T + 8, T + 9, "/out")


def test_a_job_is_active_until_it_is_over_and_learnt_from(store):
    ended = Ended(T + 9, Status.SUCCEEDED, "finished", 12.5)
    row_after(store, SLOT)
    assert store.active() == ["tuning"]
    store.journal.append("tuning", [ended], expected=2)
    assert store.active() == ["tuning"]
    store.journal.append("tuning", [Learned(T + 10, "pool", (), ())], expected=3)
    assert store.active() == []
    assert store.job("tuning").learned_at == T + 10


def test_a_number_that_is_none_is_nothing_and_too_large_a_step_is_no_hindrance(store):
    odd = Progress(step=10**30, total_steps=-(10**30), loss=float("nan"))
    row = row_after(store, Reported(T, progress=odd))
    assert row.loss is None
    assert row.step == 2**63 - 1


def test_text_that_a_database_cannot_hold_is_shown_without_it(store):
    row = row_after(store, Decided(T, 1, Allocation(), "a\0b"))
    assert row.reason == "a\N{REPLACEMENT CHARACTER}b"
    assert store.journal.read("tuning")[-1].event.reason == "a\0b"


def test_the_engine_says_the_same():
    engine = Engine("tuning", lambda _: Idle())
    follower = Follower("tuning")
    for event in story():
        engine.handle(event)
        engine.validate()
        follower.take([event])
        row, state = follower.row(), engine.state
        assert (row.status, row.step, row.events) == (
            state.status,
            state.progress.step,
            state.position,
        )
        assert (row.spent, row.preemptions) == (state.spent, state.preemptions)
        assert row.budget == state.job.budget
        assert row.deadline_at == state.deadline_at


def test_a_command_that_can_never_work_stops_the_job(store):
    hopeless = msgspec.structs.replace(node("a", NodeState.RELEASED), end=NodeEnd.HOPELESS)
    row = row_after(store, SLOT, Reported(T + 9, (hopeless,)))
    assert (row.status, row.reason) == (
        Status.STOPPING,
        "the training command cannot run; see the logs",
    )


def test_a_job_that_does_no_step_shows_that_it_stops(store):
    slots = [
        msgspec.structs.replace(SLOT, at=T + 1800 * number, slot=number + 1, held=Allocation(1))
        for number in range(STALL_SLOTS + 2)
    ]
    row = row_after(store, *slots)
    assert (row.status, row.reason) == (
        Status.STOPPING,
        f"no step done in {STALL_SLOTS} slots; see the logs",
    )


def test_a_job_whose_time_is_up_shows_that_it_stops(store):
    late = msgspec.structs.replace(SLOT, at=T + 1800 * 15, slot=16)
    row = row_after(store, SLOT, late)
    assert row.status is Status.STOPPING
    assert row.reason.startswith("the hard deadline has passed")


def test_an_own_command_that_is_done_shows_that_the_job_stops(store):
    task = msgspec.structs.replace(SUBMITTED.task, module="", command=("train",))
    own = msgspec.structs.replace(SUBMITTED, task=task)
    done = msgspec.structs.replace(
        node("a", NodeState.RELEASED, ended_at=T + 8), end=NodeEnd.FINISHED
    )
    store.journal.append("tuning", [own, SLOT, Reported(T + 9, (done,))], expected=0)
    assert store.job("tuning").status is Status.STOPPING


def test_a_worker_that_starts_late_takes_nothing_back(store):
    finished = Progress(step=30, phase=Phase.FINISHED)
    row = row_after(
        store, SLOT, Reported(T + 9, progress=finished), Reported(T + 9.5, progress=Progress())
    )
    assert (row.status, row.step) == (Status.STOPPING, 30)


def test_an_append_does_not_read_the_stream_again(store, monkeypatch):
    store.journal.append("tuning", [SUBMITTED, SLOT], expected=0)
    with monkeypatch.context() as patched:
        patched.setattr(database_journal, "read_stream", None)
        for length in range(2, 6):
            store.journal.append("tuning", [decision(1)], expected=length)
    assert store.job("tuning").events == 6


def test_what_another_has_appended_is_taken_in(store):
    store.journal.append("tuning", [SUBMITTED, SLOT], expected=0)
    with open_store(store.name) as other:
        other.journal.append("tuning", requested(Pause()), expected=2)
        store.journal.append("tuning", [decision(1, reason="paused")], expected=3)
        row = store.job("tuning")
        assert (row.status, row.events) == (Status.PAUSED, 4)
        other.journal.append("tuning", [UserRequested(T + 10, 7, Resume())], expected=4)
        assert other.job("tuning").status is Status.RUNNING


def test_an_append_that_fails_leaves_no_trace_in_the_next(store, monkeypatch):
    store.journal.append("tuning", [SUBMITTED, SLOT], expected=0)

    def broken(*_args, **_named):
        raise StoreError("the disk", "is full")

    with monkeypatch.context() as patched:
        patched.setattr(database_journal, "_take_requests", broken)
        with pytest.raises(StoreError):
            store.journal.append("tuning", requested(Cancel()), expected=2)
    store.journal.append("tuning", [decision(1)], expected=2)
    row = store.job("tuning")
    assert (row.status, row.events) == (Status.RUNNING, 3)


def test_an_event_that_the_engine_refuses_is_kept_and_changes_nothing(store):
    row = row_after(store, SLOT)
    late = Learned(T + 10, "pool", (), ())
    store.journal.append("tuning", [SUBMITTED, late], expected=2)
    assert store.job("tuning") == msgspec.structs.replace(row, events=4)
    assert len(store.journal.read("tuning")) == 4


def test_only_so_many_states_are_kept(store, monkeypatch):
    monkeypatch.setattr("duetune.store.database_journal.KEPT", 3)
    for number in range(6):
        store.journal.append(f"job-{number}", [SUBMITTED], expected=0)
    assert list(store.journal._followers)[-3:] == ["job-3", "job-4", "job-5"]
    store.journal.append("job-0", [SLOT], expected=1)
    assert store.job("job-0").status is Status.RUNNING


def test_what_is_lost_is_computed_anew(store):
    for name in ("one", "two"):
        store.journal.append(name, story(), expected=0)
    store.journal.append("not a job", [decision(1)], expected=0)
    before = (store.jobs(), store.charges())
    with store._database.writing() as connection:
        connection.exec_driver_sql("UPDATE jobs SET status = 'FAILED', spent = 99")
        connection.exec_driver_sql("DELETE FROM charges WHERE job = 'two'")
        connection.exec_driver_sql("DELETE FROM jobs WHERE id = 'one'")
    assert (store.jobs(), store.charges()) != before
    assert store.rebuild() == 2
    assert (store.jobs(), store.charges()) == before


def test_many_nodes_in_one_report_are_no_hindrance(store):
    fleet = tuple(node(f"n{number}", billed=0.25) for number in range(2000))
    row = row_after(store, Reported(T + 5, fleet), Reported(T + 6, fleet))
    assert (row.spot, row.spent) == (2000, 500.0)
    later = tuple(node(f"n{number}", billed=0.5) for number in range(2000))
    store.journal.append("tuning", [Reported(T + 7, later)], expected=3)
    assert store.job("tuning").spent == 1000.0
    assert len(store.charges()) == 2000
