"""What can go wrong around a controller, each with what then must come of the job."""

from __future__ import annotations

import math

import pytest

from duetune.core.events import (
    Decided,
    Disturbance,
    Disturbed,
    Observed,
    Reported,
    Requested,
)
from duetune.core.fleet import Launch, NodeKind, NodeState, Release, Task
from duetune.core.progress import Phase, Progress
from duetune.errors import FleetError, InvalidInput
from duetune.fleets.embedded.cloud_settings import FleetFaults, FleetSettings
from duetune.testing import constant_market, market_of
from support.harness import SLOT_S, Lessons, Room, Status
from support.invariants import check_over, check_story, check_turn

PLENTY = constant_market(spot_price=0.3, available=8)


def settings(**options):
    return FleetSettings(**{"grant_delay_s": 0.0, "notice_s": 0.0, "preload": "", **options})


def succeeded(room, name="job"):
    check_over(room, name)
    assert room.status(name) is Status.SUCCEEDED
    return room.state(name)


def nodes_of(room, name="job"):
    return room.fleet.observe(name).nodes


class TestCalls:
    def test_undisturbed_a_job_succeeds_and_what_lives_is_what_is_wanted(self):
        room = Room()
        room.submit()
        room.run(each=lambda: check_turn(room))
        assert succeeded(room).preemptions > 0

    @pytest.mark.parametrize("share", [1, 2, 3])
    def test_lost_replies_make_no_second_node(self, share):
        """Every call, every second or every third is carried out but not answered."""
        room = Room()
        room.submit()
        turns = iter(range(10_000))

        def lose():
            if next(turns) % share == 0:
                room.fleet.lose_replies()

        lose()
        room.run(each=lose, slots=60)
        assert room.revived > 0
        succeeded(room)

    @pytest.mark.parametrize("calls", [1, 3, 12])
    def test_lost_requests_are_made_again(self, calls):
        room = Room()
        room.submit()
        for slot in range(8):
            room.at(slot, lambda: room.fleet.lose_requests(calls))
        room.run(slots=60)
        assert room.revived >= calls
        succeeded(room)

    def test_nodes_go_on_while_the_fleet_is_unreachable(self):
        """Training that ends meanwhile is found to have ended, and dated right."""
        room = Room(PLENTY)
        room.submit(steps=50, policy="maximal_spot")
        room.at(1.5, lambda: setattr(room.fleet, "unreachable", True))
        room.at(9.5, lambda: setattr(room.fleet, "unreachable", False))
        room.run()
        state = succeeded(room)
        assert room.revived > 50
        observed = [event.slot for event in room.events(kind=Observed)]
        assert not set(observed) & set(range(3, 10))
        assert state.preemptions == 0

    def test_an_unreachable_fleet_leaves_the_other_jobs_alone(self):
        room = Room(PLENTY)
        room.submit("first", steps=20)
        room.submit("second", steps=20)
        observe = room.fleet.observe

        def broken(job):
            if job == "first" and room.clock.now() < room.began + 4 * SLOT_S:
                raise FleetError("not now")
            return observe(job)

        room.fleet.observe = broken
        room.run()
        room.fleet.observe = observe
        assert succeeded(room, "second").slot < succeeded(room, "first").slot

    def test_the_market_feed_may_fail_as_well(self):
        room = Room()
        room.submit()
        history, calls = room.fleet.history, iter(range(100))

        def flaky(slots):
            if next(calls) < 3:
                raise FleetError("no history now")
            return history(slots)

        room.fleet.history = flaky
        room.run()
        assert room.revived == 3
        succeeded(room)


