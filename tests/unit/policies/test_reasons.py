from __future__ import annotations

import pytest

from duetune.core.job import Job, linear_throughput
from duetune.market.forecast.forecast_source import ForecastSource
from duetune.policies.ahanp import Ahanp
from duetune.policies.ahap import Ahap
from duetune.policies.baselines import MaximalSpot, OnDemandOnly, UniformProgress
from duetune.policies.guard import deadline_guard
from duetune.policies.reasons import _rule_words
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
def test_every_rule_has_words(rule):
    words = _rule_words(view_of(job()), rule, 4, 3, 0.5)
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
        words = _rule_words(view_of(job()), rule, wanted, 3, 0.5)
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
    assert "the guard holds 0 spot and 1 on demand:" in words
    assert "slot 10" in words


def test_the_budget_says_what_it_left():
    words = reason(OnDemandOnly(), job(budget=20.0), spent=17.5)
    assert "the budget of $20.00 leaves room for 2 GPUs only" in words


def test_pace_and_price_are_told():
    words = reason(Ahanp(threshold=0.5), slot=3, progress=16.0, spot_price=0.4, available=6)
    assert "4.0 work ahead of the pace" in words
    assert "6 spot at 40%" in words


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
    for claim in ("all the spot", "spot only", "runs on spot"):
        assert claim not in decision.reason
