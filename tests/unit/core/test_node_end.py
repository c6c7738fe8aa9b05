"""Why a node ended: told by fleets of today, and found in journals of before."""

from __future__ import annotations

import msgspec
import pytest

from duetune.core.fleet import Node, NodeEnd, NodeKind, NodeState


def node(state=NodeState.RELEASED, **facts):
    return Node("n", "job", NodeKind.SPOT, state, 0.0, **facts)


def written(**facts):
    """As a journal of before ``end`` has it."""
    body = msgspec.to_builtins(node(**facts))
    del body["end"]
    return msgspec.convert(body, Node)


@pytest.mark.parametrize("end", NodeEnd)
def test_an_old_journal_tells_the_end_by_its_words(end):
    assert written(reason=end.value).end is end


@pytest.mark.parametrize(
    ("reason", "end"),
    [
        ("capacity (2 of 2 on_demand GPUs are held)", NodeEnd.CAPACITY),
        ("price (0.8 is above 0.7 dollars per hour)", NodeEnd.PRICE),
        ("limit, left after notice", NodeEnd.LIMIT),
        ("taken by the market", None),
        ("finished early", None),
        ("", None),
    ],
)
def test_an_old_journal_with_more_words_or_others_is_readable(reason, end):
    found = written(reason=reason)
    assert (found.end, found.reason) == (end, reason)


def test_a_fleet_may_say_it_in_its_own_words():
    said = node(end=NodeEnd.FINISHED, reason="container exited")
    assert msgspec.json.decode(msgspec.json.encode(said), type=Node) == said


def test_a_node_that_lives_has_no_end():
    assert node(NodeState.RUNNING, reason="capacity").end is None