class TestGrants:
    def test_a_grant_that_never_comes_is_given_up_and_asked_for_again(self):
        room = Room(PLENTY)
        room.submit(steps=40)
        room.fleet.never_grant()
        room.at(2.7, lambda: room.fleet.never_grant(False))
        room.run()
        state = succeeded(room)
        waited = [node for node in nodes_of(room) if node.started_at is None]
        assert len(waited) >= 4
        assert all(node.state is NodeState.RELEASED for node in waited)
        assert all(node.billed == 0 for node in waited)
        assert all(node.ended_at - node.requested_at <= 0.65 * SLOT_S for node in waited)
        assert state.stalled_slots == 0

    def test_on_demand_too_is_given_up_and_asked_for_again(self):
        room = Room(market_of([0.9] * 40, [0] * 40))
        room.submit(steps=40, policy="on_demand")
        room.fleet.never_grant()
        room.at(1.7, lambda: room.fleet.never_grant(False))
        room.run()
        succeeded(room)
        assert {node.kind for node in nodes_of(room)} == {NodeKind.ON_DEMAND}

    def test_nothing_is_ever_granted(self):
        room = Room(PLENTY, settings=settings(faults=FleetFaults(never_grant=True)))
        room.submit(deadline=4)
        room.run()
        check_over(room)
        assert room.ended().reason.startswith("the hard deadline has passed")
        assert room.ended().cost == 0.0

    def test_refused_launches_are_tried_again_in_every_slot(self):
        room = Room(PLENTY)
        room.submit(steps=30, policy="maximal_spot")
        room.fleet.refusing = True
        room.at(3.0, lambda: setattr(room.fleet, "refusing", False))
        room.run()
        succeeded(room)
        requests = [event for event in room.events(kind=Requested) if event.launches]
        early = [event for event in requests if event.at < room.began + 3 * SLOT_S]
        assert 3 <= len(early) <= 6

    def test_spot_that_is_refused_again_and_again_does_not_cost_the_deadline(self):
        """The market says there is spot, the fleet sells none; on demand would do."""
        room = Room(PLENTY, settings=settings(max_price=0.1))
        room.submit(steps=60, policy="guarded:maximal_spot", value=500.0)
        room.run()
        assert succeeded(room).progress_at <= room.state().deadline_at


class TestLosses:
    def test_a_node_lost_in_mid_slot_is_replaced_in_the_same_slot(self):
        room = Room(PLENTY)
        room.submit(steps=40, policy="maximal_spot")
        room.at(1.4, lambda: room.fleet.lose(room.fleet.running("job")[0]))
        room.run()
        state = succeeded(room)
        assert state.preemptions == 1
        again = [event for event in room.events(kind=Requested) if event.launches][1]
        assert len(again.launches) == 1
        assert room.began + 1.4 * SLOT_S < again.at < room.began + 1.6 * SLOT_S

    def test_all_nodes_lost_at_once_are_replaced_soon(self):
        room = Room(PLENTY)
        room.submit(steps=40, policy="maximal_spot")

        def lose_all():
            for node in room.fleet.running("job"):
                room.fleet.lose(node)

        room.at(1.4, lose_all)
        room.run()
        assert succeeded(room).preemptions == 4
        again = [event for event in room.events(kind=Requested) if event.launches][1]
        assert len(again.launches) == 4
        assert again.at < room.began + 1.6 * SLOT_S

    def test_notices_and_silence_come_to_the_same(self):
        costs = []
        for options in (
            {"notice_s": 300.0},
            {"notice_s": 300.0, "faults": FleetFaults(no_notice=True)},
            {"notice_s": 300.0, "silent_share": 1.0},
        ):
            room = Room(settings=settings(**options))
            room.submit()
            room.run()
            assert succeeded(room).preemptions == 3
            costs.append(room.ended().cost)
        assert costs == pytest.approx([costs[0]] * 3)

    def test_a_loss_that_was_announced_is_in_the_journal_before_it_comes(self):
        room = Room(settings=settings(notice_s=300.0))
        room.submit()
        room.run()
        warned = {
            node.id: event.at
            for event in room.events(kind=Reported)
            for node in event.nodes
            if node.notice_at is not None and node.state is NodeState.RUNNING
        }
        lost = [node for node in nodes_of(room) if node.state is NodeState.LOST]
        assert lost
        assert all(warned[node.id] < node.ended_at for node in lost)

    def test_workers_are_told_how_long_nodes_live(self):
        room = Room()
        room.submit()
        room.run()
        lived, losses = room.training.hazards["job"]
        assert losses == succeeded(room).preemptions
        assert lived > 0


