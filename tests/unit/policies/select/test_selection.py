from __future__ import annotations

import math

import numpy as np
import pytest

from duetune.core.job import Job, linear_throughput
from duetune.core.ports import Selector
from duetune.errors import InvalidInput
from duetune.policies.select import (
    AdaHedge,
    FixedShare,
    Hedge,
    Play,
    UtilityRange,
    job_utility_range,
    log_log_slope,
    normalised,
    recovery_jobs,
    run_selection,
    utility_range,
)

POLICIES = 112


def learners(arms: int, jobs: int):
    return [
        Hedge(arms, jobs=jobs),
        Hedge(arms),
        AdaHedge(arms),
        FixedShare(arms),
        FixedShare(arms, memory=200),
    ]


def similar_policies(jobs: int, *, gap: float = 0.02, seed: int = 0) -> np.ndarray:
    """Policies that rise and fall with the market together; the last is best by ``gap``."""
    random = np.random.default_rng(seed)
    mean = np.sort(random.uniform(0.4, 0.7 - gap, POLICIES))
    mean[-1] = 0.7
    market = 0.1 * random.standard_normal((jobs, 1))
    return np.clip(mean + market + 0.1 * random.standard_normal((jobs, POLICIES)), 0, 1)


def generator(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


@pytest.mark.parametrize("learner", learners(4, 10), ids=lambda one: type(one).__name__)
def test_learners_are_selectors_and_start_even(learner):
    assert isinstance(learner, Selector)
    assert learner.weights.tolist() == [0.25] * 4
    with pytest.raises(ValueError, match="read-only"):
        learner.weights[0] = 1


@pytest.mark.parametrize("learner", learners(3, 10), ids=lambda one: type(one).__name__)
@pytest.mark.parametrize(
    "utilities", [[0.1, 0.2], [[0.1, 0.2, 0.3]], [0.1, math.nan, 0.2], [0.1, math.inf, 0.2]]
)
def test_utilities_of_the_wrong_shape_or_not_finite_are_refused(learner, utilities):
    before = learner.weights.copy()
    with pytest.raises(InvalidInput, match="utilities"):
        learner.learn(np.array(utilities))
    assert np.array_equal(learner.weights, before)
    assert learner.jobs == 0


def test_hedge_wants_fractions_and_the_others_any_unit():
    with pytest.raises(InvalidInput, match=r"\[0, 1\]"):
        Hedge(2).learn(np.array([0.5, 1.5]))
    with pytest.raises(InvalidInput, match=r"\[0, 1\]"):
        Hedge(2).learn(np.array([-0.5, 0.5]))
    AdaHedge(2).learn(np.array([-120.0, 80.0]))
    FixedShare(2).learn(np.array([-120.0, 80.0]))


def test_bad_settings_are_refused():
    with pytest.raises(InvalidInput, match="arms"):
        AdaHedge(0)
    with pytest.raises(InvalidInput, match="jobs"):
        Hedge(2, jobs=0)
    with pytest.raises(InvalidInput, match="rate"):
        Hedge(2, rate=math.nan)
    with pytest.raises(InvalidInput, match="memory"):
        FixedShare(2, memory=1)


def test_hedge_has_the_rates_and_weights_of_the_theory():
    known = Hedge(3, jobs=50)
    assert known.rate == pytest.approx(math.sqrt(8 * math.log(3) / 50))
    utilities = np.array([0.2, 0.9, 0.4])
    known.learn(utilities)
    expected = np.exp(known.rate * utilities)
    assert known.weights == pytest.approx(expected / expected.sum())
    anytime = Hedge(3)
    assert anytime.rate == pytest.approx(math.sqrt(8 * math.log(3)))
    anytime.learn(utilities)
    assert anytime.rate == pytest.approx(math.sqrt(8 * math.log(3) / 2))
    # Later rates apply to all utilities so far.
    expected = np.exp(anytime.rate * utilities)
    assert anytime.weights == pytest.approx(expected / expected.sum())


def test_hedge_bounds_are_the_textbook_ones_or_tighter():
    jobs, log_arms = 1000, math.log(POLICIES)
    known, anytime = Hedge(POLICIES, jobs=jobs), Hedge(POLICIES)
    assert known.regret_bound(jobs) == pytest.approx(math.sqrt(jobs * log_arms / 2))
    textbook = math.sqrt(2 * jobs * log_arms) + math.sqrt(log_arms / 8)
    assert known.regret_bound(jobs) < anytime.regret_bound(jobs) < textbook
    published = math.sqrt(jobs * log_arms) + 4 / 3 * log_arms + 2
    assert AdaHedge(POLICIES).regret_bound(jobs) < published


def test_adahedge_follows_the_algorithm_of_the_paper():
    # The loop of de Rooij et al. (2014), on losses, kept as literal as can be.
    losses = np.random.default_rng(5).uniform(size=(200, 6))
    learner = AdaHedge(6)
    total, gap = np.zeros(6), 0.0
    for loss in losses:
        rate = math.log(6) / gap if gap else math.inf
        if gap:
            mixed = total.min() - np.log(np.exp(-rate * (total - total.min())).mean()) / rate
            weights = np.exp(-rate * (total - total.min()))
        else:
            mixed = total.min()
            weights = (total == total.min()).astype(float)
        weights /= weights.sum()
        assert learner.weights == pytest.approx(weights, abs=1e-12)
        learner.learn(-loss)
        lost = weights @ loss
        total = total + loss
        after = (
            total.min() - np.log(np.exp(-rate * (total - total.min())).mean()) / rate
            if gap
            else total.min()
        )
        gap += max(0.0, lost - (after - mixed))


def test_fixed_share_that_shares_nothing_is_adahedge():
    class Selfish(FixedShare):
        share = 0.0

        @property
        def rate(self) -> float:
            return self._rate_for(self._log_arms, self._recent_gap)

        def _account(self, rate: float) -> None:
            """There is no bound against changes without sharing."""

    selfish, plain = Selfish(6), AdaHedge(6)
    history = np.random.default_rng(4).uniform(size=(5, 6))
    selfish.warm_start(history)
    plain.warm_start(history)
    selfish._set_prior(plain.weights.copy())
    selfish._recent_gap = plain._gap
    for utilities in np.random.default_rng(5).uniform(size=(60, 6)):
        selfish.learn(utilities)
        plain.learn(utilities)
        assert selfish.weights == pytest.approx(plain.weights, abs=1e-9)


def test_choosing_samples_from_the_weights_or_plays_the_heaviest():
    learner = Hedge(3, rate=1.0)
    learner.learn(np.array([0.0, 1.0, 0.5]))
    random = generator()
    chosen = np.bincount([learner.choose(random) for _ in range(20_000)], minlength=3)
    assert chosen / 20_000 == pytest.approx(learner.weights, abs=0.02)
    steady = AdaHedge(3, play=Play.BEST)
    steady.learn(np.array([0.0, 1.0, 0.5]))
    assert {steady.choose(random) for _ in range(20)} == {1}


def test_a_single_policy_is_chosen_without_regret():
    for learner in learners(1, 5):
        run = run_selection(np.array([[0.3], [0.9], [0.1]]), learner, generator())
        assert run.chosen.tolist() == [0, 0, 0]
        assert run.regret == pytest.approx(np.zeros(3))


def test_equal_utilities_leave_the_weights_even():
    for learner in learners(5, 100):
        for level in np.linspace(0, 1, 100):
            learner.learn(np.full(5, level))
        assert learner.weights == pytest.approx(np.full(5, 0.2))


@pytest.mark.parametrize("arms", [POLICIES, 1000])
def test_weights_stay_sound_over_many_jobs(arms: int):
    random = generator(1)
    utilities = random.uniform(size=(500, arms))
    for learner in learners(arms, 10_000):
        for job in range(3000):
            learner.learn(utilities[job % 500])
        assert np.isfinite(learner.weights).all()
        assert (learner.weights >= 0).all()
        assert learner.weights.sum() == pytest.approx(1, abs=1e-9)
        assert math.isfinite(learner.certificate())


def test_regret_of_adahedge_is_constant_where_one_policy_is_clearly_best():
    utilities = similar_policies(10_000, gap=0.1)
    run = run_selection(utilities, AdaHedge(POLICIES), generator())
    assert run.regret[-1] == pytest.approx(run.regret[200], abs=1e-3)
    assert run.regret[-1] < 3
    assert run.best == POLICIES - 1
    assert run.final_weights[run.best] > 0.999


@pytest.mark.more
def test_the_slope_is_below_a_half_on_ten_thousand_jobs():
    utilities = similar_policies(10_000)
    for learner in (Hedge(POLICIES), AdaHedge(POLICIES), FixedShare(POLICIES)):
        slope = run_selection(utilities, learner, generator()).slope()
        assert slope.fit <= 0.5
        assert slope.envelope <= 0.5


def test_fixed_share_recovers_soon_after_a_change_and_the_others_do_not():
    change = 2000
    utilities = similar_policies(4000)
    utilities[change:] = utilities[change:, ::-1]
    took = {}
    for name, learner in {
        "hedge": Hedge(POLICIES),
        "adahedge": AdaHedge(POLICIES),
        "share": FixedShare(POLICIES),
        "forgetting": FixedShare(POLICIES, memory=500),
    }.items():
        run = run_selection(utilities, learner, generator())
        took[name] = recovery_jobs(run.expected, utilities, change) or math.inf
    assert took["share"] < 200
    assert took["forgetting"] < 200
    assert took["hedge"] > 1000
    assert took["adahedge"] > 1000


def test_forgetting_keeps_recovering_when_changes_never_end():
    every, jobs = 250, 4000
    random = generator(2)
    utilities = 0.2 * random.standard_normal((jobs, 20))
    for start in range(0, jobs, every):
        utilities[start : start + every, random.integers(20)] += 0.3
    learner = FixedShare(20, memory=every)
    run = run_selection(utilities, learner, generator())
    best = sum(
        utilities[start : start + every].sum(axis=0).max() for start in range(0, jobs, every)
    )
    switches = jobs // every - 1
    assert best - run.expected.sum() <= learner.certificate(switches=switches)
    assert learner.certificate(switches=switches) <= learner.regret_bound(
        jobs, run.spread, switches=switches
    )
    assert run.expected.sum() > 0.75 * best


def test_a_warm_start_spares_the_regret_of_learning():
    history, utilities = similar_policies(300, seed=1), similar_policies(1000, seed=0)
    for make in (
        lambda: Hedge(POLICIES),
        lambda: AdaHedge(POLICIES),
        lambda: FixedShare(POLICIES),
        lambda: FixedShare(POLICIES, memory=300),
    ):
        cold, warm = make(), make()
        warm.warm_start(history)
        assert warm.jobs == 0
        assert warm.weights.min() >= 0.5 / POLICIES
        assert warm.weights.sum() == pytest.approx(1)
        cold_run = run_selection(utilities, cold, generator())
        warm_run = run_selection(utilities, warm, generator())
        assert warm_run.regret[-1] < cold_run.regret[-1]


def test_a_misleading_warm_start_keeps_the_bound():
    history = np.tile([1.0, 0.0], (50, 1))
    utilities = np.tile([0.0, 1.0], (300, 1))
    for learner in (Hedge(2, jobs=300), Hedge(2), AdaHedge(2), FixedShare(2)):
        learner.warm_start(history, trust=0.9)
        assert learner.weights[0] > 0.8
        run = run_selection(utilities, learner, generator())
        assert (run.regret <= run.certificate + 1e-9).all()
        assert (run.certificate <= run.bound + 1e-9).all()
        assert learner.weights[1] > 0.9


def test_a_warm_start_is_for_the_beginning_and_wants_a_table():
    learner = AdaHedge(2)
    with pytest.raises(InvalidInput, match="history"):
        learner.warm_start(np.zeros(2))
    with pytest.raises(InvalidInput, match="trust"):
        learner.warm_start(np.zeros((1, 2)), trust=1.0)
    learner.learn(np.zeros(2))
    with pytest.raises(InvalidInput, match="no jobs learnt"):
        learner.warm_start(np.zeros((1, 2)))


def test_a_run_tells_what_was_chosen_earned_and_regretted():
    dollars = np.array([[10.0, 0.0], [0.0, 5.0], [10.0, 0.0]])
    ranges = [UtilityRange(0.0, 10.0), UtilityRange(-5.0, 5.0), UtilityRange(-10.0, 10.0)]
    learner = Hedge(2, jobs=3, play=Play.BEST)
    run = run_selection(dollars, learner, generator(), ranges=ranges)
    assert run.jobs == 3
    # Even at first, then the first policy is heavier: after job 1 it leads by 1 to 0.5.
    assert run.chosen.tolist() == [0, 0, 0]
    assert run.earned_dollars.tolist() == [10.0, 0.0, 10.0]
    assert run.earned == pytest.approx([1.0, 0.5, 1.0])
    assert run.earned_regret_dollars == pytest.approx([0.0, 0.0, 0.0])
    assert run.expected[0] == pytest.approx(0.5)
    assert run.regret[0] == pytest.approx(0.5)
    assert run.regret_dollars[0] == pytest.approx(5.0)
    assert run.weights.shape == (3, 2)
    assert run.weight_jobs.tolist() == [0, 1, 2]
    assert np.array_equal(run.final_weights, learner.weights)


def test_a_run_keeps_at_most_a_thousand_rows_of_weights():
    run = run_selection(np.zeros((2500, 2)), AdaHedge(2), generator())
    assert run.weights.shape[0] == run.weight_jobs.size <= 1000
    assert run.weight_jobs[0] == 0
    assert run.weight_jobs[-1] == 2499


def test_a_run_with_the_same_seed_is_the_same():
    utilities = similar_policies(300)
    one, other = (run_selection(utilities, AdaHedge(POLICIES), generator(9)) for _ in range(2))
    assert one.chosen.tobytes() == other.chosen.tobytes()
    assert one.weights.tobytes() == other.weights.tobytes()


def test_runs_refuse_tables_of_the_wrong_shape():
    for wrong in (np.zeros(3), np.zeros((0, 2)), np.zeros((4, 3)), np.full((2, 2), np.nan)):
        with pytest.raises(InvalidInput, match="utilities"):
            run_selection(wrong, AdaHedge(2), generator())
    with pytest.raises(InvalidInput, match="ranges"):
        run_selection(np.zeros((4, 2)), AdaHedge(2), generator(), ranges=[UtilityRange(0, 1)])


@pytest.mark.parametrize("power", [0.0, 0.5, 1.0])
def test_the_slope_of_a_power_is_its_exponent(power: float):
    slope = log_log_slope(3 * np.arange(1, 5001) ** power)
    assert slope.fit == pytest.approx(power, abs=1e-9)
    assert slope.envelope == pytest.approx(power, abs=1e-9)


def test_no_regret_and_negative_regret_have_slope_zero():
    assert log_log_slope(np.zeros(1000)).fit == 0
    falling = -np.arange(1000.0)
    assert log_log_slope(falling).fit == 0
    # A fall at the end hides growth from the fit, not from the envelope.
    regret = np.sqrt(np.arange(1, 1001))
    regret[900:] = 1.0
    slope = log_log_slope(regret)
    assert slope.fit < slope.envelope
    assert log_log_slope(np.ones(50)).first == 25
    with pytest.raises(InvalidInput, match="4 jobs"):
        log_log_slope(np.ones(3))


def test_recovery_counts_jobs_from_the_change_to_a_good_window():
    utilities = np.zeros((100, 2))
    utilities[:50, 0] = utilities[50:, 1] = 1.0
    earned = np.ones(100)
    earned[50:60] = 0.0
    assert recovery_jobs(earned, utilities, 50, window=5) == 15
    assert recovery_jobs(np.ones(100), utilities, 50, window=5) == 5
    assert recovery_jobs(np.zeros(100), utilities, 50, window=5) is None
    assert recovery_jobs(earned, utilities, 50, until=60, window=5) is None
    assert recovery_jobs(earned, utilities, 98, window=5) is None
    with pytest.raises(InvalidInput, match="change"):
        recovery_jobs(earned, utilities, 100)


def test_the_range_is_that_of_the_specification_and_tightens_with_the_work():
    loose = utility_range(
        value=240,
        work=160,
        max_gpus=12,
        last_slot=30,
        min_price=0.25,
        max_price=1.0,
        most_work_per_gpu=1.0,
    )
    assert loose.low == -12 * 30 * 1.0
    assert loose.high == pytest.approx(240 - 160 * 0.25)
    job = Job(work=160, deadline=20, value=240, throughput=linear_throughput(12))
    assert job_utility_range(job, min_price=0.25, on_demand_price=1.0, tight=False) == loose
    tight = job_utility_range(job, min_price=0.25, on_demand_price=1.0)
    assert tight.low == pytest.approx(-(160 / 0.9 + 12))
    assert tight.high == loose.high
    on_time = job_utility_range(job, min_price=0.25, on_demand_price=1.0, always_on_time=True)
    assert on_time.low == pytest.approx(240 - (160 / 0.9 + 12))
    assert on_time.width < tight.width / 2 < loose.width / 2


def test_a_job_not_worth_its_cheapest_cost_can_still_be_given_up():
    hopeless = job_utility_range(
        Job(work=100, deadline=10, value=1, throughput=linear_throughput(4)),
        min_price=0.5,
        on_demand_price=1.0,
    )
    assert hopeless.high == 0
    capped = job_utility_range(
        Job(work=100, deadline=10, value=1, throughput=linear_throughput(4), budget=7.0),
        min_price=0.5,
        on_demand_price=1.0,
    )
    assert capped.low == -7


def test_normalised_refuses_what_is_outside_the_range():
    assert normalised(np.array([-5.0, 0.0, 5.0]), UtilityRange(-5, 5)).tolist() == [0.0, 0.5, 1.0]
    with pytest.raises(InvalidInput, match="within the bounds"):
        normalised(np.array([6.0]), UtilityRange(-5, 5))
    with pytest.raises(InvalidInput, match="within the bounds"):
        normalised(np.array([math.nan]), UtilityRange(-5, 5))
    with pytest.raises(InvalidInput, match="low below high"):
        UtilityRange(1, 1)
