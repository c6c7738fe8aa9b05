"""Crash points: named places at which tests kill a controller.

A point is a call to the outside and a moment: ``journal.append:before``, ``fleet.apply:between``
(between two commands of one call), ``fleet.apply:after``. Outside of tests nothing is wrapped.
"""

from __future__ import annotations

import itertools
import os
import signal
from collections import Counter
from enum import StrEnum
from typing import TYPE_CHECKING, Generic, TypeVar

from duetune.control.connections import Learning, Reports, RequestInbox
from duetune.core.events import Learned, Submitted
from duetune.core.ports import Fleet, Journal, MarketFeed
from duetune.errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from duetune.control.connections import Books, World
    from duetune.core.events import Event, Recorded, UserRequest
    from duetune.core.fleet import Command, FleetReport, MarketReport
    from duetune.core.market import MarketTrace
    from duetune.core.progress import Progress

Answer = TypeVar("Answer")
Port = TypeVar("Port")

VARIABLE = "DUETUNE_CRASH_AT"
"""``POINT:N`` in the environment: the process is killed when it passes POINT for the Nth time."""


class Call(StrEnum):
    """Every call by which the controller reads or changes something outside its process."""

    SUBMISSION = "submission.append"
    ACTIVE = "books.active"
    PENDING = "requests.pending"
    TAKEN = "requests.taken"
    READ = "journal.read"
    APPEND = "journal.append"
    NOW = "feed.now"
    HISTORY = "feed.history"
    OBSERVE = "fleet.observe"
    APPLY = "fleet.apply"
    REVIVE = "fleet.revive"
    REPORT = "reports.read"
    HAZARD = "reports.hazard"
    LEARN = "learning.learn"
    LEARNED = "learning.append"


class Moment(StrEnum):
    """When a process is killed: before a call, between two of its commands, or after it."""

    BEFORE = "before"
    BETWEEN = "between"
    AFTER = "after"


def point_of(call: Call, moment: Moment) -> str:
    """Return the name of a crash point."""
    return f"{call}:{moment}"


BETWEEN_COMMANDS = point_of(Call.APPLY, Moment.BETWEEN)

CRASH_POINTS: tuple[str, ...] = (
    *(point_of(*place) for place in itertools.product(Call, (Moment.BEFORE, Moment.AFTER))),
    BETWEEN_COMMANDS,
)

READS = (Call.ACTIVE, Call.PENDING, Call.READ, Call.NOW, Call.HISTORY, Call.OBSERVE, Call.REPORT)
WRITES = frozenset(Call).difference(READS)
"""The calls that change something outside."""


class Crash(BaseException):
    """A simulated death of the process; no handler of ordinary errors catches it."""


def die_in_memory(point: str) -> None:
    """Raise ``Crash``; used by tests that run a controller in their own process."""
    raise Crash(point)


def die_for_real(point: str) -> None:  # noqa: ARG001 - a killed process reports nothing
    """Kill this process; used when the environment names a crash point."""
    os.kill(os.getpid(), signal.SIGKILL)


class CrashPlan:
    """Dies when ``point`` is passed for the ``passage``-th time; without a point it only counts."""

    def __init__(
        self,
        point: str | None = None,
        passage: int = 1,
        *,
        die: Callable[[str], None] = die_in_memory,
    ) -> None:
        if point is not None and point not in CRASH_POINTS:
            raise InvalidInput("crash point", point, f"one of {', '.join(CRASH_POINTS)}")
        if passage < 1:
            raise InvalidInput("crash passage", passage, "1 or more")
        self.point, self.passage = point, passage
        self.passages: Counter[str] = Counter()
        self._die = die

    @classmethod
    def parse(cls, text: str, *, die: Callable[[str], None] = die_for_real) -> CrashPlan:
        """Return the plan that ``POINT:N`` describes."""
        point, _, passage = text.rpartition(":")
        if point not in CRASH_POINTS or not passage.isdecimal():
            allowed = f"POINT:N with POINT one of {', '.join(CRASH_POINTS)}"
            raise InvalidInput(VARIABLE, text, allowed)
        return cls(point, int(passage), die=die)

    def passed(self, point: str) -> None:
        """Count a passage of ``point``, and die if it is the planned one."""
        self.passages[point] += 1
        if point == self.point and self.passages[point] == self.passage:
            self._die(point)

    def until(self, point: str) -> int | None:
        """Return the number of passages of ``point`` until the planned death; None if never."""
        left = self.passage - self.passages[point]
        return left if point == self.point and left > 0 else None

    def around(self, call: Call, act: Callable[[], Answer]) -> Answer:
        """Return the answer of ``act``; passes the points before and after ``call``."""
        self.passed(point_of(call, Moment.BEFORE))
        answer = act()
        self.passed(point_of(call, Moment.AFTER))
        return answer


