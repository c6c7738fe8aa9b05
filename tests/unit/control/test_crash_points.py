"""A controller that is killed at every named point, every time it passes there."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from duetune.control.crash_points import (
    BETWEEN_COMMANDS,
    CRASH_POINTS,
    VARIABLE,
    WRITES,
    Call,
    Crash,
    CrashPlan,
    FleetPoints,
    JournalPoints,
    Moment,
    journal_with_crash_points,
    learning_with_crash_points,
    point_of,
    with_crash_points,
)
from duetune.core.events import Amend, Cancel, Pause, Resume, UserRequested
from duetune.core.fleet import Release
from duetune.errors import InvalidInput
from duetune.fleets.embedded.cloud_settings import FleetSettings
from duetune.store.memory_journal import MemoryJournal
from duetune.store.store import open_store
from duetune.testing import MemoryFleet
from support.harness import Lessons, Room, Status
from support.invariants import check_over
from support.more import MORE

UNSTEADY = FleetSettings(grant_delay_s=90.0, notice_s=120.0, silent_share=0.5, preload="")


def eventful(**options):
    """A room in which a job will be preempted, resized, paused, amended, and its fleet silent."""
    room = Room(settings=UNSTEADY, learning=Lessons(), poll_s=300.0, **options)

    def lose_one():
        for node in room.fleet.running("job")[:1]:
            room.fleet.lose(node)

    room.at(0.0, lambda: room.fleet.lose_replies(1))
    room.at(1.3, lambda: setattr(room.fleet, "unreachable", True))
    room.at(1.5, lambda: setattr(room.fleet, "unreachable", False))
    room.at(1.6, lose_one)
    room.at(2.2, lambda: room.ask(Pause()))
    room.at(2.6, lambda: room.ask(Resume()))
    room.at(4.1, lambda: room.ask(Amend(deadline=room.clock.now() + 14 * 1800, budget=50.0)))
    room.at(4.2, lambda: room.ask(Cancel(), "a job that nobody knows"))
    room.at(5.4, lose_one)
    return room


def submitted(room, plan=None):
    """As a client does it: again, if the first try died."""
    options = {"steps": 40, "deadline": 10, "budget": 40.0}
    try:
        room.submit(plan=plan, **options)
    except Crash:
        room.submit(**options)


def lived(*plans, **options):
    """The eventful job with a controller that dies at each plan's point."""
    room = eventful(**options)
    submitted(room, plans[0] if plans and str(plans[0].point).startswith("submission") else None)
    deaths = room.survive(*plans)
    return room, deaths


def check_saved(room):
    check_over(room)
    assert room.status() is Status.SUCCEEDED
    assert room.state().progress.step == 40
    assert len(room.events(kind=UserRequested)) == 3
    assert room.requests.pending() == []


@pytest.fixture(scope="module")
def passages():
    """How often an undisturbed run passes each point."""
    plan, room = CrashPlan(), eventful()
    room.submit(plan=plan, steps=40, deadline=10, budget=40.0)
    room.restart(plan)
    room.run()
    return plan.passages


def test_a_run_passes_every_point_there_is(passages):
    assert set(passages) == set(CRASH_POINTS)


def test_the_job_is_worth_killing():
    room, _ = lived()
    check_saved(room)
    state = room.state()
    assert state.preemptions >= 3
    assert state.resizes >= 3
    assert room.revived >= 1


@pytest.mark.parametrize("point", CRASH_POINTS)
def test_a_job_survives_its_controller_dying_at(point, passages):
    reads = point.partition(":")[0] not in WRITES
    # Reading changes nothing: of those, every fifth passage will do.
    for passage in range(1, passages[point] + 1, 5 if reads else 1):
        plan = CrashPlan(point, passage)
        room, deaths = lived(plan)
        assert deaths == (0 if point.startswith("submission") else 1), (point, passage)
        check_saved(room)


