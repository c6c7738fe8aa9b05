"""What must hold for every market, file and slot length."""

from __future__ import annotations

import tempfile
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from duetune.core.market import MarketTrace, Pool
from duetune.market.resample import resample
from duetune.market.synthetic import MarketKind, synthetic_market
from duetune.market.traces import load_trace, save_trace

SLOT_HOURS = st.one_of(
    st.sampled_from([0.25, 0.5, 1.0, 1 / 6, 195 / 3600, 1 / 3]),
    st.floats(0.01, 24, allow_subnormal=False),
)
HOURLY = st.one_of(st.just(0.0), st.floats(1e-6, 1e4, allow_subnormal=False))
NAMES = st.text(st.characters(codec="utf-8", exclude_categories=["C", "Z"]), min_size=1, max_size=6)
MOMENTS = st.datetimes(datetime(1980, 1, 1), datetime(2100, 1, 1), timezones=st.just(UTC))  # noqa: DTZ001
FEW = settings(max_examples=60, deadline=None)


@st.composite
def traces(draw):
    pools = draw(st.lists(NAMES, min_size=1, max_size=3, unique=True))
    slots = draw(st.integers(1, 12))
    slot_hours = draw(SLOT_HOURS)

    def rows(values):
        row = st.lists(values, min_size=slots, max_size=slots)
        return np.array(draw(st.lists(row, min_size=len(pools), max_size=len(pools))))

    return MarketTrace(
        spot_price=rows(HOURLY).astype(np.float64) * slot_hours,
        available=rows(st.integers(0, 1000)).astype(np.int64),
        on_demand_price=rows(st.floats(1e-3, 1e4)).astype(np.float64) * slot_hours,
        slot_hours=slot_hours,
        pools=tuple(Pool(name, draw(NAMES), draw(st.just("") | NAMES)) for name in pools),
        start=draw(st.none() | MOMENTS),
    )


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
@FEW
@given(trace=traces())
def test_what_is_saved_is_loaded_bit_by_bit(suffix, trace):
    if suffix == ".parquet":
        pytest.importorskip("polars", reason="needs the parquet extra")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"{trace.name}{suffix}"
        save_trace(trace, path)
        loaded = load_trace(path)
    for field in ("spot_price", "available", "on_demand_price"):
        assert getattr(loaded, field).tobytes() == getattr(trace, field).tobytes()
    for field in ("slot_hours", "pools", "start", "name"):
        assert getattr(loaded, field) == getattr(trace, field)


@FEW
@given(trace=traces(), slot_hours=SLOT_HOURS)
def test_resampling_keeps_the_time_weighted_price(trace, slot_hours):
    hours = trace.slots * trace.slot_hours
    if slot_hours > hours:
        return
    other = resample(trace, slot_hours)
    covered = other.slots * slot_hours
    assert covered <= hours * (1 + 1e-9)
    assert hours - covered < slot_hours * (1 + 1e-9)
    edges = np.minimum(np.arange(trace.slots + 1) * trace.slot_hours, covered)
    for field in ("spot_price", "on_demand_price"):
        before = getattr(trace, field) / trace.slot_hours @ np.diff(edges)
        after = getattr(other, field).sum(axis=1)
        assert after == pytest.approx(before, rel=1e-7, abs=1e-12)


@FEW
@given(trace=traces(), slot_hours=SLOT_HOURS)
def test_the_least_availability_is_there_all_the_time(trace, slot_hours):
    if slot_hours > trace.slots * trace.slot_hours:
        return
    other = resample(trace, slot_hours)
    start = resample(trace, slot_hours, availability="start")
    mean = resample(trace, slot_hours, availability="mean")
    assert (other.available <= start.available).all()
    assert (other.available <= mean.available).all()
    slack = 1e-6
    for slot in range(other.slots):
        first = int(slot * slot_hours / trace.slot_hours + slack)
        last = max(int(np.ceil((slot + 1) * slot_hours / trace.slot_hours - slack)), first + 1)
        covered = trace.available[:, first:last]
        assert (other.available[:, slot] == covered.min(axis=1)).all()


@FEW
@given(
    kind=st.sampled_from(MarketKind),
    seed=st.integers(0, 2**32),
    slots=st.integers(1, 300),
    slot_hours=st.sampled_from([1 / 6, 0.5, 1.0, 6.0]),
    most=st.integers(1, 64),
    motion=st.sampled_from(["slow", "volatile"]),
)
def test_synthetic_markets_are_sound_and_repeat(kind, seed, slots, slot_hours, most, motion):
    options = {"slots": slots, "slot_hours": slot_hours, "max_available": most}
    first = synthetic_market(kind, seed=seed, price_motion=motion, **options)
    again = synthetic_market(kind, seed=seed, price_motion=motion, **options)
    assert first.spot_price.tobytes() == again.spot_price.tobytes()
    assert first.available.tobytes() == again.available.tobytes()
    assert (first.spot_price > 0).all()
    assert first.available.max() <= most
    if kind is not MarketKind.PRICE_SPIKE:
        assert (first.spot_price <= first.on_demand_price).all()
