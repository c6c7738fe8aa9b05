"""Random jobs on a finite fleet, whoever plans and whatever happens: never more than there is."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from duetune.control.queue import Queue
from duetune.core.events import Observed
from duetune.registry.planners import planner_named
from support.fuzz import Adventure, Drawn

PLANNERS = ("fifo", "fifo:backfill", "srt", "edf", "sia", "tutti")
PROJECTS = ("", "vision", "speech")


class Crowd(Adventure):
    """An adventure of several jobs that share a few GPUs."""

    def __init__(self, chance, **options):
        super().__init__(chance, jobs=4, **options)
        self.queue = Queue(
            planner_named(chance.pick(PLANNERS)),
            chance.pick([None, 1, 2, 3, 4, 5]),
            chance.pick([{}, {"vision": 2}, {"vision": 1, "speech": 3}]),
        )
        self.projects, self.members = {}, {}
        self.room.queue = self.queue
        self.room.restart()
        submit, apply = self.room.submit, self.room.fleet.apply

        def submitted(name, **terms):
            self.projects[name] = chance.pick(PROJECTS)
            self.members[name] = gpus = chance.pick([1, 1, 2])
            priority = chance.pick([0, 0, 1, -3])
            return submit(name, priority=priority, project=self.projects[name], gpus=gpus, **terms)

        def applied(commands):
            try:
                apply(commands)
            finally:
                self._check_held()

        self.room.submit, self.room.fleet.apply = submitted, applied

    def _check_held(self):
        """After every single call: who makes room must be gone before the other comes."""
        if self.strangers or self.zombies or self.wire.held:
            return
        alive = {
            each: len(self.room.fleet.alive(each)) * self.members.get(each, 1)
            for each in self.names
        }
        if self.queue.gpus is not None:
            assert sum(alive.values()) <= self.queue.gpus
        for project, most in self.queue.quotas.items():
            used = sum(n for each, n in alive.items() if self.projects[each] == project)
            assert used <= most

    def limited(self):
        return [
            event
            for name in self.names
            for event in self.room.events(name, Observed)
            if event.share is not None
        ]


@settings(max_examples=15)
@given(data=st.data())
def test_all_jobs_together_never_hold_more_than_there_is_and_each_ends(data):
    crowd = Crowd(Drawn(data))
    crowd.live()
    crowd.check()


@settings(max_examples=8)
@given(data=st.data())
def test_shares_are_kept_to_and_only_given_where_they_bind(data):
    crowd = Crowd(Drawn(data), kills=0, troubles=0)
    crowd.live()
    crowd.check()
    for event in crowd.limited():
        assert event.share >= 0
        assert event.share_reason
    for name in crowd.names:
        share = None
        for event in crowd.room.events(name):
            if isinstance(event, Observed):
                share = event.share
            elif share is not None and hasattr(event, "allocation"):
                assert event.allocation.total <= share
