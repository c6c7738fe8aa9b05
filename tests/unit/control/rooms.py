"""A whole controller in memory: fleet, market, training, journal."""

from __future__ import annotations

import itertools

from duetune import bootstrap
from duetune.control import Books, Controller, World
from duetune.core.events import Decided, Status, Submitted
from duetune.core.fleet import Task
from duetune.core.job import Job, linear_throughput
from duetune.engine import Engine
from duetune.forecast.simple import LastValue
from duetune.store.memory import MemoryJournal
from duetune.testing import MemoryFleet, market_of
from duetune.testing.training import PretendTraining

SLOT_S = 1800.0
AVAILABLE = [3, 3, 1, 0, 2, 4, 4, 4, 0, 1, 4, 4] * 6
PRICES = [0.3, 0.35, 0.5, 0.9, 0.4, 0.2, 0.2, 0.25, 0.8, 0.5, 0.3, 0.3] * 6


class MemoryWishes:
    """Taken with the journal's append, as the store does it."""

    def __init__(self, journal):
        self._journal = journal
        self._asked = {}
        self._numbers = itertools.count(1)
        self._taken = set()

    def ask(self, job, wish):
        number = next(self._numbers)
        self._asked[number] = (job, wish)
        return number

    def pending(self):
        in_journal = {
            recorded.event.wish_id
            for stream in self._journal.streams()
            for recorded in self._journal.read(stream)
            if type(recorded.event).__name__ == "Wished"
        }
        return [
            (number, job, wish)
            for number, (job, wish) in self._asked.items()
            if number not in in_journal | self._taken
        ]

    def taken(self, ids):
        self._taken.update(ids)


class Room:
    def __init__(self, trace=None, *, settings=None, pace=1.0, learning=None):
        trace = trace if trace is not None else market_of(PRICES, AVAILABLE)
        self.fleet = MemoryFleet(trace, settings) if settings else MemoryFleet(trace)
        self.clock = self.fleet.clock
        self.training = PretendTraining(self.fleet, slot_s=SLOT_S, pace=pace)
        self.journal = MemoryJournal()
        self.wishes = MemoryWishes(self.journal)
        self.learning = learning
        self.controller = self.fresh()

    def fresh(self, *, fleet=None, journal=None):
        """A controller as after a restart: nothing in memory."""
        world = World(fleet or self.fleet, self.fleet, self.clock, self.training)
        return Controller(
            world,
            Books(journal or self.journal, self.wishes, self.active),
            policy_named=bootstrap.policy_named,
            forecaster=LastValue,
            learning=self.learning,
            poll_wall_s=60.0,
        )

    def active(self):
        return [name for name in self.journal.streams() if not self.engine(name).is_over()]

    def submit(self, name="job", *, policy="ahap", steps=60, stop_at=None, max_price=None, **terms):
        job = Job(
            **{
                "work": float(steps),
                "deadline": 12,
                "value": 60.0,
                "throughput": linear_throughput(4, slope=3.0),
                **terms,
            }
        )
        self.training.add(name, job, steps)
        event = Submitted(
            at=self.clock.now(),
            spec="{}",
            job=job,
            task=Task(folder=name, module="training"),
            policy=policy,
            origin=self.clock.now(),
            slot_s=SLOT_S,
            stop_at=stop_at,
            max_price=max_price,
        )
        self.journal.append(name, [event], expected=0)
        return job

    def engine(self, name="job"):
        engine = Engine(name, bootstrap.policy_named)
        for recorded in self.journal.read(name):
            engine.handle(recorded.event)
            engine.validate()
        return engine

    def status(self, name="job"):
        return self.engine(name).state.status

    def run(self, *, slots=30, each=None):
        end = self.clock.now() + slots * SLOT_S
        while self.clock.now() < end and self.controller.turn():
            if each is not None:
                each()
            self.clock.wait_until(self.controller.next_turn(self.clock.now()))

    def decisions(self, name="job"):
        return [r.event for r in self.journal.read(name) if isinstance(r.event, Decided)]

    def bill(self, name="job"):
        return sum(node.billed for node in self.fleet.observe(name).nodes)

    def leaked(self):
        """Nodes that live although their job is over."""
        return [
            node
            for name in self.journal.streams()
            if self.engine(name).is_over()
            for node in self.fleet.alive(name)
        ]


__all__ = ["SLOT_S", "MemoryWishes", "Room", "Status"]
