"""Errors of forecasts with a structure: correlated in time, or all in one direction."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from duetune.core.market import MarketTrace
from duetune.market.forecast.noisy_oracle import (
    BIAS_SLOTS,
    COUNT,
    MEMORY,
    PAPER_REGIMES,
    PRICE,
    ErrorRegime,
    better_than_it_is,
    errors,
    noisy_forecasts,
)

SHAPED = [regime for regime in ErrorRegime if regime not in PAPER_REGIMES]
seeds = st.integers(0, 50)


def market(slots=300):
    random = np.random.default_rng(5)
    return MarketTrace.single(
        random.uniform(0.2, 0.8, slots), random.integers(0, 17, slots), on_demand_price=1.0
    )


def test_the_four_regimes_of_the_paper_give_the_bytes_they_always_gave():
    told = hashlib.sha256()
    for regime in PAPER_REGIMES:
        for array in noisy_forecasts(market(), np.arange(300), 7, regime=regime, level=0.7, seed=3):
            told.update(array.tobytes())
    assert told.hexdigest() == ("3a91b5255a9c7508e57132e40e81850989c12a5b38354958e38ae6b4319807e8")


@pytest.mark.parametrize("regime", SHAPED)
@given(seed=seeds, start=st.integers(-1, 200), slots=st.integers(1, 40), horizon=st.integers(1, 9))
@settings(max_examples=15)
def test_an_error_depends_on_seed_slot_and_distance_alone(regime, seed, start, slots, horizon):
    for series in (PRICE, COUNT):
        whole = errors(seed, series, np.arange(-1, 300), 12, regime)
        part = errors(seed, series, np.arange(start, start + slots), horizon, regime)
        assert np.array_equal(whole[start + 1 : start + 1 + slots, :horizon], part)


@pytest.mark.parametrize("regime", SHAPED)
def test_their_mean_size_is_that_of_uniform_errors(regime):
    sizes = np.abs(errors(1, PRICE, np.arange(60_000), 2, regime))
    assert sizes.mean() == pytest.approx(0.5, rel=0.04)


@given(seed=seeds, slot=st.integers(0, 100), earlier=st.integers(1, 6))
@settings(max_examples=20)
def test_correlated_errors_are_about_a_slot_whenever_it_is_forecast(seed, slot, earlier):
    now = np.array([slot + earlier, slot])
    found = errors(seed, COUNT, now, 10, ErrorRegime.FIXED_CORRELATED)
    assert found[0, 0] == found[1, earlier]


def test_correlated_errors_fade_as_stated_and_prices_err_apart_from_counts():
    now = np.arange(40_000)
    price, count = (
        errors(2, series, now, 1, ErrorRegime.FIXED_CORRELATED)[:, 0] for series in (PRICE, COUNT)
    )
    assert np.corrcoef(price[:-1], price[1:])[0, 1] == pytest.approx(MEMORY, abs=0.02)
    assert np.corrcoef(price[:-5], price[5:])[0, 1] == pytest.approx(MEMORY**5, abs=0.05)
    assert abs(np.corrcoef(price, count)[0, 1]) < 0.1


@given(seed=seeds)
@settings(max_examples=20)
def test_biased_forecasts_of_a_day_are_all_too_good_or_all_too_bad(seed):
    trace = market()
    now = np.arange(trace.slots)
    price, count = noisy_forecasts(
        trace, now, 5, regime=ErrorRegime.PROPORTIONAL_BIASED, level=0.6, seed=seed
    )
    true_price, true_count = noisy_forecasts(
        trace, now, 5, regime=ErrorRegime.PROPORTIONAL_BIASED, level=0.0, seed=seed
    )
    better = better_than_it_is(seed, now)
    assert (price[better] <= true_price[better]).all()
    assert (count[better] >= true_count[better]).all()
    assert (price[~better] >= true_price[~better]).all()
    assert (count[~better] <= true_count[~better]).all()
    days = (now + 1) // BIAS_SLOTS
    assert all(len(set(better[days == day])) == 1 for day in set(days))


def test_both_directions_come_about_as_often():
    share = better_than_it_is(4, np.arange(48 * 400)).mean()
    assert 0.4 < share < 0.6
