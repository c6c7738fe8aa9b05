"""T2, T3, T7, T8, T10: what holds for every policy on every market."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from duetune.core.job import Job, ValueShape
from duetune.core.market import MarketTrace
from duetune.core.physics import job_physics
from duetune.market.forecast.forecast_source import ForecastSource
from duetune.policies.ahanp import Ahanp
from duetune.policies.ahap import Ahap
from duetune.policies.baselines import MaximalSpot, OnDemandOnly, UniformProgress
from duetune.policies.guard import deadline_guard
from duetune.policies.pool import default_pool
from duetune.policies.solve.dynamic import offline_optimum
from duetune.policies.solve.progress_grid import progress_grid
from duetune.policies.window_plan import PLANNING_STEPS
from duetune.simulate.cases import Case
from duetune.simulate.episode import simulate
from duetune.simulate.tournament import run_tournament
from duetune.testing import Idle, Restless
from support.strategies import TOTAL, job_on_market, jobs, markets, tight_budget

BARE = (
    OnDemandOnly(),
    MaximalSpot(),
    UniformProgress(),
    UniformProgress(hysteresis=False),
    UniformProgress(gang=True),
    Ahanp(threshold=0.0),
    Ahanp(threshold=0.6),
    Ahanp(threshold=1.0),
    Ahap(window=0, commitment=1, threshold=0.5, outlook=0.5, patience=0.5),
    Ahap(window=1, commitment=1, threshold=0.0, outlook=0.0, patience=0.0),
    Ahap(window=3, commitment=1, threshold=0.6, outlook=0.0, patience=0.0),
    Ahap(window=5, commitment=3, threshold=0.9, outlook=0.5, patience=0.3),
    Ahap(window=5, commitment=3, threshold=0.4, outlook=0.5, patience=0.3),
    Ahap(window=5, commitment=3, threshold=0.4, outlook=0.5, patience=0.3, refuse_dear_spot=True),
    Ahap(window=5, commitment=5, threshold=0.3, outlook=1.0, patience=0.0),
    Ahap(window=4, commitment=3, threshold=0.5, outlook=0.0, patience=0.0, virtual=True),
    Ahap(window=4, commitment=2, threshold=0.5, outlook=0.5, refuse_dear_spot=True),
    Ahap(window=2, commitment=2, threshold=0.4, outlook=0.5, refuse_dear_spot=True, virtual=True),
)
POLICIES = (
    *BARE,
    *(deadline_guard(policy) for policy in BARE),
    Idle(),
    Restless(1),
    deadline_guard(Idle()),
    deadline_guard(Restless(2)),
)
SOURCES = [
    ForecastSource.parse(text, seed=3)
    for text in ("perfect", "last", "seasonal:4", "noisy:fixed-heavy:1.0")
]
sources = st.sampled_from(SOURCES)
causal = st.sampled_from([source for source in SOURCES if source.kind in {"last", "seasonal"}])
any_policy = st.sampled_from(POLICIES)
ordinary = job_on_market(moving_on_demand=True)
poor = job_on_market(moving_on_demand=True, budget=True)


# --- T2


@given(st.one_of(ordinary, poor, tight_budget(moving_on_demand=True)), sources)
def test_no_policy_beats_the_optimum(case, source):
    job, trace = case
    best = offline_optimum(job, trace.window(0, job.hard_deadline))
    assert best.gap <= 1e-6, "all amounts of work are on the grid"
    played = run_tournament(POLICIES, [Case(job, 0, 0)], [trace], source, workers=1)
    for name, utility in zip(played.policies, played.utility[0], strict=True):
        assert utility <= best.utility + 1e-6, name


@given(st.one_of(ordinary, poor), any_policy, sources)
def test_holdings_charges_progress_and_budget_are_in_order(case, policy, source):
    job, trace = case
    outcome = simulate(job, trace, policy, source)
    for entry in outcome.entries:
        held = entry.allocation
        assert 0 <= held.spot <= entry.available
        assert held.on_demand >= 0
        assert held.total == 0 or job.min_gpus <= held.total <= job.max_gpus
    assert outcome.cost == pytest.approx(sum(entry.charge for entry in outcome.entries))
    assert outcome.progress == pytest.approx(sum(entry.work for entry in outcome.entries))
    assert job.budget is None or outcome.cost <= job.budget + 1e-6


# --- T3


@st.composite
def market_without_spot_after_the_deadline(draw: st.DrawFn) -> tuple[Job, MarketTrace]:
    job = draw(jobs(max_slots=12, max_gpus=4, key=TOTAL))
    # Above zero: at a threshold of 0, spot for nothing is still banked.
    trace = draw(markets(job.hard_deadline, most=5, prices=(0.05, 1.3)))
    available = np.array(trace.available[0])
    available[job.deadline :] = 0
    return job, MarketTrace.single(trace.spot_price[0], available, 1.0)


PLANNER = Ahap(window=48, commitment=1, threshold=0.0, outlook=0.0, patience=0.0)


@given(market_without_spot_after_the_deadline())
def test_ahap_with_all_knowledge_reaches_the_optimum(case):
    """It does where the plan's grid is exact, spot has a price, on-demand has one price, the key is
    the total, there is no budget, and an optimal plan is on time or on-demand could not be: else
    the (economic) guard, which knows of no spot to come, may rush where being late earns more.
    """
    job, trace = case
    assume(progress_grid(job, PLANNING_STEPS).exact)
    best = offline_optimum(job, trace.window(0, job.hard_deadline))
    late = best.finished is None or best.finished > job.deadline
    assume(not late or job_physics(job).reach[job.deadline, 0] < job.work - 1e-6)
    outcome = simulate(job, trace, PLANNER, SOURCES[0])
    assert outcome.utility == pytest.approx(best.utility, abs=1e-6)


@given(market_without_spot_after_the_deadline())
def test_ahap_with_all_knowledge_never_loses_money(case):
    job, trace = case
    assume(progress_grid(job, PLANNING_STEPS).exact)
    assert simulate(job, trace, PLANNER, SOURCES[0]).utility >= -1e-6


# --- T7


@given(ordinary, any_policy, causal, st.data())
def test_the_future_changes_no_decision_of_the_past(case, policy, source, data):
    job, trace = case
    known = data.draw(st.integers(1, job.hard_deadline))
    other = data.draw(markets(job.hard_deadline, most=job.max_gpus + 1, moving_on_demand=True))
    mixed = MarketTrace.single(
        *(
            np.concatenate([getattr(trace, field)[0, :known], getattr(other, field)[0, known:]])
            for field in ("spot_price", "available", "on_demand_price")
        )
    )
    here, there = simulate(job, trace, policy, source), simulate(job, mixed, policy, source)
    assert here.entries[:known] == there.entries[:known]


@given(ordinary, causal, st.integers(1, 6), st.data())
def test_a_job_in_the_middle_of_a_trace_sees_nothing_of_what_comes_after(case, source, start, data):
    job, trace = case
    parts = [data.draw(markets(start, most=4)), trace, data.draw(markets(5, most=4))]
    longer, cut = (
        MarketTrace.single(
            *(
                np.concatenate([getattr(part, field)[0] for part in kept])
                for field in ("spot_price", "available", "on_demand_price")
            )
        )
        for kept in (parts, parts[:2])
    )
    for policy in (BARE[3], BARE[11], BARE[15]):
        assert simulate(job, longer, policy, source, start=start) == simulate(
            job, cut, policy, source, start=start
        )


# --- T8


@given(
    st.lists(st.one_of(ordinary, poor), min_size=1, max_size=3),
    sources,
)
@settings(max_examples=settings.default.max_examples // 3)
def test_the_tournament_equals_the_simulator_for_every_policy(cases, source):
    """Several jobs of different size in one tournament: they share its memory."""
    traces = [trace for _, trace in cases]
    entries = [Case(job, place, 0) for place, (job, _) in enumerate(cases)]
    played = run_tournament(POLICIES, entries, traces, source, workers=1)
    for row, (job, trace) in enumerate(cases):
        for column, policy in enumerate(POLICIES):
            outcome = simulate(job, trace, policy, source)
            assert played.utility[row, column] == pytest.approx(outcome.utility, abs=1e-9)
            assert played.cost[row, column] == pytest.approx(outcome.cost, abs=1e-9)
            assert played.finished[row, column] == (outcome.finished or 0)
            assert played.slots[row, column] == len(outcome.entries)
            assert played.spot_slots[row, column] == sum(
                entry.allocation.spot for entry in outcome.entries
            )
            assert played.on_demand_slots[row, column] == sum(
                entry.allocation.on_demand for entry in outcome.entries
            )


@given(ordinary, sources)
@settings(max_examples=4)
def test_the_tournament_equals_the_simulator_for_the_whole_pool(case, source):
    """Its policies share plans where only their thresholds differ."""
    job, trace = case
    pool = default_pool()
    played = run_tournament(pool, [Case(job, 0, 0)], [trace], source, workers=1)
    utilities = [simulate(job, trace, policy, source).utility for policy in pool]
    assert played.utility[0].tolist() == pytest.approx(utilities, abs=1e-9)


@given(st.one_of(ordinary, poor), any_policy, sources)
def test_a_replay_gives_the_same_bytes(case, policy, source):
    job, trace = case
    once, again = (msgspec.json.encode(simulate(job, trace, policy, source)) for _ in range(2))
    assert once == again


# --- T10


@given(job_on_market(prices=(1.0, 2.0)), sources)
def test_no_policy_holds_spot_that_is_not_cheaper_than_on_demand(case, source):
    job, trace = case
    built_in = [policy for policy in POLICIES if "restless" not in policy.name]
    played = run_tournament(built_in, [Case(job, 0, 0)], [trace], source, workers=1)
    assert played.spot_slots.sum() == 0


@given(job_on_market(prices=(1.05, 2.0), value_per_gpu_slot=(3.0, 3.0), key=TOTAL), causal)
def test_dear_spot_makes_no_precious_job_late(case, source):
    job, trace = case
    job = msgspec.structs.replace(
        job, value=100.0 * job.max_gpus * job.deadline**2, value_shape=ValueShape.LINEAR
    )
    assume(job_physics(job).reach[job.deadline, 0] >= job.work)
    for policy in BARE[2:]:
        assert simulate(job, trace, policy, source).on_time, policy.name


# --- Giving up


@given(job_on_market(prices=(0.05, 1.3)), st.sampled_from(BARE[8:]), sources)
def test_a_planner_spends_nothing_on_a_job_that_is_worth_nothing(case, policy, source):
    job, trace = case
    worthless = msgspec.structs.replace(job, value=0.0)
    # At a threshold of 0 no spot counts as cheap; above it, spot is banked for its price alone.
    policy = msgspec.structs.replace(policy, threshold=0.0)
    assert simulate(worthless, trace, policy, source).cost == 0


@given(ordinary, st.sampled_from(BARE), sources)
def test_after_the_deadline_no_policy_pays_more_than_finishing_can_still_earn(case, policy, source):
    job, trace = case
    outcome = simulate(job, trace, policy, source)
    overtime = outcome.entries[job.deadline :]
    if outcome.finished is not None and trace.on_demand_price.min() == trace.on_demand_price.max():
        assert sum(entry.charge for entry in overtime) <= outcome.value + 1e-6
