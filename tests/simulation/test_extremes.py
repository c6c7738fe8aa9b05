"""Jobs and markets at the edge of what is allowed: nothing breaks, and nothing silly is held."""

from __future__ import annotations

import numpy as np
import pytest

from duetune.core.job import Job, Reconfiguration, ReconfigurationKey, linear_throughput
from duetune.core.physics import job_physics
from duetune.market.forecast.forecast_source import ForecastSource
from duetune.policies.ahanp import Ahanp
from duetune.policies.ahap import Ahap
from duetune.policies.baselines import MaximalSpot, OnDemandOnly, UniformProgress
from duetune.policies.guard import deadline_guard
from duetune.policies.solve.dynamic import offline_optimum
from duetune.simulate.cases import Case
from duetune.simulate.episode import simulate
from duetune.simulate.tournament import run_tournament
from duetune.testing import Idle, Restless, constant_market, market_of

LAST = ForecastSource.parse("last")
POLICIES = [
    OnDemandOnly(),
    MaximalSpot(),
    UniformProgress(),
    UniformProgress(gang=True),
    Ahanp(threshold=0.6),
    Ahap(window=5, commitment=2, threshold=0.6),
    Ahap(window=3, commitment=3, threshold=0.6, virtual=True),
    deadline_guard(Idle()),
    deadline_guard(Restless(7)),
]
FREE = Reconfiguration(1.0, 1.0, 1.0)
JOBS = {
    "one GPU": Job(work=5, deadline=8, value=9, throughput=(0.0, 1.0)),
    "one size": Job(work=30, deadline=8, value=60, throughput=linear_throughput(6), min_gpus=6),
    "next to no work": Job(work=0.001, deadline=8, value=9, throughput=linear_throughput(4)),
    "one slot": Job(work=3.0, deadline=1, value=9, throughput=linear_throughput(4)),
    "one slot too short": Job(work=3.7, deadline=1, value=9, throughput=linear_throughput(4)),
    "no loss": Job(
        work=20, deadline=8, value=60, throughput=linear_throughput(4), reconfiguration=FREE
    ),
    "nearly all is lost": Job(
        work=4,
        deadline=8,
        value=60,
        throughput=linear_throughput(4),
        reconfiguration=Reconfiguration(0.01, 0.01, 0.01, ReconfigurationKey.COMPOSITION),
    ),
    "worth nothing": Job(work=8, deadline=8, value=0, throughput=linear_throughput(4)),
    "no budget": Job(work=8, deadline=8, value=60, throughput=linear_throughput(4), budget=0.0),
    "flat curve": Job(work=6, deadline=8, value=60, throughput=(0.0, 1.0, 1.0, 1.0, 1.0)),
    "long grace": Job(
        work=8, deadline=2, value=60, throughput=linear_throughput(1), hard_deadline_factor=8.0
    ),
    "curve with an intercept": Job(
        work=8, deadline=4, value=60, throughput=linear_throughput(4, slope=0.3, intercept=2.1)
    ),
}
MARKETS = {
    "no spot": constant_market(24, available=0),
    "endless spot": constant_market(24, available=10**6),
    "free spot": constant_market(24, spot_price=0.0),
    "spot as dear as on-demand": constant_market(24, spot_price=1.0),
    "spot dearer": constant_market(24, spot_price=50.0),
    "every other slot": market_of([0.3] * 24, [0, 6] * 12),
    "on-demand price moves": market_of([0.5] * 24, [3] * 24, [0.4, 1.0, 3.0] * 8),
}


@pytest.mark.parametrize("market", MARKETS)
@pytest.mark.parametrize("job", JOBS)
def test_every_policy_gets_through(job, market):
    wish, trace = JOBS[job], MARKETS[market]
    best = offline_optimum(wish, trace.window(0, wish.hard_deadline))
    feasible = job_physics(wish).reach[wish.deadline, 0] >= wish.work
    played = run_tournament(POLICIES, [Case(wish, 0, 0)], [trace], LAST, workers=1)
    for column, policy in enumerate(POLICIES):
        outcome = simulate(wish, trace, policy, LAST)
        assert outcome.utility == pytest.approx(played.utility[0, column], abs=1e-9)
        assert outcome.utility <= best.upper_bound + 1e-6
        if policy.name.startswith("guarded") and feasible and wish.budget is None:
            assert outcome.on_time


def test_a_job_of_500_slots_and_64_gpus_is_played_and_bounded():
    job = Job(work=12_000, deadline=334, value=30_000, throughput=linear_throughput(64))
    random = np.random.default_rng(8)
    trace = market_of(random.uniform(0.2, 1.1, 501), random.integers(0, 65, 501))
    played = run_tournament(
        [MaximalSpot(), UniformProgress(), Ahanp(threshold=0.6), Ahap(window=5, commitment=1)],
        [Case(job, 0, 0)],
        [trace],
        LAST,
        workers=1,
    )
    best = offline_optimum(job, trace.window(0, 501))
    assert played.on_time.all()
    assert (played.utility <= best.upper_bound + 1e-6).all()
    assert (played.utility > 0.5 * best.utility).all()


def test_a_job_of_next_to_no_work_is_not_done_for_nothing():
    job = Job(work=1e-10, deadline=4, value=9, throughput=(0.0, 1.0))
    trace = constant_market(6, available=0)
    best = offline_optimum(job, trace.window(0, 6))
    for policy in (Ahap(), Idle()):
        outcome = simulate(job, trace, policy, LAST)
        assert outcome.utility <= best.upper_bound + 1e-6, policy.name
