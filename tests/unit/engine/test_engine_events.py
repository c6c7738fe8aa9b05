from __future__ import annotations

import itertools
import math

import pytest

from duetune.core.decision import Allocation
from duetune.core.events import (
    Amend,
    Cancel,
    Decided,
    Ended,
    Learned,
    Pause,
    Recorded,
    Reported,
    Requested,
    Resume,
    Status,
    UserRequested,
)
from duetune.core.fleet import Launch, Limit, NodeEnd, NodeKind, NodeState, Release, Task
from duetune.core.job import MAX_SLOTS
from duetune.core.progress import Phase
from duetune.engine.effects import STALL_SLOTS
from duetune.engine.engine import Engine
from duetune.errors import Bug, NotFound
from duetune.registry.policies import policy_named
from duetune.simulate.journal_replay import market_lived
from support.stories import SLOT_S, Story, moment

RUNNING, REQUESTED = NodeState.RUNNING, NodeState.REQUESTED
LOST, RELEASED, REFUSED = NodeState.LOST, NodeState.RELEASED, NodeState.REFUSED


def begun(**options):
    """A job with four spot nodes in its first slot."""
    story = Story(**options)
    story.slot(0.02)
    story.ask(0.02)
    story.run_all(0.02)
    return story


def of(commands, kind):
    return [command for command in commands if isinstance(command, kind)]


class TestLegalMoves:
    def test_a_job_that_was_never_submitted_is_not_there(self):
        engine = Engine("job", policy_named)
        assert engine.position == 0
        assert engine.position == 0
        with pytest.raises(NotFound):
            _ = engine.state

    def test_nothing_comes_before_the_submission(self):
        engine = Engine("job", policy_named)
        with pytest.raises(Bug):
            engine.handle(Reported(moment(0)))

    def test_a_job_is_submitted_once(self):
        story = Story()
        with pytest.raises(Bug):
            story.tell(story.events[0])

    def test_nothing_but_requests_and_lessons_comes_after_the_end(self):
        story = Story()
        story.request(Cancel())
        story.tell(story.engine.end(moment(0.1)))
        assert story.state.status is Status.CANCELLED
        story.request(Resume())
        story.tell(Learned(moment(1), "pool", (), ()))
        assert story.state.status is Status.CANCELLED
        for event in (
            Reported(moment(1)),
            Requested(moment(1)),
            Decided(moment(1), 2, Allocation(), ""),
            Ended(moment(1), Status.FAILED, "", 0.0),
        ):
            with pytest.raises(Bug) as failure:
                story.tell(event)
            assert "Submitted" in failure.value.story[0]

    def test_a_job_that_stops_decides_no_more(self):
        story = begun()
        observed = story.observed(1.02)
        story.request(Cancel(), at=0.5)
        with pytest.raises(Bug):
            story.tell(observed)


