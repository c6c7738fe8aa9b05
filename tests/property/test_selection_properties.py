"""T6: no sequence of utilities makes a learner's regret exceed what it promises."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from duetune.core.job import Job, Reconfiguration, ReconfigurationKey
from duetune.core.market import MarketTrace
from duetune.policies.select import (
    AdaHedge,
    FixedShare,
    Hedge,
    cumulative_regret,
    job_utility_range,
    run_selection,
)

LEARNERS = {
    "hedge, jobs known": lambda arms, jobs: Hedge(arms, jobs=jobs),
    "hedge, anytime": lambda arms, _: Hedge(arms),
    "adahedge": lambda arms, _: AdaHedge(arms),
    "fixed share": lambda arms, _: FixedShare(arms),
    "fixed share, forgetting": lambda arms, _: FixedShare(arms, memory=10),
}
fractions = st.one_of(st.sampled_from([0.0, 1.0, 0.5]), st.floats(0, 1))


@st.composite
def utility_tables(draw: st.DrawFn) -> np.ndarray:
    shape = (draw(st.integers(1, 40)), draw(st.integers(1, 6)))
    return draw(arrays(np.float64, shape, elements=fractions))


def assert_promise_kept(run) -> None:
    assert (run.regret <= run.certificate + 1e-9).all()
    assert (run.certificate <= run.bound + 1e-9).all()


def best_with_switches(utilities: np.ndarray, switches: int) -> float:
    """What the best sequence of policies with so many changes earns, by dynamic programming."""
    earned = np.zeros((switches + 1, utilities.shape[1]))
    for row in utilities:
        moved = earned.copy()
        for used in range(1, switches + 1):
            moved[used] = np.maximum(earned[used], earned[used - 1].max())
        earned = moved + row
    return float(earned.max())


@pytest.mark.parametrize("name", LEARNERS)
@given(utility_tables())
def test_regret_is_within_certificate_and_bound(name, utilities):
    jobs, arms = utilities.shape
    learner = LEARNERS[name](arms, jobs)
    run = run_selection(utilities, learner, np.random.default_rng(0), ranges=None)
    assert_promise_kept(run)
    assert learner.weights.sum() == pytest.approx(1)
    assert (run.weights >= 0).all()
    assert run.weights.sum(axis=1) == pytest.approx(np.ones(jobs))


@given(utility_tables())
def test_adahedge_is_within_the_second_order_bound_of_its_authors(utilities):
    jobs, arms = utilities.shape
    run = run_selection(utilities, AdaHedge(arms), np.random.default_rng(0))
    mean = (run.weights * utilities).sum(axis=1, keepdims=True)
    variance = (run.weights * (utilities - mean) ** 2).sum()
    log_arms = np.log(max(2, arms))
    bound = 2 * np.sqrt(variance * log_arms) + run.spread * (4 / 3 * log_arms + 2)
    assert jobs == run.jobs
    assert run.regret[-1] <= bound + 1e-9


@pytest.mark.parametrize("memory", [None, 2, 10])
@given(utility_tables(), st.integers(0, 5))
def test_fixed_share_is_within_its_bounds_against_any_sequence_of_policies(
    memory, utilities, switches
):
    jobs, arms = utilities.shape
    learner = FixedShare(arms, memory=memory)
    run = run_selection(utilities, learner, np.random.default_rng(0))
    regret = best_with_switches(utilities, switches) - run.expected.sum()
    assert regret <= learner.certificate(switches=switches) + 1e-9
    bound = learner.regret_bound(jobs, run.spread, switches=switches)
    assert learner.certificate(switches=switches) <= bound + 1e-9


@pytest.mark.parametrize("name", LEARNERS)
@given(utility_tables(), st.integers(0, 2**32), st.floats(0, 0.95))
def test_a_warm_start_keeps_the_promise_whatever_the_history(name, utilities, seed, trust):
    jobs, arms = utilities.shape
    history = np.random.default_rng(seed).integers(0, 2, (20, arms)).astype(float)
    learner = LEARNERS[name](arms, jobs)
    learner.warm_start(history, trust=trust)
    assert_promise_kept(run_selection(utilities, learner, np.random.default_rng(0)))


@pytest.mark.parametrize("name", LEARNERS)
@pytest.mark.parametrize("arms", [2, 10, 112])
@pytest.mark.parametrize("adversary", ["heaviest fails", "lightest wins", "coins", "blocks"])
def test_an_adversary_that_sees_the_weights_does_not_break_the_bound(name, arms, adversary):
    jobs = 600
    random = np.random.default_rng(arms)
    learner = LEARNERS[name](arms, jobs)
    bound = learner.regret_bound(np.arange(1.0, jobs + 1))
    utilities, expected = np.empty((jobs, arms)), np.empty(jobs)
    for job in range(jobs):
        match adversary:
            case "heaviest fails":
                row = np.ones(arms)
                row[learner.weights.argmax()] = 0
            case "lightest wins":
                row = np.zeros(arms)
                row[learner.weights.argmin()] = 1
            case "coins":
                row = random.integers(0, 2, arms).astype(float)
            case _:
                row = np.zeros(arms)
                row[(job // 50) % arms] = 1
        utilities[job], expected[job] = row, learner.weights @ row
        learner.learn(row)
        regret = utilities[: job + 1].sum(axis=0).max() - expected[: job + 1].sum()
        assert regret <= learner.certificate() + 1e-9
        assert learner.certificate() <= bound[job] + 1e-9
    assert cumulative_regret(utilities, expected)[-1] == pytest.approx(regret)


@pytest.mark.parametrize("name", LEARNERS)
def test_the_killer_of_follow_the_leader_does_not_kill(name):
    utilities = np.tile([[0.0, 1.0], [1.0, 0.0]], (500, 1))
    utilities[0] = [0.5, 0.0]
    run = run_selection(utilities, LEARNERS[name](2, 1000), np.random.default_rng(0))
    assert_promise_kept(run)
    if name != "fixed share, forgetting":
        # Following the leader regrets half of all jobs.
        assert run.regret[-1] < 100


@pytest.mark.parametrize("make", [AdaHedge, FixedShare, lambda arms: FixedShare(arms, memory=7)])
@given(
    st.integers(1, 40),
    st.integers(2, 6),
    st.integers(0, 2**32),
    st.floats(1e-3, 1e6),
    st.floats(-1e3, 1e3),
)
def test_weights_do_not_depend_on_unit_or_origin(make, jobs, arms, seed, scale, shift):
    utilities = np.random.default_rng(seed).uniform(size=(jobs, arms))
    one, other = make(arms), make(arms)
    for row in utilities:
        one.learn(row)
        other.learn(scale * (row + shift))
        assert other.weights == pytest.approx(one.weights, abs=1e-6)


@given(st.data())
def test_no_way_to_hold_gpus_earns_more_or_less_than_the_range(data):
    """Any allocation at all, wasteful and stupid ones too, stays within the tight range."""
    physics = pytest.importorskip("duetune.core.physics")
    max_gpus = data.draw(st.integers(1, 5))
    min_gpus = data.draw(st.integers(1, max_gpus))
    steps = data.draw(st.lists(st.floats(0, 2), min_size=max_gpus, max_size=max_gpus))
    curve = (0.0, *(0.5 + np.cumsum(steps)).tolist())
    job = Job(
        work=data.draw(st.floats(0.5, 30)),
        deadline=data.draw(st.integers(1, 8)),
        value=data.draw(st.floats(0, 100)),
        throughput=curve,
        min_gpus=min_gpus,
        reconfiguration=Reconfiguration(key=data.draw(st.sampled_from(ReconfigurationKey))),
    )
    slots = job.hard_deadline
    random = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    market = MarketTrace.single(random.uniform(0.1, 1.0, slots), random.integers(0, 6, slots), 1.0)
    total = random.integers(min_gpus - 1, max_gpus + 1, slots)
    total[total < min_gpus] = 0
    spot = np.minimum(total, market.available[0])
    charge = spot * market.spot_price[0] + (total - spot)
    held = physics.job_physics(job)
    progress = cost = utility = 0.0
    before = (0, 0)
    for slot in range(slots):
        now = (int(spot[slot]), int(total[slot] - spot[slot]))
        fraction = physics.efficiency(held, *before, *now, int(market.available[0, slot]))
        progress += fraction * held.throughput[total[slot]]
        cost += charge[slot]
        utility = -cost
        before = now
        if physics.is_done(held, progress):
            utility += physics.value_of_finishing(job, slot + 1)
            break
    for tight in (False, True):
        bounds = job_utility_range(job, min_price=0.1, on_demand_price=1.0, tight=tight)
        assert bounds.low - 1e-9 <= utility <= bounds.high + 1e-9
