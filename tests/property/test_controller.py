"""A whole controller among random markets, jobs, requests, faults and deaths."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from duetune.engine.engine import Engine
from duetune.registry.policies import policy_named
from support.fuzz import Adventure, Drawn


@given(data=st.data())
def test_whatever_happens_a_job_ends_once_leaks_nothing_and_accounts_for_every_cent(data):
    adventure = Adventure(Drawn(data))
    adventure.live()
    adventure.check()


@given(data=st.data())
def test_jobs_that_can_succeed_do_however_often_the_controller_dies(data):
    adventure = Adventure(Drawn(data), kills=6, easy=True)
    adventure.live()
    adventure.check()


@settings(max_examples=20)
@given(data=st.data())
def test_the_journal_alone_gives_the_state(data):
    """Folding twice, and from any place on, comes to the same."""
    adventure = Adventure(Drawn(data), kills=1, troubles=3)
    adventure.live()
    for name in adventure.names:
        story = adventure.room.journal.read(name)
        whole = Engine(name, policy_named)
        for recorded in story:
            whole.handle(recorded.event)
        assert whole.state == adventure.room.state(name)
        assert [recorded.position for recorded in story] == list(range(1, len(story) + 1))
        half = adventure.room.journal.read(name, after=len(story) // 2)
        assert half == story[len(story) // 2 :]
