from __future__ import annotations

import pytest

from duetune.core.job import Job, linear_throughput
from duetune.market.forecast.forecast_source import ForecastSource
from duetune.policies.ahanp import Ahanp
from duetune.policies.ahap import Ahap
from duetune.policies.baselines import MaximalSpot, OnDemandOnly, UniformProgress
from duetune.policies.guard import deadline_guard
from duetune.policies.reasons import _rule_text, allocation_text
from duetune.policies.rules import Rule
from duetune.simulate.episode import simulate
from duetune.testing import constant_market, random_market, view_of

POLICIES = [
    OnDemandOnly(),
    MaximalSpot(),
    UniformProgress(),
    UniformProgress(gang=True),
    Ahanp(threshold=0.5),
    Ahap(window=4, commitment=2, threshold=0.5, outlook=0.5),
]


def job(**fields: object) -> Job:
    defaults = {"work": 40.0, "deadline": 10, "value": 500.0, "throughput": linear_throughput(8)}
    return Job(**{**defaults, **fields})


def reason(policy, wish=None, **slot) -> str:
    return policy.decide(view_of(wish or job(), **slot)).reason


@pytest.mark.parametrize("rule", list(Rule), ids=lambda rule: rule.name)
def test_every_rule_has_a_text(rule):
    words = _rule_text(view_of(job()), rule, 4, 3, 0.5)
    assert len(words.split()) >= 3
    assert "\n" not in words


CAN_WANT_NOTHING = {
    Rule.SPOT_NONE,
    Rule.AHEAD_WAIT,
    Rule.PLAN,
    Rule.OVERTIME,
    Rule.GANG_WAIT,
}


@pytest.mark.parametrize("rule", list(Rule), ids=lambda rule: rule.name)
def test_every_reason_carries_the_numbers_it_was_made_from(rule):
    for wanted in (0, 1, 4) if rule in CAN_WANT_NOTHING else (1, 4):
        words = _rule_text(view_of(job()), rule, wanted, 3, 0.5)
        assert any(letter.isdigit() for letter in words), words


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: policy.name)
def test_every_slot_of_a_run_is_explained(policy):
    for trace in (random_market(4, 20), constant_market(20)):
        for entry in simulate(job(), trace, policy, ForecastSource.parse("last")).entries:
            assert len(entry.reason.split()) >= 3


def test_one_gpu_is_singular():
    wish = Job(work=3.0, deadline=9, value=50, throughput=(0.0, 1.0))
    assert "1 GPU " in reason(OnDemandOnly(), wish) + " "
    assert "1 GPUs" not in reason(OnDemandOnly(), wish)


def test_the_guard_says_what_it_raised():
    # Just on the pace, so it waits; but then 0.9 x 8 in the last slot would not do the 7.5 left.
    tight = job(work=75.0)
    words = reason(deadline_guard(UniformProgress()), tight, slot=9, progress=67.5, available=0)
    assert "the deadline guard holds 1 on-demand: " in words
    assert "slot 10" in words


def test_the_budget_says_what_it_left():
    words = reason(OnDemandOnly(), job(budget=20.0), spent=17.5)
    assert "the budget of $20.00 pays for 2 GPUs only" in words
    words = reason(OnDemandOnly(), job(budget=20.0), spent=20.0)
    assert words.endswith("the budget of $20.00 pays for no GPU")


def test_schedule_and_price_are_named():
    text = reason(Ahanp(threshold=0.5), slot=3, progress=16.0, spot_price=0.4, available=6)
    assert "4.0 work units ahead of schedule" in text
    assert "6 spot at 40% of on-demand" in text


@pytest.mark.parametrize(
    ("policy", "slot"),
    [
        (MaximalSpot(), {}),
        (UniformProgress(), {"slot": 3, "progress": 12.0}),
        (UniformProgress(gang=True), {}),
    ],
    ids=["maximal_spot", "uniform_progress", "gang"],
)
def test_no_reason_says_spot_where_on_demand_is_held(policy, slot):
    decision = policy.decide(view_of(job(), spot_price=1.2, available=6, **slot))
    assert decision.allocation.spot == 0
    for claim in ("all spot", "spot only", "runs on spot"):
        assert claim not in decision.reason


def test_waiting_without_spot_is_said_plainly():
    late = job(work=1000.0, value=1.0)
    words = reason(Ahap(window=4, threshold=0.5), late, slot=3, available=0)
    assert words == "holding no GPU; 200 work units behind schedule, no spot available"


@pytest.mark.parametrize(
    ("pair", "text"),
    [
        ((0, 0), "no GPU"),
        ((1, 0), "1 spot"),
        ((0, 3), "3 on-demand"),
        ((2, 2), "2 spot + 2 on-demand"),
    ],
)
def test_an_allocation_is_written_as_a_sum(pair, text):
    assert allocation_text(*pair) == text
