"""Named places at which a controller may be killed, so that a test can kill it at every one.

A point is a call to the outside and a moment: ``journal.append:before``, ``fleet.apply:between``
(two commands of one call), ``fleet.apply:after``. Outside of tests nothing is wrapped.
"""

from __future__ import annotations

import itertools
import os
import signal
from collections import Counter
from enum import StrEnum
from typing import TYPE_CHECKING, TypeVar

from duetune.core.events import Learned, Submitted
from duetune.errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from duetune.control.connections import Books, Learning, Reports, RequestInbox, World
    from duetune.core.events import Event, Recorded, UserRequest
    from duetune.core.fleet import Command, FleetReport, MarketReport
    from duetune.core.market import MarketTrace
    from duetune.core.ports import Fleet, Journal, MarketFeed
    from duetune.core.progress import Progress

Answer = TypeVar("Answer")

VARIABLE = "DUETUNE_CRASH_AT"
"""``POINT:N`` in the environment: the process is killed when it passes POINT for the Nth time."""


class Call(StrEnum):
    """Every call by which a job's story leaves the process or enters it."""

    SUBMISSION = "submission.append"
    ACTIVE = "books.active"
    PENDING = "wishes.pending"
    TAKEN = "wishes.taken"
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
    BEFORE = "before"
    BETWEEN = "between"
    AFTER = "after"


def point_of(call: Call, moment: Moment) -> str:
    return f"{call}:{moment}"


BETWEEN_COMMANDS = point_of(Call.APPLY, Moment.BETWEEN)

CRASH_POINTS: tuple[str, ...] = (
    *(point_of(*place) for place in itertools.product(Call, (Moment.BEFORE, Moment.AFTER))),
    BETWEEN_COMMANDS,
)

WRITES = frozenset(
    {
        Call.SUBMISSION,
        Call.TAKEN,
        Call.APPEND,
        Call.APPLY,
        Call.REVIVE,
        Call.HAZARD,
        Call.LEARN,
        Call.LEARNED,
    }
)
"""The calls that change something outside."""


class Crash(BaseException):
    """Death in memory: nothing that handles errors may catch it."""


def die_in_memory(point: str) -> None:
    raise Crash(point)


def die_for_real(point: str) -> None:  # noqa: ARG001 - no time for last words
    os.kill(os.getpid(), signal.SIGKILL)


class CrashPlan:
    """Dies at passage number ``passage`` of ``point``, or only counts if there is none."""

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
        """From ``POINT:N``."""
        point, _, passage = text.rpartition(":")
        if point not in CRASH_POINTS or not passage.isdecimal():
            allowed = f"POINT:N with POINT one of {', '.join(CRASH_POINTS)}"
            raise InvalidInput(VARIABLE, text, allowed)
        return cls(point, int(passage), die=die)

    def passed(self, point: str) -> None:
        self.passages[point] += 1
        if point == self.point and self.passages[point] == self.passage:
            self._die(point)

    def until(self, point: str) -> int | None:
        """How many more passages of ``point`` are fatal; None if it never will be."""
        left = self.passage - self.passages[point]
        return left if point == self.point and left > 0 else None

    def around(self, call: Call, act: Callable[[], Answer]) -> Answer:
        self.passed(point_of(call, Moment.BEFORE))
        answer = act()
        self.passed(point_of(call, Moment.AFTER))
        return answer


class JournalPoints:
    """A journal. Submissions and what was learnt have points of their own."""

    def __init__(self, journal: Journal, plan: CrashPlan) -> None:
        self._journal, self._plan = journal, plan

    def append(self, stream: str, events: Sequence[Event], *, expected: int) -> int:
        call = Call.APPEND
        if any(isinstance(event, Submitted) for event in events):
            call = Call.SUBMISSION
        elif any(isinstance(event, Learned) for event in events):
            call = Call.LEARNED
        return self._plan.around(
            call, lambda: self._journal.append(stream, events, expected=expected)
        )

    def read(self, stream: str, *, after: int = 0) -> list[Recorded]:
        return self._plan.around(Call.READ, lambda: self._journal.read(stream, after=after))


