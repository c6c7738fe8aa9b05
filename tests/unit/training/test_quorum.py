"""Who is in a quorum, and when it is answered."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from duetune.training.group_times import QuorumTimes
from duetune.training.membership import Member
from duetune.training.quorum import Quorum
from support.patience import PATIENCE_S, until


def member(name, **fields):
    return Member(id=name, address=f"tcp://{name}", **({"step": 0} | fields))


def quorum(**fields):
    times = QuorumTimes(**{"heartbeat_s": PATIENCE_S, "join_s": PATIENCE_S} | fields)
    return Quorum(times, lambda one: one)


@pytest.fixture
def background():
    with ThreadPoolExecutor() as pool:
        yield pool.submit


def names(members):
    return [one.id for one in members]


def test_a_member_alone_is_answered_at_once():
    assert names(quorum().ask(member("a"))) == ["a"]


def test_all_that_live_are_waited_for_and_told_the_same(background):
    one = quorum()
    one.beat("b")
    first = background(one.ask, member("a"))
    until(lambda: "a" in one._asked)
    assert not first.done()
    assert one.ask(member("b")) == first.result()
    assert names(first.result()) == ["a", "b"]


def test_a_member_whose_connection_ends_is_not_waited_for(background):
    one = quorum()
    one.beat("b")
    first = background(one.ask, member("a"))
    until(lambda: "a" in one._asked)
    one.gone("b")
    assert names(first.result(PATIENCE_S)) == ["a"]


def test_a_member_without_heartbeats_is_not_waited_for():
    one = quorum(heartbeat_s=0.2)
    one.beat("b")
    time.sleep(0.3)
    assert names(one.ask(member("a"))) == ["a"]


def test_who_never_asks_is_waited_for_only_so_long_and_never_outvoted_by_fewer(background):
    one = quorum(join_s=0.05)
    one.beat("busy")
    first = background(one.ask, member("a"))
    until(lambda: "a" in one._asked)
    assert not first.done(), "one of two is no majority"
    assert names(one.ask(member("b"))) == ["a", "b"]
    assert names(first.result()) == ["a", "b"]


def test_a_question_that_is_asked_again_is_answered_once(background):
    one = quorum()
    one.beat("b")
    lost = background(one.ask, member("a", step=1))
    until(lambda: "a" in one._asked)
    again = background(one.ask, member("a", step=1))
    assert lost.result(PATIENCE_S) == ()
    assert names(one.ask(member("b"))) == names(again.result()) == ["a", "b"]


def test_a_coordinator_that_replaces_another_waits_for_members_to_find_it(background):
    one = Quorum(QuorumTimes(), lambda each: each, settle_s=PATIENCE_S)
    first = background(one.ask, member("newcomer"))
    until(lambda: "newcomer" in one._asked)
    second = background(one.ask, member("veteran"))
    until(lambda: "veteran" in one._asked)
    assert not first.done()
    one._opens_at = 0.0
    assert names(first.result()) == names(second.result()) == ["newcomer", "veteran"]
