from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from duetune.core.market import MarketTrace
from duetune.market.forecast import ErrorRegime, ForecastSource, forecast_table, table_by_steps

causal_sources = st.one_of(
    st.just("last"), st.integers(1, 12).map(lambda period: f"seasonal:{period}")
).map(ForecastSource.parse)
noisy_sources = st.builds(
    lambda regime, level, seed: ForecastSource.parse(f"noisy:{regime}:{level}", seed=seed),
    st.sampled_from(ErrorRegime),
    st.floats(0, 2),
    st.integers(0, 5),
)
sources = st.one_of(causal_sources, noisy_sources, st.just(ForecastSource()))


@st.composite
def traces(draw: st.DrawFn) -> MarketTrace:
    slots = draw(st.integers(1, 30))
    prices = st.lists(st.floats(0, 3), min_size=slots, max_size=slots)
    counts = st.lists(st.integers(0, 16), min_size=slots, max_size=slots)
    return MarketTrace.single(np.array(draw(prices)), np.array(draw(counts)), 1.0)


@given(sources, traces(), st.integers(0, 25), st.integers(0, 12), st.integers(0, 8))
def test_batch_equals_stepping(source, trace, start, slots, horizon):
    stepped = table_by_steps(source.forecaster(trace, start), trace, start, slots, horizon)
    batch = forecast_table(source, trace, start, slots, horizon)
    for one, other in zip(stepped, batch, strict=True):
        assert one.tobytes() == other.tobytes()
        assert one.dtype == other.dtype
        assert other.flags.c_contiguous
    if start + slots <= trace.slots:
        shared = forecast_table(source.table(trace, horizon), trace, start, slots, horizon)
        assert shared[0].tobytes() == batch[0].tobytes()
        assert shared[1].tobytes() == batch[1].tobytes()


@settings(deadline=None)
@given(causal_sources, traces(), st.integers(0, 29), st.integers(1, 8), st.integers(0, 2**32))
def test_changing_the_future_never_changes_a_causal_forecast(source, trace, now, horizon, seed):
    now = min(now, trace.slots - 1)
    random = np.random.default_rng(seed)
    prices, counts = trace.spot_price[0].copy(), trace.available[0].copy()
    prices[now + 1 :] = random.uniform(0, 3, trace.slots - now - 1)
    counts[now + 1 :] = random.integers(0, 16, trace.slots - now - 1)
    other = MarketTrace.single(prices, counts, 1.0)
    ours = forecast_table(source, trace, 0, now + 1, horizon)
    theirs = forecast_table(source, other, 0, now + 1, horizon)
    assert ours[0].tobytes() == theirs[0].tobytes()
    assert ours[1].tobytes() == theirs[1].tobytes()


@settings(deadline=None)
@given(noisy_sources, traces(), st.integers(1, 8))
def test_noisy_forecasts_stay_within_their_clips(source, trace, horizon):
    if source.level == 0:
        return
    table = source.table(trace, horizon)
    low = trace.spot_price.min()
    assert (table.spot_price >= low).all()
    assert (table.spot_price <= max(low, 1.5)).all()
    assert (table.available >= 0).all()
    assert (table.available <= trace.available.max()).all()