class WishesPoints:
    def __init__(self, wishes: RequestInbox, plan: CrashPlan) -> None:
        self._wishes, self._plan = wishes, plan

    def pending(self) -> Sequence[tuple[int, str, UserRequest]]:
        return self._plan.around(Call.PENDING, self._wishes.pending)

    def taken(self, ids: Sequence[int]) -> None:
        self._plan.around(Call.TAKEN, lambda: self._wishes.taken(ids))


class FleetPoints:
    """A fleet. To die between two commands, only the first ones are passed on."""

    def __init__(self, fleet: Fleet, plan: CrashPlan) -> None:
        self._fleet, self._plan = fleet, plan

    def apply(self, commands: Sequence[Command]) -> None:
        self._plan.passed(point_of(Call.APPLY, Moment.BEFORE))
        gaps = len(commands) - 1
        fatal = self._plan.until(BETWEEN_COMMANDS)
        self._fleet.apply(commands[:fatal] if fatal is not None and fatal <= gaps else commands)
        for _ in range(gaps):
            self._plan.passed(BETWEEN_COMMANDS)
        self._plan.passed(point_of(Call.APPLY, Moment.AFTER))

    def observe(self, job: str) -> FleetReport:
        return self._plan.around(Call.OBSERVE, lambda: self._fleet.observe(job))


class FeedPoints:
    def __init__(self, feed: MarketFeed, plan: CrashPlan) -> None:
        self._feed, self._plan = feed, plan

    def now(self) -> MarketReport:
        return self._plan.around(Call.NOW, self._feed.now)

    def history(self, slots: int) -> MarketTrace | None:
        return self._plan.around(Call.HISTORY, lambda: self._feed.history(slots))


class ReportsPoints:
    def __init__(self, reports: Reports, plan: CrashPlan) -> None:
        self._reports, self._plan = reports, plan

    def read(self, job: str) -> tuple[Progress, float] | None:
        return self._plan.around(Call.REPORT, lambda: self._reports.read(job))

    def hazard(self, job: str, lived_s: float, losses: int) -> None:
        self._plan.around(Call.HAZARD, lambda: self._reports.hazard(job, lived_s, losses))


class LearningPoints:
    def __init__(self, learning: Learning, plan: CrashPlan) -> None:
        self._learning, self._plan = learning, plan

    def learn(self, job: str, story: Sequence[Recorded]) -> Learned:
        return self._plan.around(Call.LEARN, lambda: self._learning.learn(job, story))


def planned(world: World, books: Books, plan: CrashPlan) -> tuple[World, Books]:
    """``world`` and ``books`` with every call to them a crash point."""
    return (
        world._replace(
            fleet=FleetPoints(world.fleet, plan),
            feed=FeedPoints(world.feed, plan),
            reports=ReportsPoints(world.reports, plan),
            revive=lambda: plan.around(Call.REVIVE, world.revive),
        ),
        books._replace(
            journal=JournalPoints(books.journal, plan),
            wishes=WishesPoints(books.wishes, plan),
            active=lambda: plan.around(Call.ACTIVE, books.active),
        ),
    )


def with_crash_points(
    world: World, books: Books, environment: Mapping[str, str] = os.environ
) -> tuple[World, Books]:
    """As they are, or wrapped if the environment says where this process is to be killed."""
    plan = _plan_of(environment)
    return (world, books) if plan is None else planned(world, books, plan)


def learning_with_crash_points(
    learning: Learning | None, environment: Mapping[str, str] = os.environ
) -> Learning | None:
    plan = _plan_of(environment)
    return learning if plan is None or learning is None else LearningPoints(learning, plan)


def journal_with_crash_points(
    journal: Journal, environment: Mapping[str, str] = os.environ
) -> Journal:
    """For whoever submits."""
    plan = _plan_of(environment)
    return journal if plan is None else JournalPoints(journal, plan)


def _plan_of(environment: Mapping[str, str]) -> CrashPlan | None:
    text = environment.get(VARIABLE, "")
    return CrashPlan.parse(text) if text else None
