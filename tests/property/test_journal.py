"""Any event survives the journal, and read models are what the journal says."""

from __future__ import annotations

import math
from typing import get_args

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from duetune.core.events import Event, Recorded, Status, Submitted, UserRequest, UserRequested
from duetune.core.fleet import NodeKind, NodeState
from duetune.core.job import Job
from duetune.store.memory_journal import MemoryJournal
from duetune.store.projection import Follower, _plain
from duetune.store.queries import cost_lines
from duetune.store.rows import Charge, CostBy, JobRow
from duetune.store.store import open_store
from support.strategies import jobs

BILLS = st.floats(0, 1e6)
TIMES = st.floats(0, 4e9)
FINITE = st.floats(allow_nan=False, allow_infinity=False)
SPECIAL = {
    "at": TIMES,
    "billed": BILLS,
    "requested_at": TIMES,
    "started_at": st.none() | TIMES,
    "ended_at": st.none() | TIMES,
    # Few, so that events tell of the same ones again.
    "id": st.sampled_from(["n1", "n2", "n3", "\0", "größe"]),
    # Of other nodes: what was reported is never asked for again.
    "node": st.sampled_from(["m1", "m2"]),
    # What no job is submitted with, and no controller measures, need not be followed.
    "origin": TIMES,
    "slot_s": st.floats(1, 1e6),
    "slot": st.integers(1, 500),
    "pace": st.dictionaries(st.integers(-1, 9), st.floats(-1, 1e6), max_size=3),
    "wish_id": st.integers(1, 4),
    "spec": st.sampled_from(["", "{}", '{"model": "m", "tags": {"a": "b", "c": 1}}']) | st.text(),
}


def values(kind: msgspec.inspect.Type, field: str = "") -> st.SearchStrategy[object]:
    """Any value of a type, by its description, so that new fields are covered by themselves."""
    if field in SPECIAL:
        return SPECIAL[field]
    match kind:
        case msgspec.inspect.StructType(cls=cls) if cls is Job:
            return jobs(budget=True)
        case msgspec.inspect.StructType(cls=cls, fields=fields):
            return st.builds(cls, **{each.name: values(each.type, each.name) for each in fields})
        case msgspec.inspect.UnionType(types=types):
            return st.one_of([values(each) for each in types])
        case msgspec.inspect.VarTupleType(item_type=item):
            return st.lists(values(item), max_size=4).map(tuple)
        case msgspec.inspect.DictType(key_type=key, value_type=value):
            return st.dictionaries(values(key), values(value), max_size=3)
        case msgspec.inspect.EnumType(cls=cls):
            return st.sampled_from(cls)
    simple = {
        msgspec.inspect.IntType: st.integers(-(2**63), 2**63 - 1),
        msgspec.inspect.FloatType: FINITE,
        msgspec.inspect.StrType: st.text(),
        msgspec.inspect.BoolType: st.booleans(),
        msgspec.inspect.NoneType: st.none(),
    }
    return simple[type(kind)]


def any_of(*kinds: type) -> st.SearchStrategy[object]:
    return st.one_of([values(msgspec.inspect.type_info(kind)) for kind in kinds])


EVENTS = any_of(*get_args(Event))
LATER = any_of(*(kind for kind in get_args(Event) if kind is not Submitted))
STORIES = st.builds(lambda first, rest: [first, *rest], any_of(Submitted), st.lists(LATER))


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def journal(request, tmp_path):
    if request.param == "memory":
        yield MemoryJournal()
        return
    place = (
        tmp_path / "a.db" if request.param == "sqlite" else request.getfixturevalue("postgres_url")
    )
    with open_store(place) as store:
        yield store.journal


@pytest.fixture(params=["sqlite", "postgres"])
def store(request, tmp_path):
    place = (
        tmp_path / "a.db" if request.param == "sqlite" else request.getfixturevalue("postgres_url")
    )
    with open_store(place) as opened:
        yield opened


