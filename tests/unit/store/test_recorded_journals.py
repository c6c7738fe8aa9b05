"""Journals as they were written once. They must stay readable for ever: never edit an asset."""

from __future__ import annotations

from typing import get_args

import msgspec
import pytest
from sqlalchemy import insert

from duetune.core.events import SCHEMA, Decided, Event, Status
from duetune.errors import InvalidInput
from duetune.store import sql_tables
from support.places import JOURNALS

LATER = {"disturbed"}
"""The kinds of events that did not exist when the journals were written."""


class Line(msgspec.Struct, forbid_unknown_fields=True):
    stream: str
    position: int
    schema: int
    tag: str
    recorded_at: float
    body: msgspec.Raw


def recorded(schema):
    return msgspec.json.decode(
        b"[" + b",".join((JOURNALS / f"schema-{schema}.jsonl").read_bytes().splitlines()) + b"]",
        type=list[Line],
    )


def put(store, lines):
    """As it was written then, past the code that writes today."""
    rows = [msgspec.structs.asdict(line) | {"body": bytes(line.body).decode()} for line in lines]
    with store._database.writing() as connection:
        connection.execute(insert(sql_tables.journal), rows)


@pytest.mark.parametrize("schema", range(1, SCHEMA + 1))
def test_a_journal_of_every_schema_there_was_is_readable(store, schema):
    lines = recorded(schema)
    put(store, lines)
    for stream in {line.stream for line in lines}:
        assert len(store.journal.read(stream)) == sum(line.stream == stream for line in lines)
    store.rebuild()
    row = store.job("tuning")
    assert (row.status, row.reason, row.cost) == (Status.CANCELLED, "cancelled", 2.5)
    assert (row.model, row.tags, row.budget) == ("org/model", ("team=nlp",), 55.5)
    assert (row.deadline_at, row.step, row.total_steps) == (1_700_009_000.0, 12, 30)


@pytest.mark.parametrize("schema", range(1, SCHEMA + 1))
def test_no_field_was_renamed_and_no_value_changed_since(store, schema):
    lines = [line for line in recorded(schema) if line.stream == "tuning"]
    put(store, lines)
    today = {kind.__struct_config__.tag for kind in get_args(Event)}
    assert {line.tag for line in lines} == today - LATER
    for line, found in zip(lines, store.journal.read("tuning"), strict=True):
        assert found.position == line.position
        today = msgspec.json.decode(msgspec.json.encode(found.event))
        assert contains(today, msgspec.json.decode(line.body)), line.tag


def contains(today, then):
    """Fields may have been added."""
    if isinstance(then, dict):
        return all(key in today and contains(today[key], value) for key, value in then.items())
    if isinstance(then, list):
        return len(today) == len(then) and all(map(contains, today, then))
    return today == then


def test_fields_that_a_later_release_added_are_passed_over(store):
    put(store, [line for line in recorded(1) if line.stream == "later"])
    (found,) = store.journal.read("later")
    assert isinstance(found.event, Decided)
    assert (found.event.slot, found.event.reason) == (1, "spot is cheap")


def test_an_event_of_a_schema_to_come_is_refused_in_one_line(store):
    line = Line("job", 1, SCHEMA + 1, "decided", 0.0, msgspec.Raw(b'{"type": "decided"}'))
    put(store, [line])
    with pytest.raises(InvalidInput) as refused:
        store.journal.read("job")
    assert str(refused.value) == (
        f"event 1 of 'job' in the journal: 'schema {SCHEMA + 1}' is not allowed; "
        f"expected schema {SCHEMA} or older; upgrade duetune to read it"
    )


@pytest.mark.parametrize("body", [b'{"type": "danced"}', b'{"type": "decided"}', b"17"])
def test_an_event_that_makes_no_sense_is_refused_in_one_line(store, body):
    put(store, [Line("job", 1, SCHEMA, "decided", 0.0, msgspec.Raw(body))])
    with pytest.raises(InvalidInput, match="event 1 of 'job' in the journal") as refused:
        store.journal.read("job")
    assert "\n" not in str(refused.value)