class TestNodes:
    def test_what_is_wanted_is_asked_for_once(self):
        story = Story()
        assert story.slot(0.02).allocation == Allocation(spot=4)
        asked = story.ask(0.02)
        assert len(asked.launches) == 4
        assert story.ask(0.02) is None
        assert story.ask(0.1) is None

    def test_ids_and_epochs_come_from_the_position_in_the_journal(self):
        story = Story()
        story.slot(0.02)
        asked = story.ask(0.02)
        assert {launch.epoch for launch in asked.launches} == {len(story.events)}
        assert len({launch.node for launch in asked.launches}) == 4

    def test_a_mixed_request_names_every_node_differently(self):
        story = Story(policy="on_demand")
        story.tell(Decided(moment(0), 1, Allocation(spot=2, on_demand=2), ""))
        asked = story.ask(0.0)
        assert len({launch.node for launch in asked.launches}) == 4
        assert [launch.kind for launch in asked.launches].count(NodeKind.SPOT) == 2

    def test_a_launch_is_said_again_until_the_fleet_knows_it(self):
        story = Story()
        story.slot(0.02)
        story.ask(0.02)
        assert len(of(story.engine.outstanding(), Launch)) == 4
        first = next(iter(story.state.nodes))
        story.report(story.node(first, REQUESTED), at=0.03)
        assert len(of(story.engine.outstanding(), Launch)) == 3

    def test_a_release_is_said_again_until_the_node_is_gone(self):
        story = begun()
        story.request(Pause(), at=0.3)
        story.ask(0.3)
        assert len(of(story.engine.outstanding(), Release)) == 4
        gone = [story.node(name, RELEASED, at=0.3) for name in story.state.nodes]
        story.report(*gone[:3], at=0.3)
        assert len(of(story.engine.outstanding(), Release)) == 1
        story.report(gone[3], at=0.3)
        assert of(story.engine.outstanding(), Release) == []

    def test_limit_then_releases_then_launches(self):
        """So that a call which is cut short leaves less, never more, than is wanted."""
        story = Story(budget=50.0)
        story.launch("old", at=0.0)
        story.report(story.node("old"), at=0.0)
        story.tell(Decided(moment(0), 1, Allocation(on_demand=3), ""))
        story.ask(0.1)
        kinds = [type(command) for command in story.engine.outstanding()]
        assert kinds == [Limit, Release, Launch, Launch, Launch]

    def test_a_node_nobody_asked_for_is_given_back_and_paid(self):
        story = Story()
        commands = story.report(story.node("stranger", billed=0.5), at=0.1)
        assert of(commands, Release) == [Release("stranger", "job")]
        assert story.state.spent == 0.5
        assert story.state.held() == Allocation()

    def test_what_goes_first_is_not_running_then_doomed_then_young(self):
        story = Story()
        story.launch("old", "doomed", "young", "waiting")
        story.report(
            story.node("old", since=0.0),
            story.node("doomed", since=0.0, notice_at=moment(2)),
            story.node("young", since=0.1),
            story.node("waiting", REQUESTED, since=0.2),
        )
        order = []
        for keep in (3, 2, 1, 0):
            story.tell(Decided(moment(0.3), 1, Allocation(spot=keep), ""))
            order += story.ask(0.3).releases
        assert order == ["waiting", "doomed", "young", "old"]

    def test_a_grant_that_does_not_come_is_given_up_and_asked_again(self):
        story = Story()
        story.slot(0.02)
        first = story.ask(0.02)
        assert story.ask(0.5) is None
        again = story.ask(0.53)
        assert set(again.releases) == {launch.node for launch in first.launches}
        assert len(again.launches) == 4

    def test_refusals_are_met_with_patience(self):
        story = begun()
        times = []
        for at in [0.02 + step / 100 for step in range(1, 98)]:
            refused = [
                story.node(node.id, REFUSED, at=at)
                for node in story.state.alive()
                if node.id != next(iter(story.state.nodes))
            ]
            story.report(*refused, at=at)
            if story.ask(at) is not None:
                times.append(at)
        assert 2 <= len(times) <= 8
        gaps = [later - earlier for earlier, later in itertools.pairwise(times)]
        assert gaps == sorted(gaps)

    def test_nodes_that_keep_leaving_by_themselves_are_met_with_patience_too(self):
        """Such as a command that exits with 75 as soon as it is started."""
        story = begun()
        asked = 0
        for at in [0.02 + step / 100 for step in range(1, 98)]:
            left = [story.node(node.id, RELEASED, at=at) for node in story.state.alive()]
            story.report(*left, at=at)
            asked += story.ask(at) is not None
        assert asked <= 8

    def test_a_machine_that_died_is_replaced_at_once_and_its_successor_with_patience(self):
        story = begun()
        first = next(iter(story.state.nodes))
        story.report(story.node(first, LOST, at=0.2, end=NodeEnd.DIED), at=0.2)
        (second,) = story.ask(0.2).launches
        story.run_all(0.21)
        story.report(story.node(second.node, LOST, at=0.22, end=NodeEnd.DIED), at=0.22)
        assert story.ask(0.22) is None
        assert len(story.ask(0.33).launches) == 1

    def test_a_machine_that_died_is_replaced_late_in_a_slot_too(self):
        """The job would else wait for the next slot without a GPU."""
        story = begun()
        first = next(iter(story.state.nodes))
        story.report(story.node(first, LOST, at=0.9, end=NodeEnd.DIED), at=0.9)
        assert len(story.ask(0.9).launches) == 1

    def test_a_loss_to_the_market_is_not_answered_at_once(self):
        story = begun()
        first = next(iter(story.state.nodes))
        story.report(story.node(first, LOST, at=0.2, end=NodeEnd.CAPACITY), at=0.2)
        assert story.ask(0.2) is None
        assert len(story.ask(0.26).launches) == 1

    def test_the_first_try_of_a_new_slot_is_made_at_once(self):
        story = begun()
        lost = [story.node(name, LOST, at=0.97) for name in story.state.nodes]
        story.report(*lost, at=0.97)
        assert story.ask(0.98) is None
        story.slot(1.02)
        assert len(story.ask(1.02).launches) == 4


