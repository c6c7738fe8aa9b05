"""The study of how far a market's past tells its future."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from duetune.core.market import MarketTrace
from duetune.market.predictability_pattern import (
    autocorrelations,
    daily_pattern,
    hourly_means,
    weekly_pattern,
)
from duetune.market.predictability_skill import Predictor, predictions, skill_by_horizon
from duetune.market.predictability_spells import (
    SpellStatistics,
    entropy,
    kaplan_meier,
    spells_of,
    survival,
)
from duetune.market.statistics import market_statistics, series_predictability
from duetune.market.synthetic import synthetic_market

DAY = 48


def random(seed=0):
    return np.random.default_rng(seed)


def wandering(slots, memory, seed):
    """A stationary series without a clock; a random walk if ``memory`` is 1."""
    steps = random(seed).normal(size=slots)
    values = np.empty(slots)
    values[0] = steps[0]
    for slot in range(1, slots):
        values[slot] = memory * values[slot - 1] + steps[slot]
    return values


def chain(slots, ends, begins, seed):
    """Up and down as a Markov chain."""
    draws = random(seed).random(slots)
    up = np.zeros(slots, dtype=np.bool_)
    for slot in range(1, slots):
        up[slot] = draws[slot] >= ends if up[slot - 1] else draws[slot] < begins
    return up


class TestPatterns:
    def test_a_daily_pattern_is_found_and_measured(self):
        hour = np.arange(30 * DAY) % DAY
        values = np.where(hour < DAY // 2, 4.0, 0.0) + random().normal(scale=0.5, size=hour.size)
        found = daily_pattern(values, 0.5, random())
        assert found.real
        assert found.cycles == 30
        assert found.beyond_chance == pytest.approx(4 / (4 + 0.25), abs=0.03)
        assert found.amplitude == pytest.approx(4.0, abs=0.5)

    @pytest.mark.parametrize("memory", [0.5, 0.97, 1.0])
    def test_series_without_a_clock_show_one_no_more_often_than_chance_allows(self, memory):
        found = [
            daily_pattern(wandering(14 * DAY, memory, seed), 0.5, random()) for seed in range(40)
        ]
        # Of 40 tests at 5%, more than 6 would come by chance once in 150 times.
        assert sum(each.real for each in found) <= 6
        assert np.median([each.beyond_chance for each in found]) < 0.02

    def test_the_days_of_the_week_are_told_from_the_hours_of_the_day(self):
        slots = np.arange(8 * 7 * 24)
        daily = np.where(slots % 24 < 12, 1.0, 0.0) + random().normal(scale=0.3, size=slots.size)
        weekend = daily + np.where(slots // 24 % 7 >= 5, 2.0, 0.0)
        assert not weekly_pattern(daily, 1.0, random()).real
        assert weekly_pattern(weekend, 1.0, random()).real

    def test_what_is_too_short_or_does_not_divide_a_day_has_no_pattern(self):
        assert daily_pattern(wandering(4 * DAY, 0.5, 0), 0.5, random()) is None
        assert daily_pattern(wandering(4000, 0.5, 0), 0.7, random()) is None
        assert weekly_pattern(wandering(20 * DAY, 0.5, 0), 0.5, random()) is None
        assert daily_pattern(np.ones(30 * DAY), 0.5, random()) is None

    def test_means_by_hour_are_of_whole_days(self):
        hours, means = hourly_means(np.tile([1.0, 2.0, 3.0, 4.0], 3), 6.0)
        assert hours.tolist() == [0, 6, 12, 18]
        assert means.tolist() == [1, 2, 3, 4]

    def test_lags_shorter_than_a_slot_cannot_be_told(self):
        found = {
            each.hours: each.correlation for each in autocorrelations(wandering(400, 0.9, 1), 6.0)
        }
        assert found[1.0] is None
        assert found[3.0] is None
        assert 0.7 < found[6.0] < 1.0


class TestSpells:
    def test_the_first_spell_is_left_out_and_the_last_one_censored(self):
        spells = spells_of(np.array([1, 1, 0, 1, 1, 1, 0, 0, 1, 1], dtype=np.bool_))
        assert spells.slots.tolist() == [3, 2]
        assert spells.ended.tolist() == [True, False]

    def test_kaplan_and_meier_by_hand(self):
        spells = SpellStatistics(np.array([1, 2, 2, 3]), np.array([True, True, False, True]))
        # After slot 1: 1 of 4 ended. After 2: of the 2 whose going on is known, 1.
        assert kaplan_meier(spells).tolist() == pytest.approx([1, 0.75, 0.375, 0.0])

    def test_without_censoring_survival_is_the_share_that_is_longer(self):
        lengths = random().integers(1, 20, size=200)
        left = kaplan_meier(SpellStatistics(lengths, np.ones(200, dtype=np.bool_)))
        assert left[5] == pytest.approx((lengths > 5).mean())

    def test_a_chain_without_memory_does_not_age(self):
        found = survival(chain(6000, 0.1, 0.2, 3), 0.5)
        assert abs(found.age_trend) < 2.5
        assert found.median_hours == pytest.approx(0.5 * math.log(0.5) / math.log(0.9), abs=0.6)
        assert all(each.per_hour == pytest.approx(0.2, rel=0.3) for each in found.hazard[:3])

    def test_a_mixture_of_short_and_long_spells_ages(self):
        lengths = np.where(random().random(300) < 0.5, 1, random(1).geometric(0.02, 300))
        state = np.concatenate(
            [np.r_[False, np.ones(length, dtype=np.bool_)] for length in lengths]
        )
        found = survival(state, 0.5)
        assert found.age_trend < -5
        assert found.hazard[0].per_hour > 5 * found.hazard[-1].per_hour

    def test_always_up_has_no_spells_to_tell_of(self):
        assert survival(np.ones(50, dtype=np.bool_), 0.5) is None


class TestEntropy:
    def test_a_fair_coin_is_a_bit_and_its_past_does_not_help(self):
        found = entropy(random().random(8000) < 0.5)
        assert found.marginal == pytest.approx(1.0, abs=0.01)
        assert found.given_last >= found.marginal
        assert found.given_age >= found.given_last

    def test_a_chain_has_the_entropy_of_its_transitions(self):
        def bits(share):
            return -share * math.log2(share) - (1 - share) * math.log2(1 - share)

        found = entropy(chain(20_000, 0.1, 0.2, 0))
        assert found.given_last == pytest.approx((2 * bits(0.1) + bits(0.2)) / 3, abs=0.02)
        assert found.given_last < found.marginal

    def test_spells_of_one_length_are_known_by_their_age(self):
        found = entropy(np.tile([True] * 8 + [False] * 8, 200))
        assert found.given_age < 0.75 * found.given_last


class TestSkill:
    def test_the_mean_beats_the_last_value_on_noise_by_half_the_squared_error(self):
        (hour, *_) = skill_by_horizon(random().normal(size=3000), 0.5)
        assert hour.squared(Predictor.MEAN) == pytest.approx(0.5, abs=0.05)
        assert hour.squared(Predictor.DAMPED) == pytest.approx(0.5, abs=0.05)
        assert abs(hour.explained) < 0.02

    def test_nothing_beats_the_last_value_of_a_random_walk_by_much(self):
        for horizon in skill_by_horizon(wandering(4000, 1.0, 5), 0.5):
            assert max(each.squared for each in horizon.skills) < 0.05
            assert horizon.explained > 0.5

    def test_a_clock_is_used_by_the_predictors_that_know_the_hour(self):
        slots = np.arange(40 * DAY)
        values = np.rint(4 + 4 * np.sin(2 * np.pi * slots / DAY)) + random().integers(
            0, 2, slots.size
        )
        by_hours = {each.hours: each for each in skill_by_horizon(values, 0.5)}
        assert by_hours[6.0].squared(Predictor.HOURLY) > 0.9
        assert by_hours[12.0].squared(Predictor.SEASONAL) > 0.9
        assert by_hours[12.0].squared(Predictor.MEAN) < 0.8

    def test_momentum_is_used_by_the_trend(self):
        prices = 10 + np.cumsum(wandering(4000, 0.5, 2)) / 100
        by_hours = {each.hours: each for each in skill_by_horizon(prices, 6.0)}
        assert set(by_hours) == {6.0, 12.0, 24.0}
        assert by_hours[6.0].squared(Predictor.TREND) == pytest.approx(0.25, abs=0.05)

    def test_a_chain_is_forecast_by_its_transitions(self):
        up = chain(20_000, 0.1, 0.1, 1).astype(float)
        (hour, *_) = skill_by_horizon(up, 0.5)
        # Two slots ahead the correlation is 0.8 ** 2, which is all a chain can tell.
        assert hour.explained == pytest.approx(0.64**2, abs=0.03)
        assert hour.squared(Predictor.MARKOV) == pytest.approx(
            hour.squared(Predictor.DAMPED), abs=0.01
        )

    def test_a_constant_series_has_nothing_to_forecast(self):
        assert skill_by_horizon(np.ones(500), 0.5) == ()

    @given(
        values=arrays.arrays(np.float64, 60, elements=st.integers(0, 4).map(float)),
        cut=st.integers(10, 58),
        ahead=st.integers(1, 9),
    )
    @settings(max_examples=40)
    def test_the_future_never_changes_what_was_expected(self, values, cut, ahead):
        # Two levels of the whole series are what the chain calls up and down: known beforehand.
        values[:2] = 0.0, 4.0
        changed = values.copy()
        changed[cut:] = 4.0 - changed[cut:]
        before, after = (predictions(series, ahead, 8) for series in (values, changed))
        for predictor in before.keys() & after.keys():
            assert np.array_equal(before[predictor][:cut], after[predictor][:cut]), predictor


class TestStatistics:
    def test_predictability_is_added_on_demand_and_the_rest_stays(self):
        trace = synthetic_market("diurnal", seed=3, slots=30 * DAY)
        quick, deep = market_statistics(trace), market_statistics(trace, predictable=True)
        assert quick.predictability is None
        assert quick.acf_24h == deep.acf_24h
        found = deep.predictability
        assert found.available.daily.real
        assert found.entropy.given_last < found.entropy.marginal
        assert found.up.spells > 20
        assert [each.hours for each in found.available.horizons] == [1, 3, 6, 12, 24]

    def test_the_same_seed_gives_the_same_figures_and_another_seed_other_chances(self):
        trace = synthetic_market("outage", seed=3, slots=20 * DAY)
        first, again, other = (
            market_statistics(trace, predictable=True, seed=seed) for seed in (1, 1, 2)
        )
        assert first == again
        assert first.predictability.available.daily.chance != (
            other.predictability.available.daily.chance
        )

    def test_price_and_availability_that_move_together_correlate(self):
        days = np.repeat(random().integers(1, 9, 12), 24)
        trace = MarketTrace.single(1.0 / days, days, 2.0, slot_hours=1.0)
        found = market_statistics(trace, predictable=True).predictability
        assert found.correlation < -0.8
        assert found.correlation_of_days < -0.8

    @pytest.mark.parametrize("slots", [1, 2, 30])
    def test_short_traces_say_what_they_cannot_tell(self, slots):
        trace = synthetic_market("diurnal", seed=1, slots=slots)
        found = market_statistics(trace, predictable=True).predictability
        assert found.available.daily is None
        assert found.available.horizons == ()
        assert found.correlation_of_days is None

    def test_any_series_of_numbers_can_be_studied(self):
        found = series_predictability(wandering(400, 0.9, 1), 6.0, seed=0, horizons=(6, 168))
        assert [each.hours for each in found.horizons] == [6, 168]
