"""What must be true of every job that is over, whatever was done to its controller."""

from __future__ import annotations

import itertools
import math

from duetune.core.events import Decided, Ended, Learned, Requested, UserRequested
from duetune.registry.policies import policy_named
from duetune.simulate.journal_replay import redecided


def accounted(room, name="job"):
    """The journal's cost is the fleet's bill, to the last bit."""
    bill = math.fsum(node.billed for node in room.fleet.observe(name).nodes)
    return room.ended(name).cost == bill == room.state(name).spent


def most_alive(room, name="job", *, strangers=()):
    """The largest number of nodes that were requested or running at one time."""
    changes = []
    for node in room.fleet.observe(name).nodes:
        if node.id not in strangers:
            end = math.inf if node.ended_at is None else node.ended_at
            changes += [(node.requested_at, 1), (end, -1)]
    # What ends when another begins makes room for it.
    return max(itertools.accumulate(change for _, change in sorted(changes)), default=0)


def check_story(room, name="job", *, strangers=()):
    """Everything that holds at any time, over or not."""
    story = room.journal.read(name)
    events = [recorded.event for recorded in story]
    requests = [event for event in events if isinstance(event, Requested)]
    launched = [launch.node for event in requests for launch in event.launches]
    assert len(launched) == len(set(launched)), "a node id was given twice"
    epochs = [event.launches[0].epoch for event in requests if event.launches]
    assert epochs == sorted(set(epochs)), "epochs must grow"
    user_requests = [event.wish_id for event in events if isinstance(event, UserRequested)]
    assert len(user_requests) == len(set(user_requests)), "a user request was journalled twice"
    known = {node.id for node in room.fleet.observe(name).nodes}
    assert known <= {*launched, *strangers}, "a node was launched before it was written down"
    submitted = events[0].job
    assert most_alive(room, name, strangers=strangers) <= submitted.max_gpus
    again = redecided(story, policy_named)
    assert all(each.same for each in again), [each for each in again if not each.same]
    assert len(again) == sum(isinstance(event, Decided) for event in events)
    budgets = room.budgets[name]
    if None not in budgets:
        bill = math.fsum(node.billed for node in room.fleet.observe(name).nodes)
        assert bill <= max(budgets), f"{bill} was billed of a budget of {budgets}"


def check_over(room, name="job", *, strangers=()):
    """The job is over, once, nothing is left of it, and every cent is accounted for."""
    check_story(room, name, strangers=strangers)
    events = room.events(name)
    ends = [place for place, event in enumerate(events) if isinstance(event, Ended)]
    assert len(ends) == 1, f"ended {len(ends)} times"
    lessons = sum(isinstance(event, Learned) for event in events)
    assert lessons == (1 if room.learning else 0)
    assert len(events) == ends[0] + 1 + lessons, "something happened after the end"
    assert room.fleet.alive(name) == [], "leaked"
    assert accounted(room, name), (room.ended(name).cost, room.bill(name))


def check_turn(room, name="job"):
    """After a turn that met no failure: what lives is what is wanted, no more."""
    state = room.state(name)
    alive = {node.id for node in state.alive()}
    assert set(room.fleet.alive(name)) <= alive
    engine = room.controller._engines.get(name)
    if engine is not None:
        assert engine.state == state, "memory and journal differ"
