"""What holds of every forecaster that learns, on markets of any kind."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from duetune.core.market import MarketTrace
from duetune.market.forecast import ForecastSource, forecast_table, table_by_steps
from duetune.market.forecast.markov import propagate

names = st.sampled_from(["last", "seasonal:5", "markov", "combined"])
sources = names.map(ForecastSource.parse)


@st.composite
def traces(draw: st.DrawFn) -> MarketTrace:
    slots = draw(st.integers(2, 25))
    prices = st.lists(st.floats(0, 2), min_size=slots, max_size=slots)
    counts = st.lists(st.integers(0, 12), min_size=slots, max_size=slots)
    return MarketTrace.single(np.array(draw(prices)), np.array(draw(counts)), 1.0)


def seen(source: ForecastSource, trace: MarketTrace, slots: int):
    forecaster = source.forecaster(trace, spread=True)
    for slot in range(slots):
        forecaster.observe(trace.slot(slot))
    return forecaster


@settings(max_examples=8)
@given(sources, traces(), st.integers(1, 24), st.integers(1, 60), st.integers(0, 2**32))
def test_the_future_never_changes_a_distribution_or_the_futures_drawn(
    source, trace, now, horizon, seed
):
    now = min(now, trace.slots)
    random = np.random.default_rng(seed)
    prices, counts = trace.spot_price[0].copy(), trace.available[0].copy()
    prices[now:] = random.uniform(0, 3, trace.slots - now)
    counts[now:] = random.integers(0, 16, trace.slots - now)
    other = MarketTrace.single(prices, counts, 1.0)
    ours, theirs = seen(source, trace, now), seen(source, other, now)
    for one, two in (
        (ours.distribution(horizon), theirs.distribution(horizon)),
        (
            ours.draw(horizon, 5, np.random.default_rng(seed)),
            theirs.draw(horizon, 5, np.random.default_rng(seed)),
        ),
    ):
        for field in one.__struct_fields__:
            assert getattr(one, field).tobytes() == getattr(two, field).tobytes()


@settings(max_examples=8)
@given(
    st.sampled_from(["markov", "combined"]).map(ForecastSource.parse),
    traces(),
    st.integers(0, 30),
    st.integers(1, 8),
)
def test_a_table_of_a_trace_equals_stepping_through_it(source, trace, start, horizon):
    slots = 6
    stepped = table_by_steps(source.forecaster(trace, start), trace, start, slots, horizon)
    batch = forecast_table(source, trace, start, slots, horizon)
    for one, two in zip(stepped, batch, strict=True):
        assert one.tobytes() == two.tobytes()
        assert one.dtype == two.dtype


@given(st.integers(1, 6), st.integers(1, 32), st.integers(1, 20), st.integers(0, 2**32))
def test_probability_is_neither_made_nor_lost(most, age, horizon, seed):
    random = np.random.default_rng(seed)
    hazard = random.random((most + 1, 33))
    destination = random.random((most + 1, most + 1))
    np.fill_diagonal(destination, 0.0)
    destination /= destination.sum(axis=1, keepdims=True)
    cumulative = propagate(hazard, destination, int(random.integers(most + 1)), age, horizon)
    assert (np.diff(cumulative, axis=1) >= 0).all()
    # Up to the last count, whose share is what is left over.
    assert (cumulative[:, -1] == 1).all()
    assert (cumulative[:, :-1] <= 1 + 1e-12).all()
