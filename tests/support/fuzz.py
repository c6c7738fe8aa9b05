"""Rooms in which anything may happen: markets, jobs, requests, faults and deaths drawn by chance.

Where chance comes from is for the caller to say: a seed (the soak) or Hypothesis (the properties).
"""

from __future__ import annotations

import contextlib

from hypothesis import strategies as st

from duetune.control.crash_points import CRASH_POINTS, WRITES, Crash
from duetune.core.events import Amend, Cancel, Pause, Resume, UserRequested
from duetune.core.fleet import Launch, Limit, NodeKind, Task
from duetune.core.job import linear_throughput
from duetune.errors import FleetError, StaleController
from duetune.fleets.embedded.cloud_settings import FleetFaults, FleetSettings
from duetune.testing import market_of
from support.harness import SLOT_S, Lessons, Room, Status
from support.invariants import check_over, check_turn

POLICIES = (
    "ahap",
    "ahanp",
    "maximal_spot",
    "on_demand",
    "uniform_progress",
    "guarded:maximal_spot",
)
HORIZON = 16
WRITING = [point for point in CRASH_POINTS if point.partition(":")[0] in WRITES]
REASONS = (
    "finished",
    "cancelled",
    "the hard deadline has passed",
    "max_duration has passed",
    "no step done in",
    "the training command cannot run",
)


class Seeded:
    """Chance from a numpy generator."""

    def __init__(self, random):
        self._random = random

    def whole(self, low, high):
        return int(self._random.integers(low, high + 1))

    def pick(self, options):
        return options[self.whole(0, len(options) - 1)]

    def happens(self, percent):
        return self.whole(1, 100) <= percent


class Drawn:
    """Chance as Hypothesis has it, so that what fails is made small."""

    def __init__(self, data):
        self._data = data

    def whole(self, low, high):
        return self._data.draw(st.integers(low, high))

    def pick(self, options):
        return self._data.draw(st.sampled_from(options))

    def happens(self, percent):
        return self._data.draw(st.integers(1, 100)) <= percent


class Wire:
    """A fleet behind a network: what is sent may be held back, and come when nobody expects it."""

    def __init__(self, fleet):
        self._fleet = fleet
        self.hold = False
        self.held = []

    def apply(self, commands):
        if self.hold:
            self.hold = False
            # A limit that comes late would be the last word; the fleet cannot know better.
            self.held += [command for command in commands if not isinstance(command, Limit)]
            raise FleetError("no answer in time")
        self._fleet.apply(commands)

    def deliver(self):
        late, self.held = self.held, []
        self._fleet.apply(late)

    def observe(self, job):
        return self._fleet.observe(job)


