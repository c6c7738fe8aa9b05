"""Cancel, pause, resume and amend: at any time, counted once, also when they come too late."""

from __future__ import annotations

import pytest

from duetune.control.crash_points import CrashPlan
from duetune.core.decision import Allocation
from duetune.core.events import Amend, Cancel, Decided, Observed, Pause, Resume, UserRequested
from duetune.testing import constant_market, market_of
from support.harness import SLOT_S, Lessons, Room, Status
from support.invariants import check_over, check_turn

PLENTY = constant_market(spot_price=0.3, available=8)
TIMES = [0.0, 0.013, 0.5, 1.0, 1.02, 2.37, 4.99]


def slots(room, moment):
    return (moment - room.began) / SLOT_S


@pytest.mark.parametrize("at", TIMES)
def test_a_cancelled_job_ends_soon_and_pays_what_it_used(at):
    room = Room(learning=Lessons())
    room.submit(steps=200)
    room.at(at, lambda: room.ask(Cancel()))
    room.run(each=lambda: check_turn(room))
    check_over(room)
    assert room.status() is Status.CANCELLED
    assert slots(room, room.ended().at) < at + 0.25
    assert room.ended().value == 0.0


def test_a_job_that_was_cancelled_before_its_first_slot_costs_nothing():
    room = Room(learning=Lessons())
    room.submit()
    room.ask(Cancel())
    room.run()
    check_over(room)
    assert room.events(kind=Observed | Decided) == []
    assert room.fleet.commands == []
    assert room.ended().cost == 0.0


def test_cancelling_again_and_after_the_end_changes_nothing():
    room = Room(learning=Lessons())
    room.submit(steps=20)
    for at in (5.0, 6.0, 9.0):
        room.at(
            at, lambda: [room.ask(request) for request in (Cancel(), Pause(), Amend(budget=1.0))]
        )
    room.run()
    check_over(room)
    assert room.status() is Status.SUCCEEDED
    assert room.events(kind=UserRequested) == []
    assert room.requests.pending() == []


def test_a_job_that_is_done_when_it_is_cancelled_ends_once():
    """Whichever comes first in the journal counts, and nothing is lost either way."""
    ends = set()
    for hundredths in range(270, 330, 3):
        room = Room(PLENTY)
        room.submit(steps=36, policy="maximal_spot")
        room.at(hundredths / 100, lambda room=room: room.ask(Cancel()))
        room.run()
        check_over(room)
        ends.add(room.status())
    assert ends == {Status.SUCCEEDED, Status.CANCELLED}


@pytest.mark.parametrize("at", TIMES)
def test_a_paused_job_holds_nothing_until_it_is_resumed(at):
    room = Room(PLENTY)
    room.submit(steps=80, policy="maximal_spot")
    room.at(at, lambda: room.ask(Pause()))
    room.at(at + 2.2, lambda: room.ask(Resume()))

    def look():
        check_turn(room)
        if room.status() is Status.PAUSED:
            assert room.fleet.alive("job") == []

    room.run(each=look)
    check_over(room)
    assert room.status() is Status.SUCCEEDED
    resumed = next(e.at for e in room.events(kind=UserRequested) if isinstance(e.wish, Resume))
    again = next(e for e in room.decisions() if e.at >= resumed)
    assert again.at == resumed, "a resumed job is decided on at once"
    assert again.allocation.total > 0


def test_a_job_that_is_never_resumed_ends_at_its_hard_deadline():
    room = Room(PLENTY)
    room.submit()
    room.at(1.5, lambda: room.ask(Pause()))
    room.run()
    check_over(room)
    assert room.ended().reason.startswith("the hard deadline has passed")
    assert room.ended().cost < 4 * 0.3 * 1.7


def test_a_paused_job_can_be_cancelled():
    room = Room(PLENTY)
    room.submit()
    room.at(1.5, lambda: room.ask(Pause()))
    room.at(3.5, lambda: room.ask(Cancel()))
    room.run()
    check_over(room)
    assert room.status() is Status.CANCELLED


def test_pause_and_resume_in_one_breath_change_nothing_much():
    room = Room(PLENTY)
    room.submit(steps=40)
    room.at(1.5, lambda: [room.ask(Pause()), room.ask(Resume())])
    room.run()
    check_over(room)
    assert room.status() is Status.SUCCEEDED
    assert len(room.fleet.observe("job").nodes) == 4


def test_an_earlier_deadline_makes_it_hurry():
    dear = market_of([0.6] * 60, [1] * 60)
    ends = {}
    for moved in (None, 7):
        room = Room(dear)
        room.submit(steps=50, deadline=16, policy="guarded:maximal_spot", value=500.0)
        if moved:
            request = Amend(deadline=room.began + moved * SLOT_S)
            room.at(1.3, lambda room=room, request=request: room.ask(request))
        room.run()
        check_over(room)
        assert room.status() is Status.SUCCEEDED
        ends[moved] = room.ended()
    assert ends[7].finished_at <= room.began + 7 * SLOT_S < ends[None].finished_at
    assert ends[7].cost > ends[None].cost


