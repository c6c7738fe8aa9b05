"""Which crashes of a worker the agent holds against the node and not against the job."""

from __future__ import annotations

import signal
import socket
import time

import pytest

from duetune.fleets.embedded import agent
from duetune.fleets.embedded.agent import MOST_CRASHES, MOST_MISHAPS, Agent
from duetune.fleets.embedded.node_assignment import Assignment, Channel

NO_SPACE = "cp: cannot write: No space left on device\n"


@pytest.fixture
def made(tmp_path):
    ours, theirs = socket.socketpair()
    log = tmp_path / "log"
    log.write_text(NO_SPACE)  # of an earlier start, so it says nothing about this one
    assignment = Assignment(name="node", folder=str(tmp_path), log=str(log), environment={})
    agent = Agent(Channel(ours), assignment, leaving=False)
    agent._log_size, agent._started = log.stat().st_size, time.monotonic()
    yield agent, log
    ours.close()
    theirs.close()


def until_over(agent, code):
    """How many crashes it takes until the agent ends its node, and its verdict."""
    for crashes in range(1, 20):
        if agent._is_over(code):
            return crashes, agent._verdict
    return None


@pytest.mark.parametrize("code", [-signal.SIGKILL, 137])
def test_a_worker_that_is_killed_has_a_bad_node(made, code):
    assert until_over(made[0], code) == (MOST_MISHAPS, agent.BAD_NODE)


def test_a_worker_that_exits_by_itself_is_hopeless_after_some_tries(made):
    assert until_over(made[0], 1) == (MOST_CRASHES, agent.HOPELESS)


def test_a_worker_that_says_the_disk_is_full_has_a_bad_node(made):
    made[1].write_text(NO_SPACE * 2)
    assert until_over(made[0], 1) == (MOST_MISHAPS, agent.BAD_NODE)


def test_a_full_disk_is_seen_where_nothing_could_be_written_about_it(made, monkeypatch):
    monkeypatch.setattr(agent, "LEAST_FREE", 1 << 80)
    assert until_over(made[0], 1) == (MOST_MISHAPS, agent.BAD_NODE)


def test_kills_do_not_count_towards_what_makes_a_command_hopeless(made):
    node, _ = made
    codes = [1, 1, -9, 1, -9, 1, 1]
    assert [node._is_over(code) for code in codes] == [False] * 6 + [True]
    assert node._verdict == agent.HOPELESS