class TestHeld:
    def test_what_was_lost_in_the_slot_counts_as_held(self):
        story = begun()
        first = next(iter(story.state.nodes))
        story.report(story.node(first, LOST, at=1.0), at=1.01)
        assert story.state.held() == Allocation(spot=4)
        story.slot(1.02, available=3)
        assert story.state.held() == Allocation(spot=3)

    def test_a_node_that_was_replaced_counts_once(self):
        """Else more would be held than the job may ever hold, and tables end at that."""
        story = begun()
        for round_ in range(2):
            at = 0.2 + round_ / 5
            story.report(*(story.node(n.id, LOST, at=at) for n in story.state.alive()), at=at)
            assert story.ask(at + 0.19) is not None
            story.run_all(at + 0.19)
        assert story.state.held() == Allocation(spot=4)
        assert story.slot(1.02).allocation == Allocation(spot=4)

    def test_what_was_never_granted_was_not_held(self):
        story = Story()
        story.slot(0.02)
        story.ask(0.02)
        assert story.state.held() == Allocation()

    def test_a_paused_job_still_held_what_runs(self):
        story = begun()
        story.request(Pause(), at=0.4)
        assert story.state.held() == Allocation(spot=4)
        story.ask(0.4)
        assert story.state.held() == Allocation()


class TestWishes:
    def test_a_request_counts_once(self):
        story = begun()
        story.tell(UserRequested(moment(0.1), 7, Pause()))
        story.tell(UserRequested(moment(0.2), 8, Resume()))
        story.tell(UserRequested(moment(0.3), 7, Pause()))
        assert story.state.status is Status.RUNNING

    def test_cancelling_gives_everything_back_and_ends(self):
        story = begun()
        story.request(Cancel(), at=0.3)
        assert story.state.status is Status.STOPPING
        assert story.engine.end(moment(0.3)) is None
        assert len(story.ask(0.3).releases) == 4
        gone = [story.node(n, RELEASED, at=0.3, billed=0.1) for n in story.state.nodes]
        story.report(*gone, at=0.3)
        story.tell(story.engine.end(moment(0.31)))
        assert story.state.status is Status.CANCELLED
        assert story.events[-1].cost == pytest.approx(0.4)
        assert story.events[-1].value == 0.0

    def test_the_first_reason_to_stop_counts(self):
        story = begun()
        story.request(Cancel(), at=0.3)
        story.steps(120, at=0.3, phase=Phase.FINISHED, output="out")
        story.request(Pause(), at=0.4)
        story.request(Resume(), at=0.4)
        assert story.state.status is Status.STOPPING
        assert story.state.ending.status is Status.CANCELLED

    def test_a_paused_job_wants_nothing_until_it_is_resumed(self):
        story = begun()
        story.request(Pause(), at=0.3)
        story.ask(0.3)
        assert story.slot(1.02).allocation == Allocation()
        assert story.slot(2.02).reason == "paused"
        story.request(Resume(), at=2.5)
        assert story.state.slot_is_due(moment(2.5))
        assert story.slot(2.5).allocation == Allocation(spot=4)

    def test_resuming_what_is_not_paused_changes_nothing(self):
        story = begun()
        story.request(Resume(), at=0.3)
        assert not story.state.slot_is_due(moment(0.3))

    def test_new_terms_are_decided_on_at_once(self):
        story = begun()
        story.request(Amend(deadline=moment(20), budget=7.0), at=0.5)
        assert story.state.job.deadline == 20
        assert story.state.deadline_at == moment(20)
        assert story.state.slot_is_due(moment(0.5))
        assert of(story.engine.outstanding(), Limit) == [Limit("job", 7.0)]

    def test_a_deadline_cannot_be_moved_into_the_past(self):
        story = Story()
        for slot in range(4):
            story.slot(slot + 0.02)
        story.request(Amend(deadline=moment(-3)), at=3.5)
        assert story.state.job.deadline == 4

    @pytest.mark.parametrize(
        "terms",
        [
            Amend(deadline=moment(1e7)),
            Amend(budget=-1.0),
            Amend(deadline=math.inf),
            Amend(budget=math.nan),
        ],
    )
    def test_terms_that_no_job_can_have_change_nothing(self, terms):
        """They should not come so far; but a journal that cannot be read again is worse."""
        story = begun(budget=30.0)
        before = story.state.job
        story.request(terms, at=0.5)
        assert story.state.job == before

    def test_changing_the_terms_often_is_no_standstill(self):
        story = begun()
        for count in range(3 * STALL_SLOTS):
            at = 0.1 + count / 100
            story.request(Amend(deadline=moment(12 + count % 2)), at=at)
            story.slot(at)
        assert story.state.status is Status.RUNNING


