from __future__ import annotations

import numpy as np
import pytest

from duetune.core.job import Job, Reconfiguration, linear_throughput
from duetune.errors import InvalidInput
from duetune.market.forecast.forecast_source import ForecastSource
from duetune.policies.ahap import Ahap
from duetune.policies.baselines import MaximalSpot, OnDemandOnly, UniformProgress
from duetune.policies.guard import deadline_guard
from duetune.policies.pool import paper_pool
from duetune.simulate.cases import Case, JobMix, draw_cases
from duetune.simulate.episode import simulate
from duetune.simulate.tournament import run_tournament
from duetune.testing import FixedPlan, Idle, Restless, constant_market, market_of, random_market

LAST = ForecastSource.parse("last")
PLAIN = Job(work=20, deadline=6, value=60, throughput=linear_throughput(6))


def cases(count: int = 5, seed: int = 0, **mix: object) -> tuple[Case, ...]:
    return draw_cases(JobMix(**mix), (random_market(1, 200),), count, np.random.default_rng(seed))


# --- cases


def test_the_same_seed_draws_the_same_cases():
    assert cases(20, seed=4) == cases(20, seed=4)
    assert cases(20, seed=4) != cases(20, seed=5)


def test_more_cases_begin_with_the_same_ones():
    assert cases(20, seed=4)[:5] == cases(5, seed=4)


def test_cases_stay_within_their_mix():
    drawn = cases(200, deadline=(3, 9), max_gpus=(4, 5), min_gpus=(1, 7), tightness=(0.2, 0.4))
    for case in drawn:
        job = case.job
        assert 3 <= job.deadline <= 9
        assert 4 <= job.max_gpus <= 5
        assert 1 <= job.min_gpus <= job.max_gpus
        share = job.work / (job.deadline * job.throughput[-1])
        assert 0.19 <= share <= 0.41
        assert 0 <= case.start <= 200 - job.hard_deadline


def test_the_value_is_in_units_of_the_cost_on_demand():
    for case in cases(50, value_factor=(2.0, 2.0), intercept=(0.5, 0.5)):
        job = case.job
        assert job.value == pytest.approx(
            2 * job.work / job.throughput[-1] * job.max_gpus, abs=0.01
        )


def test_every_slot_where_a_job_fits_can_be_drawn():
    mix = JobMix(deadline=(2, 2), max_gpus=(8, 8), hard_deadline_factor=1.0)
    drawn = draw_cases(mix, (random_market(1, 4),), 60, np.random.default_rng(0))
    assert {case.start for case in drawn} == {0, 1, 2}


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("deadline", (9, 3)),
        ("tightness", (-0.1, 0.4)),
        ("value_factor", (1.0, float("nan"))),
        ("max_gpus", (8, 4)),
    ],
)
def test_a_mix_that_is_no_range_is_refused(field, value):
    with pytest.raises(InvalidInput, match=f"job mix {field}"):
        JobMix(**{field: value})


def test_a_market_too_short_for_the_mix_is_refused_by_name():
    with pytest.raises(InvalidInput, match=r"random-1.*at least 48 slots; it has 20"):
        draw_cases(JobMix(), (random_market(1, 20),), 3, np.random.default_rng(0))


@pytest.mark.parametrize("count", [0, -1])
def test_no_cases_cannot_be_drawn(count):
    with pytest.raises(InvalidInput, match="jobs"):
        cases(count)


def test_cases_need_a_market():
    with pytest.raises(InvalidInput, match="market"):
        draw_cases(JobMix(), (), 3, np.random.default_rng(0))


# --- tournaments


def test_a_tournament_needs_a_policy():
    with pytest.raises(InvalidInput, match="policies"):
        run_tournament([], [Case(PLAIN, 0, 0)], [constant_market(20)], LAST)


def test_a_tournament_needs_a_case():
    with pytest.raises(InvalidInput, match="cases"):
        run_tournament([MaximalSpot()], [], [constant_market(20)], LAST)


def test_a_case_that_does_not_fit_its_market_is_refused():
    with pytest.raises(InvalidInput, match="start"):
        run_tournament([MaximalSpot()], [Case(PLAIN, 0, 15)], [constant_market(20)], LAST)


def test_rows_are_cases_and_columns_policies():
    policies = [OnDemandOnly(), Idle(), MaximalSpot()]
    rows = [Case(PLAIN, 0, 0), Case(PLAIN, 1, 3)]
    markets = [constant_market(20), constant_market(20, available=0)]
    played = run_tournament(policies, rows, markets, LAST, workers=1)
    assert played.policies == ("on_demand", "idle", "maximal_spot")
    assert played.utility.shape == (2, 3)
    assert played.utility[:, 1].tolist() == [0, 0]
    assert played.finished[:, 1].tolist() == [0, 0]
    assert played.spot_slots[1].tolist() == [0, 0, 0]
    assert played.on_time.tolist() == [[True, False, True]] * 2