class TestStrangers:
    def test_a_node_the_journal_does_not_know_is_given_back_and_paid(self):
        room = Room(PLENTY)
        room.submit()
        launch = Launch("stranger", "job", NodeKind.ON_DEMAND, 1, Task(folder="folder"))
        room.at(1.47, lambda: room.fleet.apply([launch]))
        room.run()
        check_over(room, strangers={"stranger"})
        stranger = room.fleet.node("stranger")
        assert stranger.state is NodeState.RELEASED
        assert stranger.ended_at - stranger.requested_at <= 0.11 * SLOT_S
        assert stranger.billed > 0

    def test_a_node_given_back_before_the_fleet_heard_of_it_never_lives(self):
        """Its launch was lost, and comes at last when nobody wants it any more."""
        room = Room(PLENTY)
        room.submit(steps=40)
        room.fleet.lose_requests(18)
        room.run(slots=0.5)
        late = [c for c in room.controller._engines["job"].outstanding() if isinstance(c, Launch)]
        assert late
        room.run(slots=1.0)
        room.fleet.apply(late)
        room.run()
        check_over(room)
        assert len({c.node for c in room.fleet.commands if isinstance(c, Launch)}) == len(
            {node.id for node in nodes_of(room)}
        )

    def test_every_command_twice_and_late_changes_nothing(self):
        room = Room()
        room.submit()
        done = 0

        def again():
            nonlocal done
            old = room.fleet.commands[max(0, done - 6) :]
            done = len(room.fleet.commands)
            room.fleet.apply([c for c in old if isinstance(c, Launch | Release)])
            del room.fleet.commands[done:]

        room.run(each=again)
        calm = Room()
        calm.submit()
        calm.run()
        succeeded(room)
        assert room.ended() == calm.ended()


class TestTraining:
    def test_slower_than_thought_is_noticed_and_made_up_for(self):
        """Half the pace: more GPUs are held, on demand as well, and the deadline is kept."""
        market = market_of([0.3] * 40, [1] * 40)
        slow = Room(market, pace=0.5)
        slow.submit(steps=50, policy="guarded:maximal_spot", value=500.0)
        slow.run()
        state = succeeded(slow)
        assert state.progress_at <= state.deadline_at
        measured = state.pace[1]
        assert measured == pytest.approx(1.5)
        assert any(event.allocation.on_demand for event in slow.decisions())
        quick = Room(market)
        quick.submit(steps=50, policy="guarded:maximal_spot", value=500.0)
        quick.run()
        assert slow.ended().cost > quick.ended().cost

    def test_training_that_never_does_a_step_fails_and_leaks_nothing(self):
        room = Room(PLENTY, pace=1e-9)
        room.submit(policy="maximal_spot")
        room.run()
        check_over(room)
        assert room.status() is Status.FAILED
        assert room.ended().reason.startswith("no step done")
        assert room.state().slot <= 7

    def test_training_that_never_does_a_step_fails_under_every_plan(self):
        for policy in ("ahap", "ahanp", "on_demand"):
            room = Room(PLENTY, pace=1e-9)
            room.submit(policy=policy)
            room.run()
            check_over(room)
            assert room.status() is Status.FAILED

    def test_a_hopeless_command_fails_the_job_at_once(self):
        room = Room(PLENTY)
        room.submit()
        room.at(0.5, lambda: room.fleet.finish(room.fleet.running("job")[0], 78))
        room.run()
        check_over(room)
        assert room.status() is Status.FAILED
        assert room.ended().at < room.began + SLOT_S

    def test_a_worker_that_leaves_by_itself_is_replaced(self):
        for code in (0, 75):
            room = Room(PLENTY)
            room.submit(steps=40)
            room.at(
                0.5,
                lambda room=room, code=code: room.fleet.finish(room.fleet.running("job")[0], code),
            )
            room.run()
            assert succeeded(room).preemptions == 0

    def test_steps_lost_by_going_back_to_a_checkpoint_are_counted_and_done_again(self):
        room = Room(PLENTY)
        room.submit(steps=40, policy="maximal_spot")
        room.at(1.4, lambda: room.training._done.update(job=5.0))
        room.run()
        state = succeeded(room)
        assert state.lost_steps > 5
        assert state.progress.step == 40

    def test_a_straggler_does_not_take_the_end_back(self):
        room = Room(PLENTY)
        room.submit(steps=20)
        read = room.training.read
        said = []

        def straggling(job):
            report = read(job)
            if report[0].phase is Phase.FINISHED:
                said.append(report)
            late = (Progress(step=3, total_steps=20, at=room.clock.now()), room.clock.now())
            return report if len(said) <= 1 else late

        room.training.read = straggling
        room.run()
        assert succeeded(room).progress.step == 20
        assert room.ended().finished_at == said[0][1]
        assert room.ended().output == "output"

    def test_no_report_at_all_is_a_standstill(self):
        room = Room(PLENTY)
        room.submit(policy="maximal_spot")
        room.training.read = lambda _job: None
        room.run()
        check_over(room)
        assert room.ended().reason.startswith("no step done")


