from __future__ import annotations

import itertools
from datetime import timedelta

import msgspec
import pytest

from duetune.core.job import ReconfigurationKey
from duetune.core.physics import job_physics
from duetune.errors import InvalidInput
from duetune.jobs.configure import configure
from duetune.jobs.spec.values import parse_duration
from duetune.jobs.step_time import Basis
from duetune.jobs.terms import job_terms
from duetune.policies.baselines import OnDemandOnly
from duetune.simulate.episode import simulate
from duetune.testing.small_markets import constant_market
from support.quoted import HOUR, ORIGIN, SITE, market_at, spec_with, terms_of


def test_a_job_is_steps_and_slots():
    terms = terms_of(spec_with())
    job = terms.job
    assert job.work == pytest.approx(1.02 * 200 + 1)
    assert job.deadline == 16
    assert job.hard_deadline == 24
    assert job.max_gpus == 4
    assert terms.origin == ORIGIN
    assert terms.deadline_at == ORIGIN + 8 * HOUR
    assert terms.slot_s == 1800.0
    # Four microbatches a step, of 9 s each, and little else: fifty steps in half an hour.
    assert job.throughput[1] == pytest.approx(1800 / (4 * 9.0), rel=0.02)
    assert job.throughput[4] == pytest.approx(4 * job.throughput[1], rel=0.02)


def test_the_speed_of_time_shortens_slots_for_workers_only():
    slow, quick = terms_of(spec_with()), terms_of(spec_with(), site=fast())
    assert quick.job.deadline == slow.job.deadline
    assert quick.job.throughput[1] == pytest.approx(slow.job.throughput[1] / 2)


def fast():
    return msgspec.structs.replace(SITE, speed=2.0)


def test_delays_are_shares_of_a_slot_in_market_time():
    rule = terms_of(spec_with(), site=fast()).job.reconfiguration
    assert rule.key is ReconfigurationKey.COMPOSITION
    assert rule.grow == pytest.approx(1 - 2 * SITE.grow_s / 1800)
    assert rule.shrink == pytest.approx(1 - 2 * SITE.shrink_s / 1800)
    assert rule.preempted == pytest.approx(1 - 2 * SITE.preempted_s / 1800)


def test_time_that_is_too_fast_for_the_slots_is_refused():
    with pytest.raises(InvalidInput, match=r"^speed.*below 900"):
        terms_of(spec_with(), site=msgspec.structs.replace(SITE, speed=1000.0))


def test_the_present_slot_is_the_first_and_a_deadline_is_cut_to_whole_slots():
    spec = spec_with(deadline="8h20m")
    assert terms_of(spec).job.deadline == 16
    # Ten minutes in, the deadline is exactly at the end of a slot.
    assert terms_of(spec, market_at(gone_s=600)).job.deadline == 17


def test_what_has_gone_of_the_first_slot_is_made_up_for_where_the_cut_leaves_no_room():
    spec = spec_with(deadline="8h")
    whole = terms_of(spec, market_at(gone_s=900))
    # The deadline is half a slot after slot 16, as much as has gone of slot 1.
    assert whole.job.work == terms_of(spec).job.work
    assert whole.late_s == 900
    cut = terms_of(spec_with(deadline="7h45m"), market_at(gone_s=900))
    assert cut.job.deadline == 16
    assert cut.job.work > whole.job.work
    assert cut.late_s == 0


def test_a_hard_deadline_has_no_use_for_a_part_of_a_slot():
    hard = terms_of(spec_with(deadline="8h", hard_deadline=True), market_at(gone_s=900))
    assert hard.job.deadline == hard.job.hard_deadline == 16
    assert hard.job.work > terms_of(spec_with(deadline="8h"), market_at(gone_s=900)).job.work
    assert hard.late_s == 0


def test_what_is_not_told_of_its_value_is_three_times_its_cost_on_demand():
    terms = terms_of(spec_with())
    trace = constant_market(terms.job.hard_deadline, available=0, on_demand_price=1.5)
    outcome = simulate(terms.job, trace, OnDemandOnly())
    assert outcome.on_time
    assert terms.job.value == pytest.approx(3 * outcome.cost)
    assert terms_of(spec_with(value=12)).job.value == 12


def test_other_terms_are_passed_on():
    terms = terms_of(spec_with(budget=20, max_price=9, max_duration="9h", name="mine"))
    assert terms.job.budget == 20
    assert terms.job.name == "mine"
    assert terms.max_price == 9
    assert terms.stop_at == ORIGIN + 9 * HOUR
    assert terms.job.hard_deadline == 18
    assert terms_of(spec_with()).stop_at is None


