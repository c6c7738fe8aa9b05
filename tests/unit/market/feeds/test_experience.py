"""Availability from our own nodes: grants are lower bounds, refusals and losses are counts."""

from __future__ import annotations

from duetune.core.decision import Allocation
from duetune.core.events import Observed, Reported
from duetune.core.fleet import Node, NodeEnd, NodeKind, NodeState
from duetune.core.market import Slot
from duetune.market.feeds.experience import Experience
from support.harness import Room

HOUR = 3600.0


def node(name, begins, ends=None, *, end=NodeEnd.RELEASED, kind=NodeKind.SPOT, gpus=1):
    state = NodeState.RUNNING
    if ends is not None:
        state = NodeState.LOST if end is NodeEnd.CAPACITY else NodeState.RELEASED
    return Node(
        name,
        "job",
        kind,
        state,
        begins * HOUR,
        begins * HOUR,
        None if ends is None else ends * HOUR,
        end=None if ends is None else end,
        gpus=gpus,
    )


def refused(name, at, end=NodeEnd.CAPACITY):
    return Node(name, "job", NodeKind.SPOT, NodeState.REFUSED, at * HOUR, None, at * HOUR, end=end)


def observed(at, price=1.0):
    return Observed(at * HOUR, 1, 0.0, Allocation(), Slot(price, 9, 3.0), (), (), 0.0)


def counts(*nodes, until=9.0):
    seen = Experience(HOUR)
    seen.add([observed(0.0), Reported(until * HOUR, nodes)])
    return {number: (slot.available, slot.at_least) for number, slot in seen.slots().items()}


def test_what_was_held_was_there_at_least():
    found = counts(node("a", 1.2, 3.5), node("b", 2.5, 2.9, gpus=2))
    assert found == {1: (1, True), 2: (3, True), 3: (1, True)}


def test_where_nothing_was_asked_for_nothing_is_known():
    assert counts() == {}
    assert counts(node("a", 1.0, 1.5), node("b", 5.0, 5.5)) == {1: (1, True), 5: (1, True)}


def test_a_refusal_says_that_there_were_no_more():
    assert counts(node("a", 1.0, 2.5), refused("b", 1.5)) == {1: (1, False), 2: (1, True)}
    assert counts(refused("b", 4.5)) == {4: (0, False)}


def test_a_loss_for_lack_of_capacity_leaves_what_still_runs():
    lost = node("b", 1.0, 2.5, end=NodeEnd.CAPACITY)
    assert counts(node("a", 1.0, 4.0), lost) == {1: (2, True), 2: (1, False), 3: (1, True)}


def test_other_ends_say_nothing_of_capacity():
    assert counts(refused("a", 1.0, NodeEnd.PRICE), refused("b", 2.0, NodeEnd.LIMIT)) == {}
    assert counts(node("a", 1.0, 1.5, end=NodeEnd.DIED)) == {1: (1, True)}
    assert counts(node("a", 1.0, 2.0, kind=NodeKind.ON_DEMAND)) == {}


def test_a_node_that_still_runs_counts_until_the_last_news():
    assert counts(node("a", 1.0), until=3.5) == dict.fromkeys((1, 2, 3), (1, True))


def test_prices_are_those_that_jobs_were_told():
    seen = Experience(HOUR)
    seen.add([observed(1.0, 1.0), observed(3.0, 2.0), Reported(9 * HOUR, (node("a", 0.5, 4.5),))])
    slots = seen.slots()
    assert 0 not in slots, "no price is known yet"
    assert [slots[number].spot_usd_gpu_h for number in (1, 2, 3, 4)] == [1.0, 1.0, 2.0, 2.0]


def test_the_journal_of_a_job_agrees_with_its_market():
    room = Room()
    room.submit()
    room.run()
    room.clock.advance(1800.0)
    seen, trace = Experience(1800.0, room.began), room.fleet.history(1000)
    for stream in room.journal.streams():
        seen.add([each.event for each in room.journal.read(stream)])
    found = seen.slots()
    exact = [number for number, slot in found.items() if not slot.at_least]
    assert exact, "the market takes GPUs away"
    for number, slot in found.items():
        there = trace.slot(number)
        assert slot.spot_usd_gpu_h * trace.slot_hours == there.spot_price
        assert slot.available <= there.available
    assert all(found[number].available == trace.slot(number).available for number in exact)