class TestTime:
    @pytest.mark.parametrize("slots", [0.1, 0.9, 1.0, 2.5, 7.0])
    def test_a_controller_that_was_away_goes_on_where_time_is(self, slots):
        room = Room()
        room.submit()
        room.run(slots=2.4)
        room.dead(slots)
        room.run(slots=60)
        check_over(room)
        seen = [event.slot for event in room.events(kind=Observed)]
        assert seen == sorted(set(seen))
        assert len(room.decisions()) == len(seen)

    def test_away_past_the_end_of_training(self):
        """It succeeded when it did, however late that is noticed."""
        room = Room(PLENTY, learning=Lessons())
        room.submit(steps=40, policy="maximal_spot")
        room.run(slots=2.0)
        room.at(5.0, lambda: room.training.read("job"))
        room.dead(40)
        room.run()
        state = succeeded(room)
        assert room.ended().finished_at == room.began + 5.0 * SLOT_S
        assert room.ended().value == state.job.value

    def test_away_past_the_hard_deadline(self):
        room = Room(PLENTY)
        room.submit(steps=400)
        room.run(slots=2.0)
        room.dead(40)
        room.run()
        check_over(room)
        assert room.ended().reason.startswith("the hard deadline has passed")

    def test_the_hard_deadline_ends_a_job_that_cannot_make_it(self):
        room = Room()
        room.submit(steps=400, deadline=4)
        room.run()
        check_over(room)
        state = room.state()
        assert state.status is Status.FAILED
        assert state.reason.startswith("the hard deadline has passed at step")
        assert room.ended().at <= state.moment(state.job.hard_deadline) + 0.1 * SLOT_S

    @pytest.mark.parametrize("slots", [0.01, 1.0, 2.4, 3.99])
    def test_max_duration_ends_a_job_soon_after(self, slots):
        room = Room(PLENTY)
        room.submit(steps=200, stop_at=room.began + slots * SLOT_S)
        room.run()
        check_over(room)
        assert room.ended().reason.startswith("max_duration has passed")
        late = room.ended().at - room.began - slots * SLOT_S
        assert 0 <= late <= 0.25 * SLOT_S

    def test_a_slot_that_began_long_before_the_submission(self):
        """Slots are the market's; a job may come in the middle of one."""
        room = Room()
        room.clock.advance(0.63 * SLOT_S)
        room.submit(origin=room.began)
        room.run()
        succeeded(room)
        first, second = room.decisions()[:2]
        assert first.slot == 1
        assert second.at < room.began + 1.2 * SLOT_S

    def test_slots_that_are_not_the_markets(self):
        room = Room()
        room.clock.advance(0.63 * SLOT_S)
        room.submit()
        room.run(each=lambda: check_turn(room))
        succeeded(room)

    def test_finished_is_dated_by_the_workers(self):
        room = Room(PLENTY, poll_s=3000.0)
        room.submit(steps=20)
        room.run()
        ended = succeeded(room) and room.ended()
        assert ended.finished_at <= ended.at
        assert ended.value == room.state().job.value


