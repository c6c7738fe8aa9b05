from __future__ import annotations

from duetune.policies.ahanp import Ahanp
from duetune.policies.ahap import Ahap
from duetune.policies.baselines import MaximalSpot, OnDemandOnly, UniformProgress
from duetune.policies.guard import CompiledGuard, PolicyGuard, deadline_guard
from duetune.policies.pool import baselines, paper_pool
from duetune.testing import Idle


def test_the_pool_of_the_paper_has_105_planners_and_7_without_forecasts():
    pool = paper_pool()
    assert sum(isinstance(policy, Ahap) for policy in pool) == 105
    assert sum(isinstance(policy, Ahanp) for policy in pool) == 7
    assert len({policy.name for policy in pool}) == 112
    assert len(set(pool)) == 112


def test_the_pool_of_the_paper_spans_its_grid():
    planners = [policy for policy in paper_pool() if isinstance(policy, Ahap)]
    assert {policy.window for policy in planners} == {1, 2, 3, 4, 5}
    assert {(policy.window, policy.commitment) for policy in planners} == {
        (window, commitment) for window in range(1, 6) for commitment in range(1, window + 1)
    }
    assert {policy.threshold for policy in planners} == {0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9}


def test_the_pool_of_the_paper_counts_on_on_demand_alone_beyond_the_window():
    assert {policy.outlook for policy in paper_pool() if isinstance(policy, Ahap)} == {0.0}


def test_the_baselines_are_those_of_the_paper():
    assert [policy.name for policy in baselines()] == [
        "on_demand",
        "maximal_spot",
        "uniform_progress",
    ]


def test_different_policies_have_different_names():
    policies = [
        OnDemandOnly(),
        MaximalSpot(),
        UniformProgress(),
        UniformProgress(gang=True),
        UniformProgress(hysteresis=False),
        Ahanp(threshold=0.3),
        Ahanp(threshold=0.35),
        Ahap(window=3, commitment=2),
        Ahap(window=3, commitment=2, outlook=0.0),
        Ahap(window=3, commitment=2, virtual=True),
        Ahap(window=3, commitment=2, refuse_dear_spot=True),
        Ahap(window=3, commitment=2, refuse_dear_spot=True, virtual=True),
    ]
    policies += [deadline_guard(policy) for policy in policies]
    assert len({policy.name for policy in policies}) == len(policies)


def test_policies_are_values():
    assert Ahap(window=3) == Ahap(window=3)
    assert hash(Ahap(window=3)) == hash(Ahap(window=3))
    assert deadline_guard(Ahanp()) == deadline_guard(Ahanp())


def test_a_guarded_built_in_policy_stays_compiled_and_any_other_is_wrapped():
    assert isinstance(deadline_guard(MaximalSpot()), CompiledGuard)
    assert isinstance(deadline_guard(Idle()), PolicyGuard)
