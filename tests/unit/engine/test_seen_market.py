"""What a policy is shown of the market: the past before the job, then slot by slot."""

from __future__ import annotations

import msgspec
import pytest

from duetune.core.events import Event, Past, Submitted
from duetune.engine.engine import Engine
from duetune.engine.state import highest_price
from duetune.registry.policies import policy_named
from support.places import JOURNALS
from support.stories import SLOT_S, Story, moment

JOURNAL = JOURNALS / "schema-1.jsonl"
PAST = Past(spot_price=(0.2, 0.7, 0.4), available=(1, 2, 3))


def story(*, past=PAST, **terms) -> Story:
    """As any story, of a job that knows a past."""
    told = Story(**terms)
    submitted = msgspec.structs.replace(told.events[0], past=past)
    told.engine = Engine("job", policy_named)
    told.events.clear()
    told.tell(submitted)
    return told


def seen(told: Story, at: float, **market):
    """What the policy sees in a slot that begins now."""
    observed = told.observed(at, **market)
    told.tell(observed)
    view = told.engine.view(observed)
    assert view.seen.available[-1] == view.market.available
    assert view.seen.spot_price[-1] == view.market.spot_price
    return view.seen


def test_the_past_comes_first_and_the_present_last():
    told = story()
    first = seen(told, 0.02, price=0.3, available=4)
    assert first.spot_price.tolist() == [0.2, 0.7, 0.4, 0.3]
    assert first.available.tolist() == [1, 2, 3, 4]
    second = seen(told, 1.02, price=0.5, available=0)
    assert second.spot_price.tolist() == [0.2, 0.7, 0.4, 0.3, 0.5]
    assert second.available.tolist() == [1, 2, 3, 4, 0]


def test_without_a_past_there_are_the_slots_alone():
    told = story(past=Past())
    assert seen(told, 0.02, available=2).available.tolist() == [2]
    assert seen(told, 1.02, available=1).available.tolist() == [2, 1]


def test_a_slot_in_which_nobody_looked_is_like_the_one_before():
    told = story(past=Past())
    seen(told, 0.02, price=0.3, available=4)
    seen(told, 1.02, price=0.6, available=1)
    late = seen(told, 4.02, price=0.5, available=3)
    assert late.available.tolist() == [4, 1, 1, 1, 3]
    assert late.spot_price.tolist() == [0.3, 0.6, 0.6, 0.6, 0.5]


def test_slots_before_the_first_look_are_like_it():
    told = story()
    assert seen(told, 2.02, price=0.5, available=2).available.tolist() == [1, 2, 3, 2, 2, 2]
    assert seen(told, 3.02, price=0.5, available=0).available.tolist() == [1, 2, 3, 2, 2, 2, 0]


def test_a_second_look_in_the_same_slot_replaces_the_first():
    told = story(past=Past())
    seen(told, 0.02, available=4)
    assert seen(told, 0.5, available=2).available.tolist() == [2]
    assert seen(told, 1.02, available=1).available.tolist() == [2, 1]


def test_spot_above_the_jobs_own_price_was_never_there():
    """1.0 per hour is 0.5 per slot: what costs just that may be had."""
    told = story(max_price=1.0, past=Past((0.2, 0.7, 0.5), (1, 2, 3)))
    assert highest_price(told.state.submitted) == pytest.approx(1.0 * SLOT_S / 3600)
    seen(told, 0.02, price=0.3, available=4)
    seen(told, 1.02, price=0.55, available=4)
    shown = seen(told, 2.02, price=0.6, available=2)
    assert shown.available.tolist() == [1, 0, 3, 4, 0, 0]
    assert shown.spot_price.tolist() == [0.2, 0.7, 0.5, 0.3, 0.55, 0.6]


def test_what_was_shown_before_does_not_change():
    told = story()
    early = seen(told, 0.02, available=4)
    before = early.available.tolist()
    seen(told, 1.02, available=0)
    assert early.available.tolist() == before


def test_a_journal_read_back_shows_the_same():
    told = story(policy="rubato", max_price=1.0)
    decided = [told.slot(at + 0.02, price=0.1 + 0.2 * at, available=4 - at) for at in range(3)]
    again = Engine("job", policy_named)
    wire = [
        msgspec.json.decode(msgspec.json.encode(event), type=Event)
        for event in told.events[:-1]  # up to the last observation
    ]
    for event in wire:
        again.handle(event)
    assert wire == told.events[:-1]
    assert again.decide(wire[-1]) == decided[-1]
    assert "expected value $" in decided[-1].reason


def test_a_submission_from_before_there_was_a_past_is_still_read():
    bodies = [msgspec.json.decode(line)["body"] for line in JOURNAL.read_bytes().splitlines()]
    old = [body for body in bodies if body["type"] == "submitted"]
    assert old
    assert all("past" not in body for body in old)
    for body in old:
        event = msgspec.json.decode(msgspec.json.encode(body), type=Event)
        assert isinstance(event, Submitted)
        assert event.past == Past()


def test_a_job_of_an_old_journal_is_shown_what_was_observed_since():
    told = story()
    wire = msgspec.json.decode(msgspec.json.encode(told.events[0]))
    del wire["past"]
    engine = Engine("job", policy_named)
    engine.handle(msgspec.json.decode(msgspec.json.encode(wire), type=Event))
    observed = told.observed(0.02, available=2)
    assert observed.at == moment(0.02)
    engine.handle(observed)
    assert engine.view(observed).seen.available.tolist() == [2]
