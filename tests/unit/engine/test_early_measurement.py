"""A pace that was only estimated is measured while there is still slack."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from duetune.core.events import Status
from duetune.core.job import linear_throughput
from duetune.registry.policies import policy_named
from duetune.simulate.journal_replay import redecided
from duetune.testing import market_of
from support.harness import Room
from support.invariants import check_over
from support.stories import Story

DEADLINE = 20
SPELLS = {
    "no spot": [0] * 60,
    "spot": [4] * 60,
    "spot later": [0] * 9 + [4] * 3 + [0] * 48,
    "little spot": [1, 0, 0] * 20,
}
POLICIES = ("rubato", "ahap", "ahanp", "maximal_spot", "uniform_progress")


def finished(policy, counts, *, pace, steps, slowdown=4.0):
    """A job that is ``pace`` times as fast as estimated, played to its end."""
    room = Room(market_of([0.3] * len(counts), counts), pace=pace)
    event = room.submission(
        policy=policy,
        steps=1.02 * steps + 1,  # as the terms of a live job
        deadline=DEADLINE,
        value=900.0,
        throughput=linear_throughput(4, slope=30.0),
    )
    event = replace(event, slowdown=slowdown)
    room.journal.append("job", [event], expected=0)
    room.training.add("job", event.job, steps)
    room.budgets["job"] = [None]
    room.run(slots=50)
    check_over(room)
    return room


def in_time(room):
    return room.status() is Status.SUCCEEDED and room.ended().finished_at <= room.state().moment(
        DEADLINE
    )


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("factor", [2, 4])
@pytest.mark.parametrize("spell", ["no spot", "spot later"])
def test_a_job_that_is_slower_than_estimated_meets_its_deadline(policy, factor, spell):
    # Four GPUs need 15 of the 20 slots at the true speed.
    steps = 15 * 120 // factor
    assert in_time(finished(policy, SPELLS[spell], pace=1 / factor, steps=steps))


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("spell", SPELLS)
def test_a_right_estimate_costs_at_most_a_slot_of_one_gpu_more(policy, spell):
    estimated = finished(policy, SPELLS[spell], pace=1.0, steps=600)
    measured = finished(policy, SPELLS[spell], pace=1.0, steps=600, slowdown=1.0)
    assert in_time(estimated)
    assert estimated.bill() <= measured.bill() + 1.0 + 1e-9
    assert all(each.same for each in redecided(estimated.journal.read("job"), policy_named))


@settings(max_examples=25, deadline=None)
@given(
    policy=st.sampled_from(POLICIES),
    factor=st.floats(0.25, 4),
    load=st.floats(0.1, 0.8),
    counts=st.lists(st.sampled_from([0, 0, 0, 1, 4]), min_size=10, max_size=10),
)
def test_any_wrong_estimate_is_found_out_in_time(policy, factor, load, counts):
    steps = max(1, int(load * DEADLINE * 120 / factor))
    assert in_time(finished(policy, counts * 6, pace=1 / factor, steps=steps))


class TestOneSlot:
    def story(self, **options):
        story = Story(policy="maximal_spot", steps=60, deadline=30, **options)
        story.state.submitted = replace(story.state.submitted, slowdown=4.0)
        return story

    def test_it_waits_for_spot_while_the_slowest_pace_leaves_slack(self):
        story = self.story()
        # 60 steps at 3 a slot take 21 slots on demand; 2 slots are kept to measure.
        held = {slot: story.slot(slot + 0.02, available=0).allocation.total for slot in range(9)}
        first = next(slot for slot, gpus in held.items() if gpus)
        assert 5 <= first <= 7
        assert story.state.reason == "holds 1 GPU to measure the speed, which was only estimated"

    def test_a_measured_pace_is_not_measured_early(self):
        story = self.story()
        decided = story.slot(8.02, available=0, pace={1: 3.0})
        assert decided.allocation.total == 0
        assert not decided.probing

    def test_spot_that_the_policy_would_not_buy_is_used_at_once(self):
        story = Story(policy="ahanp", steps=60, deadline=60, value=900.0)
        story.state.submitted = replace(story.state.submitted, slowdown=4.0)
        decided = story.slot(0.02, price=0.99, available=4)
        assert decided.allocation.total >= 1

    def test_a_job_that_may_not_use_on_demand_waits(self):
        story = self.story(max_price=1.0)
        assert story.slot(20.02, available=0).allocation.total == 0