@pytest.mark.parametrize("point", CRASH_POINTS)
def test_a_job_survives_a_death_during_recovery(point, passages):
    """The second controller dies at a write soon after it began, the third may live."""
    place = CRASH_POINTS.index(point)
    writes = [each for each in CRASH_POINTS if each.partition(":")[0] in WRITES]
    middle = max(1, passages[point] // 2)
    # A few of them, beginning with another one for each point.
    few = 3 if MORE else 9
    for second in writes[place % few :: few]:
        room, _ = lived(CrashPlan(point, middle), CrashPlan(second), CrashPlan(second))
        check_saved(room)


def test_a_controller_that_dies_at_every_third_append_still_ends_its_job():
    plans = [CrashPlan("journal.append:after", 3) for _ in range(200)]
    room, deaths = lived(*plans)
    assert deaths > 8
    check_saved(room)


def test_a_controller_that_dies_after_every_command_still_ends_its_job():
    plans = [CrashPlan(point) for point in ("fleet.apply:after", BETWEEN_COMMANDS) * 100]
    room, deaths = lived(*plans)
    assert deaths > 4
    check_saved(room)


@pytest.mark.parametrize(
    "point",
    [
        "journal.append:before",
        "journal.append:after",
        "fleet.apply:between",
        "learning.learn:after",
    ],
)
def test_a_job_survives_with_its_journal_in_a_database(point, tmp_path):
    with open_store(tmp_path / "duetune.db") as store:
        room, deaths = lived(CrashPlan(point), CrashPlan("journal.append:after", 4), store=store)
        assert deaths == 2 - (point == "learning.learn:after")
        check_saved(room)
        assert store.job("job").cost == room.ended().cost


def test_between_two_commands_only_the_first_ones_arrive():
    fleet = MemoryFleet()
    points = FleetPoints(fleet, CrashPlan(BETWEEN_COMMANDS, 4))
    first = [Release(node=name, job="job") for name in "ab"]
    second = [Release(node=name, job="job") for name in "wxyz"]
    points.apply(first)
    with pytest.raises(Crash):
        points.apply(second)
    assert fleet.commands == [*first, *second[:3]]


def test_without_the_variable_nothing_is_wrapped():
    room = Room()
    world, books = room.controller.world, room.controller.books
    assert with_crash_points(world, books, {}) == (world, books)
    assert journal_with_crash_points(room.journal, {}) is room.journal
    assert learning_with_crash_points(None, {VARIABLE: "learning.learn:after:1"}) is None


@pytest.mark.parametrize(
    "text",
    ["journal.append", "journal.append:before", "journal.append:before:0", "fleet.fly:after:1"],
)
def test_a_point_that_is_not_there_is_refused(text):
    with pytest.raises(InvalidInput):
        journal_with_crash_points(MemoryJournal(), {VARIABLE: text})


def test_a_real_process_is_killed():
    code = (
        "from duetune.control.crash_points import journal_with_crash_points\n"
        "from duetune.core.events import Pause, UserRequested\n"
        "from duetune.store.memory_journal import MemoryJournal\n"
        "journal = journal_with_crash_points(MemoryJournal())\n"
        "for number in range(4):\n"
        "    journal.append('job', [UserRequested(0.0, number, Pause())], expected=number)\n"
        "    print(number, flush=True)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, VARIABLE: "journal.append:after:3"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == -9
    assert done.stdout.split() == ["0", "1"]


def test_every_call_has_both_moments():
    assert len(CRASH_POINTS) == len(set(CRASH_POINTS)) == 2 * len(Call) + 1
    assert point_of(Call.APPLY, Moment.AFTER) == "fleet.apply:after"
    with pytest.raises(InvalidInput):
        CrashPlan("nowhere")
    assert isinstance(
        journal_with_crash_points(MemoryJournal(), {VARIABLE: "journal.read:after:2"}),
        JournalPoints,
    )
