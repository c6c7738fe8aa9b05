"""A whole controller in memory: fleet, market, training, journal."""

from __future__ import annotations

import itertools
import operator

from duetune.control import Books, Controller, World
from duetune.control.crash_points import Crash, CrashPlan, JournalPoints, LearningPoints, planned
from duetune.core.events import Decided, Ended, Learned, Status, Submitted, UserRequested
from duetune.core.fleet import Task
from duetune.core.job import Job, linear_throughput
from duetune.engine.engine import Engine
from duetune.market.forecast.simple import LastValue
from duetune.registry.policies import policy_named
from duetune.store.memory_journal import MemoryJournal
from duetune.testing import MemoryFleet, market_of
from duetune.testing.memory_fleet import PretendTraining

SLOT_S = 1800.0
AVAILABLE = [3, 3, 1, 0, 2, 4, 4, 4, 0, 1, 4, 4] * 6
PRICES = [0.3, 0.35, 0.5, 0.9, 0.4, 0.2, 0.2, 0.25, 0.8, 0.5, 0.3, 0.3] * 6


class MemoryInbox:
    """Taken with the journal's append, as the store does it."""

    def __init__(self, journal):
        self._journal = journal
        self._asked = {}
        self._numbers = itertools.count(1)
        self._taken = set()
        self._read = {}

    def ask(self, job, request):
        number = next(self._numbers)
        self._asked[number] = (job, request)
        return number

    def pending(self):
        for stream in self._journal.streams():
            for recorded in self._journal.read(stream, after=self._read.get(stream, 0)):
                self._read[stream] = recorded.position
                if isinstance(recorded.event, UserRequested):
                    self._taken.add(recorded.event.wish_id)
        return [
            (number, job, request)
            for number, (job, request) in self._asked.items()
            if number not in self._taken
        ]

    def taken(self, ids):
        self._taken.update(ids)


class DatedTraining(PretendTraining):
    """As real workers: the last word is said once, and stays."""

    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        self._last = {}

    def read(self, job):
        if job not in self._last:
            report = super().read(job)
            if report is None or not report[0].phase.final:
                return report
            self._last[job] = report
        return self._last[job]


class Lessons:
    """Learning that only remembers of which jobs; ``calls`` counts how often each was offered."""

    def __init__(self):
        self.calls = {}

    def learn(self, job, story):
        assert isinstance(story[-1].event, Ended)
        self.calls[job] = self.calls.get(job, 0) + 1
        return Learned(story[-1].event.at, "pool", ("ahap",), (story[-1].event.value,))