def test_a_later_deadline_lets_it_wait():
    market = market_of([0.9] * 8 + [0.2] * 60, [0] * 8 + [4] * 60)
    costs = []
    for later in (False, True):
        room = Room(market)
        room.submit(steps=30, deadline=6, value=500.0, policy="guarded:maximal_spot")
        if later:
            request = Amend(deadline=room.began + 20 * SLOT_S)
            room.at(0.3, lambda room=room, request=request: room.ask(request))
        room.run(slots=60)
        check_over(room)
        assert room.status() is Status.SUCCEEDED
        costs.append(room.ended().cost)
    assert costs[1] < costs[0]


def test_a_deadline_that_has_passed_is_the_slot_that_is():
    room = Room(PLENTY)
    room.submit(steps=200)
    room.at(4.5, lambda: room.ask(Amend(deadline=room.began)))
    room.run()
    check_over(room)
    assert room.state().job.deadline == 5
    assert room.ended().reason.startswith("the hard deadline has passed")
    assert slots(room, room.ended().at) < 7.5


@pytest.mark.parametrize("budget", [0.0, 2.0, 6.0])
def test_a_lower_budget_holds_from_then_on(budget):
    room = Room(PLENTY)
    room.submit(steps=100, policy="maximal_spot", budget=50.0)
    spent = []

    def lower():
        room.ask(Amend(budget=budget))
        spent.append(sum(node.billed for node in room.fleet.observe("job").nodes))

    room.at(3.47, lower)
    room.run()
    check_over(room)
    # What was spent before the controller heard of it cannot be taken back.
    assert room.ended().cost <= max(budget, spent[0] + 4 * 0.3 * 0.1) + 1e-5
    assert room.state().job.budget == budget


def test_a_higher_budget_lets_it_go_on():
    room = Room(PLENTY)
    room.submit(steps=60, policy="maximal_spot", budget=2.0)
    room.budgets["job"].append(60.0)
    room.at(4.3, lambda: room.ask(Amend(budget=60.0)))
    room.run()
    check_over(room)
    assert room.status() is Status.SUCCEEDED
    assert room.ended().cost > 2.0
    waiting = [e for e in room.decisions() if slots(room, e.at) < 4.3][-1]
    assert waiting.allocation == Allocation()


def test_a_request_counts_once_however_often_the_controller_dies():
    for point in ("journal.append:before", "journal.append:after", "requests.pending:after"):
        for passage in range(1, 12):
            room = Room(PLENTY, poll_s=300.0)
            room.submit(steps=40)
            room.at(0.5, lambda room=room: room.ask(Pause()))
            room.at(1.5, lambda room=room: room.ask(Resume()))
            room.survive(CrashPlan(point, passage), CrashPlan(point, 2))
            check_over(room)
            assert len(room.events(kind=UserRequested)) == 2
            assert room.status() is Status.SUCCEEDED


def test_requests_for_a_job_that_was_submitted_a_moment_ago_are_not_late():
    """Submitted and cancelled after the controller had looked which jobs there are."""
    room = Room(PLENTY)
    room.submit("other", steps=40)
    books = room.controller.books
    looked = books.active

    def look():
        names = looked()
        if "job" not in names:
            room.submit()
            room.ask(Cancel())
        return names

    room.controller.books = books._replace(active=look)
    room.run()
    check_over(room)
    assert room.status() is Status.CANCELLED
    check_over(room, "other")


def test_requests_while_the_fleet_is_unreachable_wait_for_it():
    room = Room(PLENTY)
    room.submit(steps=100)
    room.at(1.5, lambda: setattr(room.fleet, "unreachable", True))
    room.at(1.6, lambda: room.ask(Cancel()))
    room.at(3.0, lambda: setattr(room.fleet, "unreachable", False))
    room.run()
    check_over(room)
    assert room.status() is Status.CANCELLED
    assert slots(room, room.ended().at) > 3.0


def test_many_amendments_are_decided_on_each_and_harm_nothing():
    room = Room(PLENTY)
    room.submit(steps=40, budget=100.0)
    for number in range(30):
        request = Amend(deadline=room.began + (10 + number % 3) * SLOT_S, budget=90.0 + number % 7)
        room.at(0.2 + number * 0.04, lambda request=request: room.ask(request))
    room.run()
    check_over(room)
    assert room.status() is Status.SUCCEEDED
    assert len(room.events(kind=Decided)) > 20
