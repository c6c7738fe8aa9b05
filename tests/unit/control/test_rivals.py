"""Several controllers on one journal, and budgets that hold while there is none."""

from __future__ import annotations

import math

import pytest

from duetune.control.crash_points import CRASH_POINTS, Crash, CrashPlan
from duetune.core.events import Amend, Cancel, Pause
from duetune.core.fleet import Limit
from duetune.errors import StaleController
from duetune.fleets.embedded.cloud_settings import FleetSettings
from duetune.testing import constant_market
from support.harness import SLOT_S, Lessons, Room, Status
from support.invariants import check_over, check_story

PLENTY = constant_market(spot_price=0.3, available=8)
SLOW = FleetSettings(grant_delay_s=200.0, notice_s=0.0, preload="")


def bill(room, name="job"):
    return math.fsum(node.billed for node in room.fleet.observe(name).nodes)


@pytest.mark.parametrize("at", [0.0, 0.03, 0.5, 1.0, 1.97, 3.2])
def test_of_two_controllers_one_stops_and_changes_nothing(at):
    room = Room(settings=SLOW, learning=Lessons())
    room.submit()
    room.run(slots=at)
    first, second = room.controller, room.fresh()
    stopped = []
    while len(stopped) < 2 and room.clock.now() < room.began + 60 * SLOT_S:
        for rival in (first, second):
            if rival in stopped:
                continue
            written, told = room.journal.length("job"), len(room.fleet.commands)
            try:
                busy = rival.turn()
            except StaleController:
                assert room.journal.length("job") == written
                assert len(room.fleet.commands) == told
                stopped.append(rival)
            else:
                check_story(room)
                if not busy:
                    stopped.append(rival)
        room.clock.wait_until(second.next_turn(room.clock.now()))
    check_over(room)
    assert room.status() is Status.SUCCEEDED


def test_the_loser_says_so():
    room = Room()
    room.submit()
    rival = room.fresh()
    rival.turn()
    room.clock.advance(60.0)
    room.controller.turn()
    room.clock.advance(SLOT_S)
    room.controller.turn()
    with pytest.raises(StaleController, match="another controller has written"):
        rival.turn()


@pytest.mark.parametrize("asleep", [0.2, 1.5, 6.0])
@pytest.mark.parametrize("point", [p for p in CRASH_POINTS if p.startswith(("fleet", "journal"))])
def test_a_controller_that_wakes_up_late_does_no_harm(point, asleep):
    """It fell asleep at ``point``, another took over, and then it goes on from there."""
    room = Room(settings=SLOW, poll_s=300.0)
    room.submit(steps=30)
    slept = []

    def sleep(_point):
        """The old one's turn is cut in two by all that the new one does meanwhile."""
        if slept:
            return
        slept.append(room.controller)
        room.restart()
        room.run(slots=asleep)

    sleeper = room.fresh(plan=CrashPlan(point, 2, die=sleep))
    room.controller = sleeper
    try:
        while not slept and room.controller.turn():
            room.clock.wait_until(room.controller.next_turn(room.clock.now()))
        if slept:
            sleeper.turn()
    except StaleController:
        pass
    room.run(slots=60)
    check_over(room)
    assert room.status() is Status.SUCCEEDED


def test_a_sleeper_cannot_bring_an_ended_jobs_nodes_back():
    room = Room(PLENTY, settings=SLOW)
    room.submit()
    sleeper = room.fresh(plan=CrashPlan("fleet.apply:before"))
    with pytest.raises(Crash):
        sleeper.turn()
    late = sleeper._engines["job"].outstanding()
    room.ask(Cancel())
    room.restart()
    room.run()
    check_over(room)
    room.fleet.apply(late)
    room.clock.advance(SLOT_S)
    check_over(room)


def test_an_old_limit_told_late_is_corrected_within_a_slot():
    room = Room(PLENTY)
    room.submit(steps=300, budget=20.0, policy="maximal_spot")
    room.at(1.5, lambda: room.ask(Amend(budget=5.0)))
    room.at(1.8, lambda: room.fleet.apply([Limit("job", 20.0)]))
    room.run(slots=2.1)
    limits = [command for command in room.fleet.commands if isinstance(command, Limit)]
    assert [limit.dollars for limit in limits[-3:]] == [5.0, 20.0, 5.0]
    room.run()
    check_over(room)
    assert room.ended().cost <= 5.0


class TestBudget:
    @pytest.mark.parametrize("budget", [0.0, 0.29, 1.0, 3.3, 7.5])
    @pytest.mark.parametrize("policy", ["maximal_spot", "on_demand", "ahap"])
    def test_the_bill_never_exceeds_the_budget(self, budget, policy):
        room = Room()
        room.submit(budget=budget, policy=policy, value=500.0)
        bills = []
        room.run(each=lambda: bills.append(bill(room)))
        check_over(room)
        assert max(bills) == room.ended().cost <= budget

    @pytest.mark.parametrize("alive_for", [0.03, 0.4, 1.2])
    def test_it_holds_while_the_controller_is_dead(self, alive_for):
        """The fleet knows the limit, and takes the nodes when it is reached."""
        room = Room(PLENTY)
        room.submit(budget=3.3, policy="on_demand", value=500.0)
        room.run(slots=alive_for)
        assert room.fleet.alive("job")
        room.dead(50)
        assert room.fleet.alive("job") == []
        assert 0 < bill(room) <= 3.3
        room.run()
        check_over(room)

    def test_the_fleet_knows_the_limit_before_the_first_node(self):
        for passage in (1, 2):
            room = Room(PLENTY)
            room.submit(budget=4.0, policy="on_demand", value=500.0)
            room.restart(CrashPlan("fleet.apply:between", passage))
            with pytest.raises(Crash):
                room.run()
            assert isinstance(room.fleet.commands[0], Limit)
            room.dead(50)
            assert bill(room) <= 4.0

    def test_a_lower_budget_is_told_even_if_nothing_else_is(self):
        room = Room(PLENTY)
        room.submit(budget=30.0, policy="maximal_spot", steps=200)
        room.at(2.5, lambda: room.ask(Amend(budget=29.0)))
        room.run(slots=2.7)
        assert room.fleet.commands[-1] == Limit("job", 29.0)

    def test_without_a_budget_there_is_no_limit(self):
        room = Room(PLENTY)
        room.submit()
        room.at(1.5, lambda: room.ask(Pause()))
        room.run()
        assert not any(isinstance(command, Limit) for command in room.fleet.commands)