class Room:
    """``store`` instead of memory: the journal and the requests of a database."""

    def __init__(
        self,
        trace=None,
        *,
        settings=None,
        pace=1.0,
        learning=None,
        store=None,
        poll_s=60.0,
        queue=None,
    ):
        trace = trace if trace is not None else market_of(PRICES, AVAILABLE)
        self.fleet = MemoryFleet(trace, settings) if settings else MemoryFleet(trace)
        self.clock = self.fleet.clock
        self.training = DatedTraining(self.fleet, slot_s=SLOT_S, pace=pace)
        self.journal = store.journal if store else MemoryJournal()
        self.requests = store.requests if store else MemoryInbox(self.journal)
        self.learning = learning
        self.poll_s = poll_s
        self.queue = queue
        self.plan = CrashPlan()
        self.revived = 0
        self.budgets = {}
        self.began = self.clock.now()
        self.script = []
        self._readers = {}
        self.fleet_wire = self.fleet
        self.controller = self.fresh()

    def fresh(self, *, fleet=None, journal=None, plan=None):
        """A controller as after a restart: nothing in memory. It dies as ``plan`` says."""
        self.plan = plan or CrashPlan()
        world, books = planned(
            World(
                fleet or self.fleet_wire,
                self.fleet,
                self.clock,
                self.training,
                revive=self._revive,
            ),
            Books(journal or self.journal, self.requests, self.active),
            self.plan,
        )
        return Controller(
            world,
            books,
            policy_named=policy_named,
            forecaster=LastValue,
            learning=self.learning and LearningPoints(self.learning, self.plan),
            queue=None if self.queue is None else lambda: self.queue,
            poll_wall_s=self.poll_s,
        )

    def restart(self, plan=None):
        self.controller = self.fresh(plan=plan)

    def active(self):
        """Not over, or nothing learnt yet."""
        last = {
            name: self.journal.read(name, after=self.journal.length(name) - 1)[-1].event
            for name in self.journal.streams()
        }
        done = Learned if self.learning else Ended | Learned
        return [name for name, event in last.items() if not isinstance(event, done)]

    def submission(
        self,
        *,
        policy="ahap",
        steps=60,
        stop_at=None,
        max_price=None,
        origin=None,
        priority=0,
        project="",
        gpus=1,
        **terms,
    ):
        job = Job(
            **{
                "work": float(steps),
                "deadline": 12,
                "value": 60.0,
                "throughput": linear_throughput(4, slope=3.0),
                **terms,
            }
        )
        return Submitted(
            at=self.clock.now(),
            spec="{}",
            job=job,
            task=Task(folder="folder", module="training", gpus=gpus),
            policy=policy,
            origin=self.clock.now() if origin is None else origin,
            slot_s=SLOT_S,
            stop_at=stop_at,
            max_price=max_price,
            priority=priority,
            project=project,
        )

    def submit(self, name="job", *, plan=None, **options):
        """By another process, which may die of ``plan``; asked again, it submits once."""
        event = self.submission(**options)
        journal = JournalPoints(self.journal, plan) if plan else self.journal
        if self.journal.length(name) == 0:
            journal.append(name, [event], expected=0)
        self.training.add(name, event.job, round(event.job.work))
        self.budgets[name] = [event.job.budget]
        return event.job

    def ask(self, request, name="job"):
        return self.requests.ask(name, request)

    def engine(self, name="job"):
        """One that knows the job by its journal alone; it is kept, and reads what is new."""
        engine = self._readers.setdefault(name, Engine(name, policy_named))
        for recorded in self.journal.read(name, after=engine.position):
            engine.handle(recorded.event)
            engine.validate()
        return engine

    def state(self, name="job"):
        return self.engine(name).state

    def status(self, name="job"):
        return self.state(name).status

    def at(self, slot, act):
        """``act`` happens once, that many slots after the beginning, controller or not."""
        self.script.append((self.began + slot * SLOT_S, act))
        self.script.sort(key=operator.itemgetter(0))

    def wait(self, moment):
        """Time passes, and what is to happen in it does."""
        while self.script and self.script[0][0] <= moment:
            due, act = self.script.pop(0)
            self.clock.wait_until(due)
            act()
        self.clock.wait_until(moment)

    def run(self, *, slots=30, each=None):
        end = self.clock.now() + slots * SLOT_S
        while self.clock.now() < end and (self.controller.turn() or self.script):
            if each is not None:
                each()
            self.wait(self.controller.next_turn(self.clock.now()))

    def dead(self, slots):
        """No controller for so long."""
        self.wait(self.clock.now() + slots * SLOT_S)
        self.restart()

    def survive(self, *plans, slots=60):
        """To the end, with a fresh controller after every death; how often it died."""
        deaths = 0
        self.restart(plans[0] if plans else None)
        while True:
            try:
                self.run(slots=slots)
            except Crash:
                deaths += 1
                self.restart(plans[deaths] if deaths < len(plans) else None)
            else:
                return deaths

    def events(self, name="job", kind=object):
        return [r.event for r in self.journal.read(name) if isinstance(r.event, kind)]

    def decisions(self, name="job"):
        return self.events(name, Decided)

    def ended(self, name="job"):
        (event,) = self.events(name, Ended)
        return event

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

    def _revive(self):
        self.revived += 1


__all__ = ["SLOT_S", "Lessons", "MemoryInbox", "Room", "Status"]