def test_python_policies_play_beside_compiled_ones_in_any_order():
    policies = [
        Restless(1),
        UniformProgress(),
        FixedPlan(((2, 1), (0, 4))),
        deadline_guard(Restless(1)),
        MaximalSpot(),
    ]
    trace = random_market(3, 20)
    played = run_tournament(policies, [Case(PLAIN, 0, 2)], [trace], LAST, workers=1)
    stepped = [simulate(PLAIN, trace, policy, LAST, start=2).utility for policy in policies]
    assert played.utility[0].tolist() == pytest.approx(stepped, abs=1e-9)


def test_only_python_policies_are_a_tournament_too():
    played = run_tournament([Idle()], [Case(PLAIN, 0, 0)], [constant_market(20)], LAST, workers=1)
    assert played.utility.tolist() == [[0.0]]


def test_the_number_of_workers_changes_nothing():
    drawn, market = cases(40), random_market(1, 200)
    pool = paper_pool()[::9]
    one, two = (run_tournament(pool, drawn, [market], LAST, workers=count) for count in (1, 2))
    assert one.utility.tobytes() == two.utility.tobytes()
    assert one.finished.tobytes() == two.finished.tobytes()


def test_the_order_of_cases_changes_nothing():
    """They share memory: a large job before a small one must leave no trace in it."""
    large = Job(work=300, deadline=30, value=900, throughput=linear_throughput(16))
    small = Job(work=3, deadline=3, value=9, throughput=linear_throughput(2))
    rigid = Job(work=18, deadline=7, value=50, throughput=linear_throughput(4), min_gpus=4)
    market = random_market(2, 60)
    pool = [*paper_pool(outlook=0.5)[::11], UniformProgress(gang=True)]
    rows = [Case(job, 0, 0) for job in (large, small, rigid)]
    there = run_tournament(pool, rows, [market], LAST, workers=1).utility
    back = run_tournament(pool, rows[::-1], [market], LAST, workers=1).utility
    alone = [run_tournament(pool, [row], [market], LAST, workers=1).utility[0] for row in rows]
    assert there.tobytes() == back[::-1].tobytes() == np.array(alone).tobytes()


def test_the_order_of_policies_changes_nothing():
    pool = [*paper_pool()[::5], *paper_pool(outlook=0.5)[::17]]
    drawn, market = cases(6), random_market(1, 200)
    there = run_tournament(pool, drawn, [market], LAST, workers=1).utility
    back = run_tournament(pool[::-1], drawn, [market], LAST, workers=1).utility
    assert there.tobytes() == np.ascontiguousarray(back[:, ::-1]).tobytes()


def test_progress_is_told_until_all_cases_are_done():
    told: list[int] = []
    run_tournament([MaximalSpot()], cases(40), [random_market(1, 200)], LAST, advance=told.append)
    assert sum(told) == 40
    assert len(told) > 1


def test_the_optimum_stands_beside_the_policies():
    rows = [Case(PLAIN, 0, 0)]
    without = run_tournament([Idle()], rows, [constant_market(20)], LAST)
    played = run_tournament([MaximalSpot()], rows, [constant_market(20)], LAST, optimum=True)
    assert without.optimum is None
    assert played.optimum.shape == (1,)
    assert played.utility[0, 0] <= played.optimum[0] + 1e-9


def test_no_policy_beats_the_optimum_of_the_tournament_with_a_budget():
    """Slot 3 alone cannot finish; slot 2 on demand and slot 3 on free spot earn 0.1 of 2.1."""
    job = Job(
        work=0.3,
        deadline=2,
        value=4.2,
        throughput=(0.0, 0.5, 0.5, 0.5),
        min_gpus=2,
        hard_deadline_factor=2.0,
        reconfiguration=Reconfiguration(grow=0.5, shrink=1.0, preempted=1.0),
        budget=2.1,
    )
    market = market_of([0.0] * 4, [0, 0, 2, 0])
    plan = FixedPlan(((0, 0), (0, 2), (2, 0)))
    played = run_tournament([plan], [Case(job, 0, 0)], [market], LAST, optimum=True)
    assert played.utility[0, 0] == pytest.approx(0.1)
    assert played.utility[0, 0] <= played.upper_bound[0] + 1e-6


def test_a_window_longer_than_any_deadline_needs_no_more_memory_than_the_deadline():
    job = Job(work=60, deadline=10, value=100, throughput=linear_throughput(16))
    wide, enough = Ahap(window=512), Ahap(window=10)
    played = run_tournament([wide, enough], [Case(job, 0, 0)], [random_market(1, 40)], LAST)
    assert played.utility[0, 0] == pytest.approx(played.utility[0, 1])