class TestSeveralJobs:
    def test_jobs_share_the_market_and_end_one_by_one(self):
        room = Room(learning=Lessons())
        room.submit("first", steps=40)
        room.at(1.3, lambda: room.submit("second", steps=30))
        room.at(2.0, lambda: room.submit("third", steps=20, policy="on_demand"))
        room.run(slots=60, each=lambda: [check_turn(room, n) for n in room.journal.streams()])
        for name in ("first", "second", "third"):
            succeeded(room, name)
        assert room.learning.calls == {"first": 1, "second": 1, "third": 1}

    def test_a_job_is_shown_what_the_others_leave(self):
        """Else it would be refused spot until its deadline has passed."""
        room = Room(constant_market(spot_price=0.3, available=4))
        room.submit("first", steps=140, policy="maximal_spot", deadline=14)
        room.run(slots=0.5)
        room.submit("second", steps=60, policy="guarded:maximal_spot", value=500.0)
        room.run(slots=40)
        for name in ("first", "second"):
            state = succeeded(room, name)
            assert state.progress_at <= state.deadline_at
        shown = [event.market.available for event in room.events("second", Observed)]
        assert shown[0] == 0

    def test_a_fresh_controller_knows_what_the_others_hold_before_it_decides(self):
        room = Room(constant_market(spot_price=0.3, available=4))
        room.submit("older", steps=140, policy="maximal_spot", deadline=14)
        room.run(slots=1.9)
        room.submit("earlier in the alphabet", steps=20, policy="maximal_spot")
        room.restart()
        room.run(slots=0.05)
        assert room.events("earlier in the alphabet", Observed)[0].market.available == 0

    def test_what_a_job_holds_is_not_taken_from_it_by_a_stale_look_at_the_others(self):
        """The market halves: both lose some, neither gives up what it still has."""
        room = Room(market_of([0.3] * 60, [8] * 3 + [4] * 57))
        for name in ("first", "second"):
            room.submit(name, steps=60, policy="maximal_spot", value=500.0)
        room.run(slots=60)
        for name in ("first", "second"):
            succeeded(room, name)
            given_back = [event for event in room.events(name, Requested) if event.releases]
            assert all(event.at > room.began + 4 * SLOT_S for event in given_back)

    def test_a_policy_that_fails_is_replaced_and_leaves_the_other_jobs_alone(self):
        room = Room(PLENTY)
        room.submit("broken", policy="ahap", steps=40)
        room.submit("whole", policy="on_demand", steps=40)
        named = room.controller._policy_named

        class Broken:
            name = "broken"

            def decide(self, view):
                raise InvalidInput("policy", view.slot, "another day")

        room.controller._policy_named = lambda name: Broken() if name == "ahap" else named(name)
        room.run(slots=40)
        succeeded(room, "whole")
        assert room.ended("broken").status is Status.SUCCEEDED
        reasons = [event.reason for event in room.events("broken", Decided)]
        assert all(reason.startswith("ahap failed (policy: ") for reason in reasons)


class TestAccounts:
    def test_bills_add_up_at_every_turn_of_a_slot(self):
        room = Room()
        room.submit()

        def look():
            state = room.state()
            fleet = math.fsum(node.billed for node in nodes_of(room))
            assert state.spent <= fleet + 1e-12
            last = room.events()[-1]
            if isinstance(last, Decided) and last.at == room.clock.now():
                assert state.spent == fleet

        room.run(each=look)
        succeeded(room)

    def test_learning_is_asked_once_and_written_down(self):
        room = Room(learning=Lessons())
        room.submit()
        room.run()
        check_over(room)
        assert room.learning.calls == {"job": 1}
        written = room.journal.length("job")
        room.controller.tick("job")
        room.fresh().tick("job")
        assert room.learning.calls == {"job": 1}
        assert room.journal.length("job") == written

    def test_that_the_fleet_is_silent_is_written_once_and_nothing_else_meanwhile(self):
        room = Room(learning=Lessons())
        room.submit()
        room.fleet.unreachable = True
        room.run(slots=0.2)
        silent = room.events()[1:]
        assert [event.what for event in silent] == [Disturbance.FLEET_SILENT]
        assert silent[0].since == room.state().silent_since == room.began
        room.fleet.unreachable = False
        check_story(room)
        room.run()
        succeeded(room)
        answers = room.events(kind=Disturbed)[1]
        assert answers.what is Disturbance.FLEET_ANSWERS
        assert answers.seconds == pytest.approx(0.2 * SLOT_S, rel=0.2)
        assert room.state().silent_since is None
