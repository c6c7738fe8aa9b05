"""A live journal, played again by the simulator: the same decisions, and what might have been."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from duetune.control.crash_points import CrashPlan
from duetune.core.events import (
    Amend,
    Cancel,
    Decided,
    Observed,
    Pause,
    Recorded,
    Reported,
    Resume,
)
from duetune.core.physics import value_of_finishing
from duetune.core.progress import Phase
from duetune.errors import InvalidInput
from duetune.registry.policies import policy_named
from duetune.simulate.journal_replay import (
    alternatives,
    counterfactual_utilities,
    job_lived,
    market_lived,
    redecided,
    state_of,
)
from duetune.store.codec import decode_event, encode_event
from duetune.testing import constant_market, market_of, random_market
from support.harness import SLOT_S, Room

POLICIES = (
    "ahap",
    "ahanp",
    "maximal_spot",
    "on_demand",
    "uniform_progress",
    "maximal_spot:thrifty",
)


def lived(trace=None, *, pace=1.0, script=(), **options):
    room = Room(trace, pace=pace, poll_s=300.0)
    room.submit(**options)
    for at, request in script:
        room.at(at, lambda request=request: room.ask(request(room)))
    room.run(slots=60)
    return room, room.journal.read("job")


EVENTFUL = (
    (1.3, lambda _: Pause()),
    (2.1, lambda _: Resume()),
    (3.4, lambda room: Amend(deadline=room.began + 14 * SLOT_S, budget=40.0)),
)


@pytest.mark.parametrize("policy", ["ahap", "ahanp", "maximal_spot", "on_demand"])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_every_decision_comes_out_again(policy, seed):
    for pace in (1.0, 0.6):
        _, story = lived(random_market(seed), policy=policy, pace=pace, script=EVENTFUL)
        again = redecided(story, policy_named)
        assert len(again) > 5
        assert len(again) == sum(isinstance(each.event, Decided) for each in story)
        assert all(each.same for each in again)
        assert all(each.recorded == each.again for each in again)


def test_every_decision_comes_out_again_after_crashes():
    room = Room(random_market(5), poll_s=300.0)
    room.submit()
    room.survive(*(CrashPlan("journal.append:after", 5) for _ in range(8)))
    assert all(each.same for each in redecided(room.journal.read("job"), policy_named))


def test_a_decision_that_was_tampered_with_is_noticed():
    _, story = lived()
    place = next(i for i, each in enumerate(story) if isinstance(each.event, Decided))
    event = story[place].event
    wrong = msgspec.structs.replace(event.allocation, spot=event.allocation.spot + 1)
    story[place] = Recorded(place + 1, msgspec.structs.replace(event, allocation=wrong))
    assert [each.same for each in redecided(story, policy_named)].count(False) == 1


def test_another_policy_decides_otherwise():
    _, story = lived(policy="maximal_spot")
    again = redecided(story, lambda _: policy_named("on_demand"))
    assert not all(each.same for each in again)


def test_the_state_is_the_same_from_writing():
    room, story = lived(script=EVENTFUL)
    assert state_of(story, stream="job") == room.state()
    copied = [
        Recorded(
            each.position,
            decode_event(encode_event(each.event).body, schema=1, stream="job", position=1),
        )
        for each in story
    ]
    assert copied == story


def test_the_market_lived_is_the_market_there_was():
    trace = random_market(4)
    room, story = lived(trace)
    market = market_lived(story)
    slots = room.state().slot
    assert market.slots == slots
    assert np.array_equal(market.spot_price[0], trace.spot_price[0, :slots])
    assert np.array_equal(market.available[0], trace.available[0, :slots])
    assert market_lived(story, slots=slots + 5).slots == slots + 5


def test_slots_in_which_nobody_looked_are_like_the_one_before():
    trace = random_market(6)
    room = Room(trace)
    room.submit(steps=100)
    room.run(slots=1.9)
    room.dead(3.0)
    room.run()
    market = market_lived(room.journal.read("job"))
    seen = [event.slot for event in room.events(kind=Observed)]
    assert {3, 4} & set(seen) == set()
    assert market.spot_price[0, 3] == market.spot_price[0, 1] == trace.spot_price[0, 1]
    assert market.spot_price[0, 5] == trace.spot_price[0, 5]


def test_spot_above_the_jobs_price_was_not_there_for_it():
    _, story = lived(market_of([0.3, 0.9, 0.3, 0.9] * 10, [4] * 40), max_price=1.0)
    assert market_lived(story).available[0, :4].tolist() == [4, 0, 4, 0]


def test_a_job_that_saw_no_slot_has_no_market():
    room = Room()
    room.submit()
    room.ask(Cancel())
    room.run()
    with pytest.raises(InvalidInput):
        market_lived(room.journal.read("job"))
    with pytest.raises(InvalidInput):
        market_lived([])


def test_the_job_lived_has_its_last_terms_and_its_measured_throughput():
    room, story = lived(constant_market(), pace=0.5, script=EVENTFUL[2:])
    job = job_lived(story)
    assert job.deadline == 14
    assert job.budget == 40.0
    assert job.throughput[2] == pytest.approx(3.0)
    assert job.work == room.state().job.work


@pytest.mark.parametrize("terms", [{"steps": 60}, {"steps": 101}])
def test_the_optimum_is_the_best_that_could_have_been(terms):
    """Also billed by the second, as all are here: a plan for whole slots was beaten."""
    for seed in range(6):
        _, story = lived(random_market(seed), value=100.0, pace=0.73 + 0.01 * seed, **terms)
        best, *others = alternatives(story, [policy_named(name) for name in POLICIES])
        assert best.finished is not None
        for other in others:
            assert best.utility >= other.utility


def test_what_happened_is_no_better_than_the_optimum_and_near_its_own_simulation():
    """On a market that does not move, with whole slots, live and simulated must agree."""
    room, story = lived(
        constant_market(spot_price=0.3, available=4), policy="maximal_spot", steps=59
    )
    best, again = alternatives(story, [policy_named("maximal_spot")])
    ended = room.ended()
    assert ended.cost == pytest.approx(again.cost, rel=0.1)
    assert value_of_finishing(room.state().job, again.finished) == ended.value
    assert best.cost <= again.cost + 1e-9


def test_every_policy_of_the_pool_gets_a_utility():
    _, story = lived(random_market(2))
    pool = [policy_named(name) for name in POLICIES]
    utilities = counterfactual_utilities(story, pool)
    assert len(utilities) == len(pool)
    assert len(set(utilities)) > 1
    assert utilities == counterfactual_utilities(story, pool)


def test_a_job_that_stopped_early_was_less_work_for_all_policies():
    _, story = lived(constant_market())
    planned = job_lived(story)
    shorter = [
        msgspec.structs.replace(
            each,
            event=msgspec.structs.replace(
                each.event,
                progress=msgspec.structs.replace(each.event.progress, step=7, total_steps=7),
            ),
        )
        if isinstance(each.event, Reported)
        and each.event.progress is not None
        and each.event.progress.phase is Phase.FINISHED
        else each
        for each in story
    ]
    assert shorter != story
    assert job_lived(shorter) == msgspec.structs.replace(planned, work=7.0)
