"""Jobs that their policy gives up: said at once, with the terms that would save them."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from duetune.core.events import Amend, Doubt, Status
from duetune.registry.policies import policy_named
from duetune.simulate.journal_replay import redecided
from duetune.testing import market_of
from support.harness import SLOT_S, Room
from support.invariants import check_over
from support.stories import Story, moment

NO_SPOT = market_of([0.3] * 60, [0] * 60)
PLENTY = market_of([0.3] * 60, [4] * 60)


def late(policy="ahap", **terms):
    """A job that even all GPUs on demand cannot finish in time, and whose value is lost with it."""
    story = Story(policy=policy, steps=120, deadline=12, hard_deadline_factor=1.0, **terms)
    return story, story.slot(8.02, available=0)


class TestWhatIsSaid:
    def test_a_job_that_is_late_says_so_with_the_deadline_that_would_save_it(self):
        story, decided = late()
        assert decided.allocation.total == 0
        lost = story.state.given_up
        assert lost is not None
        assert lost.because is Doubt.LATE
        # 120 steps at 12 a slot, one resize, from the slot after the present one on
        assert lost.deadline == moment(9 + 11)
        assert lost.text("in 10h").startswith("given up, believed late")
        assert "a deadline in 10h or later" in lost.text("in 10h")

    def test_a_job_that_is_worth_less_than_it_costs_says_so_with_the_value(self):
        story = Story(policy="rubato", value=1.0)
        assert story.slot(0.02).allocation.total == 0
        lost = story.state.given_up
        assert lost.because is Doubt.WORTHLESS
        assert lost.deadline is None
        assert lost.value == pytest.approx(1.1 * 11 * 4)
        story.request(Amend(value=lost.value), at=0.1)
        assert story.slot(0.1).allocation.total > 0
        assert story.state.given_up is None

    def test_an_amended_value_outlives_a_new_measurement(self):
        story = Story(policy="on_demand", value=60.0)
        story.request(Amend(value=90.0), at=0.01)
        story.slot(0.02, pace={1: 2.0})
        assert story.state.job.value == 90.0

    def test_a_budget_that_is_used_up_says_so_with_the_budget_that_would_do(self):
        story = Story(policy="maximal_spot", budget=0.2)
        assert story.slot(0.02).allocation.total == 0
        assert story.state.given_up.because is Doubt.BUDGET
        assert story.state.given_up.budget == pytest.approx(11 * 4)
        assert "the budget is used up" in story.state.given_up.text("")

    def test_a_job_that_only_waits_for_spot_is_not_given_up(self):
        story = Story(policy="maximal_spot")
        assert story.slot(0.02, available=0).allocation.total == 0
        assert story.state.given_up is None

    def test_a_job_for_spot_only_names_the_price_of_on_demand(self):
        story = Story(policy="spot_only", max_price=1.0)
        story.slot(5.02, available=0)
        assert story.state.given_up.because is Doubt.SPOT_ONLY
        assert story.state.given_up.max_price == 2.0  # a dollar for half an hour

    def test_a_job_with_gpus_again_is_not_given_up_any_more(self):
        story, _ = late()
        story.request(Amend(deadline=story.state.given_up.deadline), at=8.1)
        assert story.slot(8.1).allocation.total > 0
        assert story.state.given_up is None


class TestMeasuringAgain:
    """A measurement that was noisy must not cost the job."""

    def doubtful(self, **facts):
        story = Story(policy="ahap", steps=60, deadline=12, hard_deadline_factor=1.0)
        story.slot(0.02, available=4)
        story.ask(0.02)
        story.run_all(0.05)
        story.steps(20, at=3)
        # On a busy machine four GPUs were six times slower than they are.
        return story, story.slot(4.02, available=0, pace={4: 2.0}, **facts)

    def test_the_pace_is_measured_on_one_gpu_before_the_job_is_given_up(self):
        story, decided = self.doubtful()
        assert decided.probing
        assert decided.allocation.total == 1
        assert decided.reason.startswith("measuring the pace again with 1 GPU before")
        assert story.state.given_up is None

    def test_a_good_measurement_corrects_the_bad_one_and_saves_the_job(self):
        story, _ = self.doubtful()
        story.steps(22, at=4.9)
        decided = story.slot(5.02, available=0, pace={1: 3.0})
        assert story.state.job.throughput[4] == pytest.approx(12.0)
        assert not decided.probing
        assert story.state.given_up is None
        assert story.state.probe_since == 0 or decided.allocation.total == 0

    def test_a_bad_measurement_is_believed_then(self):
        story, _ = self.doubtful()
        story.steps(21, at=4.9)
        decided = story.slot(5.02, available=0, pace={1: 0.5})
        assert decided.allocation.total == 0
        assert story.state.given_up.because is Doubt.LATE
        assert not story.slot(6.02, available=0, pace={1: 0.5}).probing

    def test_it_ends_after_some_slots_without_a_step(self):
        story, _ = self.doubtful()
        probes = [story.slot(slot + 0.02, available=0, pace={4: 2.0}).probing for slot in (5, 6, 7)]
        assert probes == [True, True, False]
        assert story.state.given_up is not None

    def test_a_job_that_twice_the_pace_would_not_save_is_given_up_at_once(self):
        story = Story(policy="ahap", steps=120, deadline=12, hard_deadline_factor=1.0)
        assert not story.slot(10.02, available=0, pace={4: 12.0}).probing
        assert story.state.given_up is not None


class TestSoftDeadlines:
    def soft(self, room, **options):
        event = room.submission(**options)
        event = replace(event, soft=True, value_given=False)
        room.journal.append("job", [event], expected=0)
        room.training.add("job", event.job, round(event.job.work))
        room.budgets["job"] = [event.job.budget]

    @pytest.mark.parametrize(
        "policy", ["ahap", "ahanp", "maximal_spot", "on_demand", "uniform_progress", "rubato"]
    )
    def test_a_job_that_is_three_times_slower_finishes_late_at_the_least_cost(self, policy):
        room = Room(PLENTY, pace=0.3)
        self.soft(room, policy=policy, steps=100, deadline=10, value=90.0)
        room.run(slots=60)
        check_over(room)
        assert room.status() is Status.SUCCEEDED
        assert room.state().slot > 15, "after what would be the hard deadline"
        kinds = [node.kind.value for node in room.fleet.observe("job").nodes]
        late_on = [each for each in room.decisions() if each.slot > 12]
        assert any("finishing at the least cost" in each.reason for each in late_on)
        assert "spot" in kinds or policy == "on_demand"
        assert room.ended().value == pytest.approx(90.0 / 0.3)

    def test_without_spot_on_demand_finishes_it_soon_enough(self):
        room = Room(NO_SPOT, pace=0.3)
        self.soft(room, policy="rubato", steps=100, deadline=10, value=90.0)
        room.run(slots=100)
        assert room.status() is Status.SUCCEEDED
        assert room.state().slot < 80

    def test_it_waits_for_a_larger_budget_and_pays_nothing_meanwhile(self):
        room = Room(PLENTY, pace=0.3)
        self.soft(room, policy="ahap", steps=100, deadline=10, value=90.0, budget=5.0)
        room.run(slots=60)
        assert room.status() is Status.RUNNING
        assert room.state().given_up.because is Doubt.BUDGET
        assert 4 < room.bill() <= 5
        assert room.fleet.alive("job") == []
        room.budgets["job"].append(200.0)
        room.ask(Amend(budget=200.0))
        room.run(slots=60)
        check_over(room)
        assert room.status() is Status.SUCCEEDED

    def test_its_decisions_come_again_from_the_journal(self):
        room = Room(PLENTY, pace=0.3)
        self.soft(room, policy="ahap", steps=100, deadline=10, value=90.0)
        room.run(slots=60)
        assert all(each.same for each in redecided(room.journal.read("job"), policy_named))

    def test_max_duration_is_kept(self):
        room = Room(PLENTY, pace=0.3)
        stop_at = room.clock.now() + 14 * SLOT_S
        self.soft(room, policy="ahap", steps=200, deadline=10, value=90.0, stop_at=stop_at)
        room.run(slots=60)
        assert room.ended().reason.startswith("max_duration has passed")
        assert any(each.given_up is not None for each in room.decisions())