keeps_its_journal = settings(
    max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@keeps_its_journal
@given(events=st.lists(EVENTS, max_size=5))
def test_any_event_comes_back_as_it_was(journal, events):
    before = journal.length("job")
    journal.append("job", events, expected=before)
    assert journal.read("job", after=before) == [
        Recorded(position, event) for position, event in enumerate(events, before + 1)
    ]


@keeps_its_journal
@given(story=STORIES, data=st.data(), requests=st.lists(any_of(*get_args(UserRequest)), max_size=4))
def test_read_models_that_follow_are_those_that_are_rebuilt(store, story, data, requests):
    job = f"job-{len(store.jobs())}"
    for request in requests:
        store.requests.ask(job, request)
    length = 0
    while length < len(story):
        some = data.draw(st.integers(1, len(story) - length))
        length = store.journal.append(job, story[length : length + some], expected=length)
    rows, charges, pending = store.jobs(), store.charges(), store.requests.pending()
    store.rebuild()
    assert (store.jobs(), store.charges(), store.requests.pending()) == (rows, charges, pending)
    row = store.job(job)
    assert row.events == len(story)
    taken = {event.wish_id for event in story if isinstance(event, UserRequested)}
    left = {request.id for request in store.requests.pending() if request.job == job}
    assert not left & taken


@given(story=STORIES)
def test_the_row_agrees_with_the_charges(story):
    follower = Follower("job")
    charges, row = follower.take(story), follower.row()
    running = [name for name, each in charges.items() if each.state is NodeState.RUNNING]
    # A charge has the name that PostgreSQL can store.
    stored = {_plain(name): node.gpus for name, node in follower.state.nodes.items()}
    gpus = {name: stored[name] for name in running}
    if all(0 <= count <= 1000 for count in gpus.values()):
        assert row.spot + row.on_demand == sum(gpus.values())
        spot = [name for name in running if charges[name].kind.value == "spot"]
        assert row.spot == sum(gpus[name] for name in spot)
    assert math.isclose(row.spent, sum(charge.dollars for charge in charges.values()), abs_tol=1e-6)


@given(story=STORIES, cut=st.integers(0, 50))
def test_a_story_may_be_told_in_two_parts(story, cut):
    whole, parts = Follower("job"), Follower("job")
    charges = whole.take(story)
    assert parts.take(story[:cut]) | parts.take(story[cut:]) == charges
    assert parts == whole
    assert parts.row() == whole.row()


TAGGED = JobRow(
    id="any",
    name="any",
    status=Status.RUNNING,
    policy="any",
    submitted_at=0.0,
    deadline_at=0.0,
    updated_at=0.0,
    total_steps=1,
    tags=("x",),
    fleet="lab",
)
CHARGES = st.builds(
    Charge,
    job=st.sampled_from(["a", "b", "c"]),
    node=st.text(),
    kind=st.sampled_from(NodeKind),
    state=st.sampled_from(NodeState),
    dollars=BILLS,
    from_at=st.floats(0, 4 * 86_400),
    to_at=st.floats(0, 9 * 86_400),
)


@given(charges=st.lists(CHARGES))
def test_every_report_adds_up_to_the_charges(charges):
    total = math.fsum(charge.dollars for charge in charges)
    hours = math.fsum(max(0.0, charge.to_at - charge.from_at) for charge in charges) / 3600
    for by in CostBy:
        lines = cost_lines(charges, by, {"a": TAGGED, "b": TAGGED})
        assert [line.key for line in lines] == sorted({line.key for line in lines})
        assert math.isclose(math.fsum(line.dollars for line in lines), total, abs_tol=1e-6)
        assert math.isclose(math.fsum(line.gpu_hours for line in lines), hours, abs_tol=1e-6)
        assert all(line.dollars >= 0 and line.gpu_hours >= 0 for line in lines)