class TestProgress:
    def test_finishing_is_dated_when_the_workers_did(self):
        story = begun()
        story.report(*(story.node(n, RELEASED, at=0.8) for n in story.state.nodes), at=0.8)
        story.steps(120, at=0.7, phase=Phase.FINISHED, output="out")
        ended = story.engine.end(moment(3.0))
        assert ended.status is Status.SUCCEEDED
        assert ended.finished_at == moment(0.7)
        assert ended.value == 60.0
        assert ended.output == "out"

    def test_late_is_worth_less(self):
        story = begun()
        story.report(*(story.node(n, RELEASED, at=0.8) for n in story.state.nodes), at=0.8)
        story.steps(120, at=14.5, phase=Phase.FINISHED)
        assert story.engine.end(moment(15)).value == pytest.approx(60 * (1 - 3 / 6))

    def test_what_is_final_stays(self):
        """A straggler that still says "training" takes nothing back."""
        story = begun()
        story.steps(120, at=0.7, phase=Phase.FINISHED, output="out")
        story.steps(118, at=0.9)
        story.report(*(story.node(n, RELEASED, at=0.9) for n in story.state.nodes), at=0.9)
        ended = story.engine.end(moment(1))
        assert (ended.finished_at, ended.output) == (moment(0.7), "out")
        assert story.state.lost_steps == 0

    def test_steps_that_had_to_be_done_again_are_counted(self):
        story = begun()
        for step, at in ((10, 0.3), (7, 0.4), (12, 0.6), (11, 0.8)):
            story.steps(step, at=at)
        assert story.state.lost_steps == 4
        assert story.state.progress.step == 11

    def test_a_command_that_cannot_work_fails_the_job(self):
        story = begun()
        first = next(iter(story.state.nodes))
        story.report(story.node(first, RELEASED, at=0.3, end=NodeEnd.HOPELESS), at=0.3)
        assert story.state.ending.status is Status.FAILED
        assert "logs" in story.state.reason

    def test_an_own_command_that_is_done_ends_the_job_whatever_the_fleet_calls_it(self):
        story = begun(task=Task(folder="folder", command=("train",)))
        first = next(iter(story.state.nodes))
        done = story.node(first, RELEASED, at=0.3, end=NodeEnd.FINISHED, reason="container exited")
        story.report(done, at=0.3)
        assert story.state.ending.status is Status.SUCCEEDED

    def test_training_of_our_own_is_done_by_its_report_alone(self):
        story = begun()
        first = next(iter(story.state.nodes))
        story.report(story.node(first, RELEASED, at=0.3, end=NodeEnd.FINISHED), at=0.3)
        assert story.state.ending is None

    def test_failed_training_fails_the_job_with_its_message(self):
        story = begun()
        story.steps(3, at=0.3, phase=Phase.FAILED, message="no such model")
        assert story.state.ending.status is Status.FAILED
        assert story.state.reason == "no such model"

    def test_no_step_in_several_slots_fails_the_job(self):
        story = begun()
        for slot in range(1, STALL_SLOTS):
            assert story.slot(slot + 0.02) is not None
        assert story.slot(STALL_SLOTS + 0.02) is None
        assert story.state.ending.status is Status.FAILED
        assert "no step" in story.state.reason

    def test_one_step_is_enough_to_go_on(self):
        story = begun()
        for slot in range(1, 3 * STALL_SLOTS):
            if slot % (STALL_SLOTS - 1) == 0:
                story.steps(slot, at=slot)
            assert story.slot(slot + 0.02) is not None

    def test_waiting_for_a_node_is_no_standstill(self):
        story = Story()
        for slot in range(11):
            assert story.slot(slot + 0.02) is not None
            story.ask(slot + 0.02)

    def test_a_pause_is_no_standstill(self):
        story = begun()
        story.request(Pause(), at=0.3)
        story.ask(0.3)
        story.report(*(story.node(n, RELEASED, at=0.3) for n in story.state.nodes), at=0.3)
        for slot in range(1, 11):
            assert story.slot(slot + 0.02) is not None


