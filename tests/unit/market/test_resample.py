from __future__ import annotations

from datetime import UTC, datetime

import numpy as np
import pytest

from duetune.core.market import MarketTrace
from duetune.errors import InvalidInput
from duetune.market.resample import resample, slice_slots, slice_time, with_availability

START = datetime(2025, 1, 1, tzinfo=UTC)


def market(prices, counts, slot_hours=1.0):
    return MarketTrace.single(
        np.array(prices) * slot_hours,
        np.array(counts),
        9.0 * slot_hours,
        slot_hours=slot_hours,
        start=START,
    )


def test_longer_slots_average_prices_and_keep_the_least_availability():
    trace = resample(market([1.0, 2.0, 3.0, 5.0, 7.0], [4, 2, 3, 3, 9]), 2.0)
    assert trace.spot_price.tolist() == [[3.0, 8.0]]
    assert trace.on_demand_price.tolist() == [[18.0, 18.0]]
    assert trace.available.tolist() == [[2, 3]]
    assert trace.start == START


@pytest.mark.parametrize(("mode", "expected"), [("start", [4, 3]), ("mean", [3, 5])])
def test_availability_of_longer_slots_can_be_counted_otherwise(mode, expected):
    trace = resample(market([1.0] * 4, [4, 2, 3, 8]), 2.0, availability=mode)
    assert trace.available.tolist() == [expected]


def test_shorter_slots_hold_what_was():
    trace = resample(market([1.0, 2.0], [4, 2]), 0.25)
    assert (trace.spot_price / 0.25).tolist() == [[1, 1, 1, 1, 2, 2, 2, 2]]
    assert trace.available.tolist() == [[4, 4, 4, 4, 2, 2, 2, 2]]


def test_lengths_that_do_not_divide_are_weighted_by_overlap():
    trace = resample(market([1.0, 4.0, 7.0], [4, 2, 3]), 1.5)
    assert (trace.spot_price / 1.5) == pytest.approx(np.array([[2.0, 6.0]]))
    assert trace.available.tolist() == [[2, 2]]
    shorter = resample(market([1.0, 4.0], [4, 2]), 0.75)
    assert (shorter.spot_price / 0.75) == pytest.approx(np.array([[1.0, 3.0]]))
    assert shorter.available.tolist() == [[4, 2]]


def test_six_ticks_of_ten_minutes_are_exactly_an_hour_however_many_there_are():
    trace = market([1.0] * 60_000, np.arange(60_000) // 6, slot_hours=1 / 6)
    hourly = resample(trace, 1.0)
    assert hourly.available.tolist() == [list(range(10_000))]


def test_a_constant_price_stays_constant():
    trace = resample(market([2.3724] * 1000, [1] * 1000, slot_hours=1 / 6), 0.7)
    assert np.unique(trace.spot_price).size == 1


def test_the_same_length_changes_nothing():
    trace = market([1.0], [1])
    assert resample(trace, 1.0) is trace


@pytest.mark.parametrize("hours", [0.0, -1.0, float("nan"), float("inf"), 3.5])
def test_impossible_lengths_are_refused(hours):
    with pytest.raises(InvalidInput, match="slot_hours"):
        resample(market([1.0] * 3, [1] * 3), hours)
    with pytest.raises(InvalidInput, match="min, start or mean"):
        resample(market([1.0], [1]), 0.5, availability="max")


def test_slices_keep_their_place_in_time():
    trace = slice_slots(market([1.0, 2.0, 3.0, 4.0], [1, 2, 3, 4]), 1, 3)
    assert trace.available.tolist() == [[2, 3]]
    assert trace.start == datetime(2025, 1, 1, 1, tzinfo=UTC)
    for start, stop in ((-1, 2), (2, 2), (0, 5), (4, 5)):
        with pytest.raises(InvalidInput, match=r"start|stop"):
            slice_slots(market([1.0] * 4, [1] * 4), start, stop)


def test_slices_by_time_keep_whole_slots_only():
    trace = market([1.0] * 4, [1, 2, 3, 4])
    cut = slice_time(trace, datetime(2025, 1, 1, 0, 30, tzinfo=UTC))
    assert cut.available.tolist() == [[2, 3, 4]]
    cut = slice_time(trace, stop=datetime(2025, 1, 1, 2, 30, tzinfo=UTC))
    assert cut.available.tolist() == [[1, 2]]
    with pytest.raises(InvalidInput, match="time range"):
        slice_time(trace, datetime(2026, 1, 1, tzinfo=UTC))
    with pytest.raises(InvalidInput, match="a time with a time zone"):
        slice_time(trace, datetime(2025, 1, 1))  # noqa: DTZ001
    with pytest.raises(InvalidInput, match="a start time"):
        slice_time(MarketTrace.single(np.ones(1), np.ones(1, dtype=np.int64), 1.0), START)


def test_two_sources_join_first_slot_to_first_slot():
    prices, counts = market([1.0, 2.0, 3.0], [0, 0, 0]), market([9.0] * 4, [4, 5, 6, 7], 0.5)
    joined = with_availability(prices, counts)
    assert joined.available.tolist() == [[4, 6]]
    assert joined.spot_price.tolist() == [[1.0, 2.0]]
    assert with_availability(prices, 3).available.tolist() == [[3, 3, 3]]
    with pytest.raises(InvalidInput, match="available"):
        with_availability(prices, -1)