class _Points(Generic[Port]):
    """A port whose calls pass the crash points of ``plan``."""

    def __init__(self, port: Port, plan: CrashPlan) -> None:
        self._port, self._plan = port, plan


class JournalPoints(_Points[Journal]):
    """A journal with crash points. Submissions and ``Learned`` events have their own points."""

    def append(self, stream: str, events: Sequence[Event], *, expected: int) -> int:
        call = Call.APPEND
        if any(isinstance(event, Submitted) for event in events):
            call = Call.SUBMISSION
        elif any(isinstance(event, Learned) for event in events):
            call = Call.LEARNED
        return self._plan.around(call, lambda: self._port.append(stream, events, expected=expected))

    def read(self, stream: str, *, after: int = 0) -> list[Recorded]:
        return self._plan.around(Call.READ, lambda: self._port.read(stream, after=after))


class InboxPoints(_Points[RequestInbox]):
    """A request inbox with crash points."""

    def pending(self) -> Sequence[tuple[int, str, UserRequest]]:
        return self._plan.around(Call.PENDING, self._port.pending)

    def taken(self, ids: Sequence[int]) -> None:
        self._plan.around(Call.TAKEN, lambda: self._port.taken(ids))


class FleetPoints(_Points[Fleet]):
    """A fleet with crash points. To die between two commands, only the first ones are passed on."""

    def apply(self, commands: Sequence[Command]) -> None:
        self._plan.passed(point_of(Call.APPLY, Moment.BEFORE))
        gaps = len(commands) - 1
        fatal = self._plan.until(BETWEEN_COMMANDS)
        self._port.apply(commands[:fatal] if fatal is not None and fatal <= gaps else commands)
        for _ in range(gaps):
            self._plan.passed(BETWEEN_COMMANDS)
        self._plan.passed(point_of(Call.APPLY, Moment.AFTER))

    def observe(self, job: str) -> FleetReport:
        return self._plan.around(Call.OBSERVE, lambda: self._port.observe(job))


class FeedPoints(_Points[MarketFeed]):
    """A market feed with crash points."""

    def now(self) -> MarketReport:
        return self._plan.around(Call.NOW, self._port.now)

    def history(self, slots: int) -> MarketTrace | None:
        return self._plan.around(Call.HISTORY, lambda: self._port.history(slots))


class ReportsPoints(_Points[Reports]):
    """Workers' reports with crash points."""

    def read(self, job: str) -> tuple[Progress, float] | None:
        return self._plan.around(Call.REPORT, lambda: self._port.read(job))

    def hazard(self, job: str, lived_s: float, losses: int) -> None:
        self._plan.around(Call.HAZARD, lambda: self._port.hazard(job, lived_s, losses))


class LearningPoints(_Points[Learning]):
    """A learner with crash points."""

    def learn(self, job: str, story: Sequence[Recorded]) -> Learned:
        return self._plan.around(Call.LEARN, lambda: self._port.learn(job, story))


def planned(world: World, books: Books, plan: CrashPlan) -> tuple[World, Books]:
    """Return ``world`` and ``books`` with crash points around every call."""
    return (
        world._replace(
            fleet=FleetPoints(world.fleet, plan),
            feed=FeedPoints(world.feed, plan),
            reports=ReportsPoints(world.reports, plan),
            revive=lambda: plan.around(Call.REVIVE, world.revive),
        ),
        books._replace(
            journal=JournalPoints(books.journal, plan),
            requests=InboxPoints(books.requests, plan),
            active=lambda: plan.around(Call.ACTIVE, books.active),
        ),
    )


def with_crash_points(
    world: World, books: Books, environment: Mapping[str, str] = os.environ
) -> tuple[World, Books]:
    """Return both unchanged, or with crash points if the environment names one."""
    plan = _plan_of(environment)
    return (world, books) if plan is None else planned(world, books, plan)


def learning_with_crash_points(
    learning: Learning | None, environment: Mapping[str, str] = os.environ
) -> Learning | None:
    """Return ``learning`` unchanged, or with crash points if the environment names one."""
    plan = _plan_of(environment)
    return learning if plan is None or learning is None else LearningPoints(learning, plan)


def journal_with_crash_points(
    journal: Journal, environment: Mapping[str, str] = os.environ
) -> Journal:
    """Return ``journal`` unchanged, or with crash points; called by the process that submits."""
    plan = _plan_of(environment)
    return journal if plan is None else JournalPoints(journal, plan)


def _plan_of(environment: Mapping[str, str]) -> CrashPlan | None:
    text = environment.get(VARIABLE, "")
    return CrashPlan.parse(text) if text else None