def test_a_job_that_is_stopped_before_its_deadline_must_be_done_by_then():
    terms = terms_of(spec_with(max_duration="3h"))
    assert terms.job.deadline == terms.job.hard_deadline == 6
    with pytest.raises(InvalidInput, match=r"^max_duration.*at least"):
        terms_of(spec_with(max_duration="30m"))


@pytest.mark.parametrize(
    ("fields", "policy"),
    [
        ({}, None),
        ({"policy": "ahanp"}, None),
        ({"resources": {"spot": "never"}}, "on_demand"),
        ({"resources": {"spot": "only"}}, "spot_only"),
        ({"max_price": 2.5}, "spot_only"),
        ({"max_price": 3.0}, None),
        ({"resources": {"spot": "never"}, "policy": "on_demand"}, "on_demand"),
    ],
)
def test_what_the_spec_leaves_of_the_policies(fields, policy):
    terms = terms_of(spec_with(**fields))
    assert terms.policy == policy
    assert bool(terms.policy_reason) == (policy is not None)


def test_a_policy_that_the_spec_rules_out_is_refused():
    with pytest.raises(InvalidInput, match=r"^policy.*resources\.spot is never"):
        terms_of(spec_with(resources={"spot": "never"}, policy="ahap"))


def test_a_deadline_within_the_present_slot_is_refused():
    with pytest.raises(InvalidInput, match=r"^deadline: '10m'.*one slot takes 30m"):
        terms_of(spec_with(deadline="10m"))


def test_a_deadline_beyond_all_slots_is_refused():
    with pytest.raises(InvalidInput, match=r"^deadline.*at most"):
        terms_of(spec_with(deadline="365d"))


@pytest.mark.parametrize("gone_s", [0.0, 1.0, 420.0, 899.0, 1700.0])
@pytest.mark.parametrize("steps", [250, 333, 1000])
@pytest.mark.parametrize("startup_s", [0.0, 2.0, 600.0])
def test_an_impossible_deadline_is_refused_with_the_earliest_that_is_possible(
    gone_s, steps, startup_s
):
    site = msgspec.structs.replace(SITE, startup_s=startup_s)
    market = market_at(gone_s)
    with pytest.raises(InvalidInput, match=r"^deadline") as caught:
        terms_of(spec_with(deadline="35m", training={"max_steps": 2000}), market, site)
    assert "all 4 GPUs need that long on demand" in caught.value.allowed
    with pytest.raises(InvalidInput, match=r"^deadline") as caught:
        terms_of(spec_with(deadline="31m", training={"max_steps": steps}), market, site)
    enough = parse_duration(caught.value.allowed.split()[2].rstrip(":"))
    terms = terms_of(spec_with(deadline=enough, training={"max_steps": steps}), market, site)
    sooner = enough - timedelta(seconds=1801)
    with pytest.raises(InvalidInput, match=r"^deadline"):
        terms_of(spec_with(deadline=sooner, training={"max_steps": steps}), market, site)
    physics = job_physics(terms.job)
    assert physics.reach[terms.job.deadline, 0] >= terms.job.work - physics.tolerance


def test_a_moment_is_answered_with_a_moment():
    spec = spec_with(deadline="2027-01-15T08:31Z", training={"max_steps": 2000})
    now = spec.deadline_at(0.0) - 1800
    market = msgspec.structs.replace(market_at(), at=now, slot_began=now)
    with pytest.raises(InvalidInput, match=r"^deadline.*2027-01-15T\d\d:\d\d:00\+00:00 or later"):
        terms_of(spec, market)


def test_a_step_that_more_gpus_do_not_speed_up_is_level_in_the_curve():
    spec = spec_with(
        resources={"accelerators": "auto:1..4"},
        training={
            "max_steps": 50,
            "gradient_accumulation_steps": 8,
            "per_device_train_batch_size": 1,
        },
    )
    curve = terms_of(spec).job.throughput
    assert all(more >= fewer for fewer, more in itertools.pairwise(curve))


def test_only_an_estimated_speed_may_be_slower():
    spec = spec_with()
    assert terms_of(spec).slowdown == 1.0, "emulated"
    unmeasured = msgspec.structs.replace(SITE, emulated_microbatch_s=None)
    short = spec_with(training={"max_steps": 2})
    assert terms_of(short, site=unmeasured).slowdown == 4.0, "a rule of thumb"
    command = spec_with(run="python train.py", model=None, dataset=None)
    assert terms_of(command).slowdown == 4.0, "assumed"
    plan = configure(spec, SITE)
    uncertain = msgspec.structs.replace(
        plan, basis=Basis.KNOWLEDGE, step_s_slow=tuple(1.5 * each for each in plan.step_s)
    )
    terms = job_terms(spec, uncertain, SITE, market_at(), ORIGIN)
    assert terms.slowdown == pytest.approx(1.5)