class TestEnds:
    def test_the_hard_deadline_fails_the_job(self):
        story = Story(deadline=4)
        for slot in range(6):
            assert story.slot(slot + 0.02) is not None
        assert story.slot(6.02) is None
        assert story.engine.end(moment(6.02)).reason.startswith("the hard deadline has passed")

    def test_max_duration_ends_a_job_in_the_middle_of_a_slot(self):
        story = begun(stop_at=2.4)
        story.slot(1.02)
        story.slot(2.02)
        assert not story.state.slot_is_due(moment(2.39))
        assert story.state.slot_is_due(moment(2.4))
        assert story.slot(2.4) is None
        assert story.state.reason.startswith("max_duration has passed")
        assert not story.state.slot_is_due(moment(2.5))

    def test_there_is_no_end_while_a_node_is_asked_for(self):
        story = Story()
        story.slot(0.02)
        story.ask(0.02)
        story.request(Cancel(), at=0.03)
        story.ask(0.03)
        assert story.engine.end(moment(0.03)) is None

    def test_spent_is_the_sum_of_all_bills(self):
        story = begun()
        for number, name in enumerate(list(story.state.nodes)):
            story.report(story.node(name, RELEASED, at=0.5, billed=0.1 + number / 10), at=0.5)
        assert story.state.spent == math.fsum([0.1, 0.2, 0.1 + 2 / 10, 0.1 + 3 / 10])


class TestDeciding:
    def test_the_budget_is_a_hard_cap(self):
        story = Story(budget=0.7)
        assert story.slot(0.02, price=0.3).allocation == Allocation(spot=2)

    def test_the_curve_follows_what_was_measured(self):
        story = Story(policy="on_demand", steps=60, deadline=10)
        decided = story.slot(0.02).allocation
        assert decided == Allocation(on_demand=3)
        slow = story.observed(1.02, pace={3: 4.0})
        story.tell(slow)
        assert story.engine.view(slow).job.throughput[3] == 4.0
        assert story.engine.view(slow).job.throughput[1] == pytest.approx(4.0 / 3)
        assert story.engine.decide(slow).allocation.total == 4

    def test_spot_above_the_jobs_own_price_is_not_there(self):
        """The fleet would refuse it, slot after slot, while the deadline comes nearer."""
        story = Story(max_price=1.0)
        assert story.slot(0.02, price=0.5).allocation == Allocation(spot=4)
        view = story.engine.view(story.observed(1.02, price=0.55))
        assert view.market.available == 0
        assert view.forecast.available.max() == 0
        assert story.slot(1.02, price=0.55).allocation.spot == 0

    def test_deciding_changes_nothing(self):
        story = Story(policy="ahap")
        observed = story.observed(0.02)
        story.tell(observed)
        assert story.engine.decide(observed) == story.engine.decide(observed)

    def test_a_slot_is_due_when_it_begins_and_only_once(self):
        story = Story()
        assert story.state.slot_is_due(moment(0))
        story.slot(0.02)
        assert not story.state.slot_is_due(moment(0.99))
        assert story.state.slot_is_due(moment(1))
        assert story.state.slot_at(moment(1) - 1e-7) == 2
        assert story.state.slot_at(moment(0) - SLOT_S) == 1


def test_a_clock_that_jumps_by_millions_of_slots_ends_the_job_and_fills_no_memory():
    story = begun()
    story.slot(5e6)
    assert story.state.ending.reason.startswith("the hard deadline has passed")
    assert len(story.state.watched.prices) == MAX_SLOTS
    market = market_lived([Recorded(at, each) for at, each in enumerate(story.events, 1)])
    assert market.slots == MAX_SLOTS


class TestBadNodes:
    """A node that failed the job: killed workers or a full disk."""

    def crashed(self, story, at):
        """All nodes of the job fail at ``at``; returns when the next ones are asked for."""
        story.run_all(at)
        nodes = [
            story.node(node.id, NodeState.RELEASED, at=at, since=at, end=NodeEnd.CRASHED)
            for node in story.state.alive()
        ]
        story.report(*nodes, at=at)
        return next(tenth / 100 for tenth in range(int(100 * at), 2000) if story.ask(tenth / 100))

    def test_the_next_node_is_asked_for_later_and_later_until_a_step_is_done(self):
        story = Story(deadline=40)
        story.slot(0.02)
        story.ask(0.02)
        waits, now = [], 0.1
        for _ in range(3):
            asked = self.crashed(story, now)
            waits.append(round(asked - now, 2))
            now = asked
        assert waits == [0.05, 0.1, 0.2]
        story.run_all(now)
        story.slot(1.02)
        story.steps(1, at=1.05)
        assert round(self.crashed(story, 1.1) - 1.1, 2) == 0.05

    def test_it_is_no_stall_and_no_failure_however_long_it_lasts(self):
        story = Story(deadline=40)
        for slot in range(12):
            story.slot(slot + 0.02)
            story.ask(slot + 0.02)
            self.crashed(story, slot + 0.1)
            assert story.state.status is Status.RUNNING
        assert story.state.stalled_slots == 0