class Adventure:
    """A room, what will happen in it, and what came of it. ``deaths`` counts dead controllers.

    ``easy``: jobs that must succeed, however often their controller is killed.
    """

    def __init__(self, chance, *, kills=3, troubles=6, jobs=2, easy=False):
        self.chance = chance
        self.easy = easy
        self.deaths = 0
        self.strangers = set()
        self.zombies = []
        self.asked = {}
        self.room = Room(
            self._market(),
            settings=self._settings(),
            pace=1.0 if easy else chance.pick([1.0, 1.0, 1.0, 0.5, 1.3]),
            learning=Lessons() if chance.happens(50) else None,
            poll_s=chance.pick([90.0, 300.0, 3000.0]),
        )
        self.wire = self.room.fleet_wire = Wire(self.room.fleet)
        self.room.restart()
        for number in range(1, 1 + chance.whole(1, jobs)):
            self._job(f"job{number}")
        for _ in range(chance.whole(0, kills)):
            self._kill()
        for _ in range(chance.whole(0, troubles)):
            trouble = chance.pick(self._mild() if easy else [*self._mild(), *self._harsh()])
            self.room.at(self._moment(), trouble)
        self.room.at(HORIZON + 1, self._heal)

    @property
    def names(self):
        return self.room.journal.streams()

    def live(self, *, slots=120):
        """To the end of every job, or as many slots as no job can last."""
        room = self.room
        end = room.clock.now() + slots * SLOT_S
        while room.clock.now() < end:
            revived = room.revived
            try:
                busy = room.controller.turn()
            except (Crash, StaleController) as death:
                self.deaths += isinstance(death, Crash)
                room.restart()
                continue
            if revived == room.revived:
                for name in self.names:
                    self._check_turn(name)
            if not busy and not room.script:
                return
            room.wait(room.controller.next_turn(room.clock.now()))

    def check(self):
        for name in self.names:
            check_over(self.room, name, strangers=self.strangers)
            self._check_reason(name)
        assert self.room.requests.pending() == []

    def _check_turn(self, name):
        if not self.strangers and not self.wire.held and not self.zombies:
            check_turn(self.room, name)

    def _check_reason(self, name):
        state = self.room.state(name)
        assert not self.easy or state.status is Status.SUCCEEDED, state.reason
        assert state.reason.startswith(REASONS), state.reason
        done = state.progress.step >= state.progress.total_steps > 0
        if state.status is Status.SUCCEEDED:
            assert done
        if state.status is Status.CANCELLED:
            assert any(isinstance(e.wish, Cancel) for e in self.room.events(name, UserRequested))
        requests = [event.wish_id for event in self.room.events(name, UserRequested)]
        assert set(requests) <= self.asked.get(name, set())

    def _market(self):
        chance = self.chance
        prices, available = [], []
        while len(prices) < HORIZON:
            length = chance.whole(1, 5)
            prices += [chance.whole(1, 26) / 20] * length
            available += [chance.pick([0, 0, 1, 2, 3, 4, 6])] * length
        return market_of(prices, available)

    def _settings(self):
        chance = self.chance
        return FleetSettings(
            grant_delay_s=chance.pick([0.0, 0.0, 60.0, 300.0, *([] if self.easy else [1500.0])]),
            notice_s=chance.pick([0.0, 120.0, 900.0]),
            silent_share=chance.pick([0.0, 0.5, 1.0]),
            on_demand_capacity=64 if self.easy else chance.pick([64, 64, 64, 3, 1]),
            max_price=None if self.easy else chance.pick([None, None, 1.5]),
            seed=chance.whole(0, 9),
            wrap=True,
            preload="",
            faults=FleetFaults(no_notice=chance.happens(10)),
        )

    def _job(self, name):
        chance, room = self.chance, self.room
        gpus = chance.whole(1, 5)
        deadline = chance.whole(6, 10) if self.easy else chance.whole(1, 10)
        load = chance.pick([2, 3, 4] if self.easy else [1, 2, 3, 4, 5, 6, 7, 9, 12]) / 10
        options = {
            "policy": chance.pick(POLICIES),
            "steps": max(1, round(3 * gpus * deadline * load)),
            "deadline": deadline,
            "throughput": linear_throughput(gpus, slope=3.0),
            "min_gpus": chance.pick([1, 1, 1, min(2, gpus), gpus]),
            "max_price": chance.pick([None, None, 1.0]),
        }
        lasts = None
        if self.easy:
            options |= {"hard_deadline_factor": 2.0, "value": 500.0, "budget": 200.0}
        else:
            options |= {
                "hard_deadline_factor": chance.pick([1.0, 1.5, 2.0]),
                "value": float(chance.pick([0, 5, 60, 100])),
                "budget": chance.pick([None, None, 200.0, chance.whole(0, 40) / 2]),
            }
            lasts = chance.pick([None, None, None, chance.whole(1, 300) / 20])

        def submit():
            stop_at = None if lasts is None else room.clock.now() + lasts * SLOT_S
            back = chance.pick([0.0, 0.0, 0.4]) * SLOT_S
            room.submit(name, stop_at=stop_at, origin=room.clock.now() - back, **options)

        room.at(chance.pick([0.0, 0.0, 0.02, chance.whole(0, 40) / 20]), submit)

    def _moment(self):
        return self.chance.whole(0, HORIZON * 50) / 50

    def _kill(self):
        chance, room = self.chance, self.room
        point = chance.pick(WRITING if chance.happens(60) else CRASH_POINTS)
        passage = chance.whole(1, 4)
        gone = chance.pick([0.0, 0.0, 0.1, 0.7, *([] if self.easy else [3.3])])

        def aim():
            plan = room.plan
            plan.point, plan.passage = point, plan.passages[point] + passage

        room.at(self._moment(), aim)
        if gone:
            room.at(self._moment(), lambda: self._die(gone))

    def _die(self, slots):
        """Killed while it waited."""
        self.deaths += 1
        self.room.restart()
        self.room.clock.advance(slots * SLOT_S)

    def _mild(self):
        return [
            self._lose_reply,
            self._lose_request,
            self._hold_back,
            self._lose_node,
            self._stranger,
            self._zombie,
            self._second_controller,
        ]

    def _harsh(self):
        return [
            self._silence,
            self._refuse,
            self._never_grant,
            self._lose_all,
            self._end_worker,
            self._setback,
            self._request,
            self._request,
            self._request,
            self._request,
        ]

    def _lose_reply(self):
        self.room.fleet.lose_replies(self.chance.whole(1, 3))

    def _lose_request(self):
        self.room.fleet.lose_requests(self.chance.whole(1, 3))

    def _hold_back(self):
        self.wire.hold = True
        self.room.at(self._later(), self._deliver)

    def _deliver(self):
        self.wire.hold = False
        if self.wire.held:
            with contextlib.suppress(FleetError):
                self.wire.deliver()

    def _silence(self):
        self.room.fleet.unreachable = True
        self.room.at(self._later(), lambda: setattr(self.room.fleet, "unreachable", False))

    def _refuse(self):
        self.room.fleet.refusing = True
        self.room.at(self._later(), lambda: setattr(self.room.fleet, "refusing", False))

    def _never_grant(self):
        self.room.fleet.never_grant()
        self.room.at(self._later(), lambda: self.room.fleet.never_grant(False))

    def _lose_node(self):
        name = self._some_job()
        running = self.room.fleet.running(name) if name else []
        if running:
            notice = self.chance.pick([None, 120.0])
            self.room.fleet.lose(self.chance.pick(running), notice_s=notice)

    def _lose_all(self):
        for name in self.names:
            for node in self.room.fleet.alive(name):
                self.room.fleet.lose(node)

    def _end_worker(self):
        name = self._some_job()
        running = self.room.fleet.running(name) if name else []
        if running:
            self.room.fleet.finish(self.chance.pick(running), self.chance.pick([0, 75, 75, 78]))

    def _stranger(self):
        name = self._some_job()
        if name and not self.room.engine(name).is_over():
            node = f"stranger-{len(self.strangers)}"
            launch = Launch(node, name, NodeKind.ON_DEMAND, 0, Task(folder="folder"))
            self.strangers.add(node)
            with contextlib.suppress(FleetError):
                self.room.fleet.apply([launch])

    def _setback(self):
        """Training has to go back to a checkpoint."""
        name = self._some_job()
        if name:
            done = self.room.training._done
            done[name] = max(0.0, done[name] - self.chance.whole(0, 10))

    def _zombie(self):
        """A controller that slept while another took over, and now wakes up."""
        sleeper = self.room.controller
        self.zombies.append(sleeper)
        self.room.restart()
        self.room.at(self._later(), lambda: self._wake(sleeper))

    @staticmethod
    def _wake(sleeper):
        with contextlib.suppress(Crash, StaleController, FleetError):
            sleeper.turn()

    def _second_controller(self):
        """Both think they are the only one; whoever is late with its next append stops."""
        first, plan = self.room.controller, self.room.plan
        second = self.room.fresh()
        with contextlib.suppress(StaleController, FleetError):
            second.turn()
        self.room.controller, self.room.plan = first, plan
        self.zombies.append(second)

    def _request(self):
        name = self._some_job()
        if name is None:
            return
        chance, room = self.chance, self.room
        request = chance.pick([Pause(), Resume(), Resume(), Cancel(), None, None, None])
        if request is None:
            moment = room.clock.now() + chance.whole(-40, 200) / 20 * SLOT_S
            budget = chance.pick([None, chance.whole(0, 60) / 2])
            request = Amend(deadline=chance.pick([None, moment]), budget=budget)
            if budget is not None:
                room.budgets[name].append(budget)
        self.asked.setdefault(name, set()).add(room.ask(request, name))

    def _some_job(self):
        return self.chance.pick(self.names) if self.names else None

    def _later(self):
        now = (self.room.clock.now() - self.room.began) / SLOT_S
        return min(now + self.chance.pick([0.05, 0.3, 1.2, 3.0]), HORIZON + 0.5)

    def _heal(self):
        fleet = self.room.fleet
        fleet.unreachable = fleet.refusing = False
        fleet.never_grant(False)
        self._deliver()
        for name in self.names:
            if self.room.status(name) is Status.PAUSED:
                self.asked.setdefault(name, set()).add(self.room.ask(Resume(), name))


__all__ = ["Adventure", "Seeded", "Wire"]
