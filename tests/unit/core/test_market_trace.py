from __future__ import annotations

from datetime import UTC, datetime

import numpy as np
import pytest

from duetune.core.market import MarketTrace, Pool
from duetune.errors import InvalidInput, NotFound

NAN = float("nan")


def two_pools() -> MarketTrace:
    return MarketTrace(
        spot_price=np.array([[0.1, 0.2], [0.3, 0.4]]),
        available=np.array([[1, 2], [3, 4]]),
        on_demand_price=np.ones((2, 2)),
        pools=(Pool("a"), Pool("b")),
    )


@pytest.mark.parametrize(
    ("price", "count", "dear", "words"),
    [
        ([0.1, NAN], [1, 1], 1.0, ["spot_price", "'default'", "slot 1", "nan", "finite"]),
        ([0.1, np.inf], [1, 1], 1.0, ["spot_price", "slot 1", "inf", "finite"]),
        ([-0.1, 0.1], [1, 1], 1.0, ["spot_price", "slot 0", "-0.1", "zero or more"]),
        ([0.1, 0.1], [1, -2], 1.0, ["available", "slot 1", "-2", "zero or more"]),
        ([0.1, 0.1], [1, 1], 0.0, ["on_demand_price", "slot 0", "0.0", "positive"]),
        ([0.1, 0.1], [1, 1], NAN, ["on_demand_price", "slot 0", "nan", "finite"]),
        ([], [], 1.0, ["trace", "empty"]),
        ([0.1, 0.1], [1], 1.0, ["available", "(1, 1)", "(1, 2)"]),
    ],
)
def test_a_bad_number_is_named_with_its_place_and_what_is_allowed(price, count, dear, words):
    with pytest.raises(InvalidInput) as caught:
        MarketTrace.single(np.array(price, dtype=float), np.array(count, dtype=np.int64), dear)
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize("hours", [0.0, -1.0, NAN])
def test_slots_need_a_length(hours):
    with pytest.raises(InvalidInput, match="slot_hours"):
        MarketTrace.single(np.ones(2), np.ones(2, dtype=np.int64), 1.0, slot_hours=hours)


def test_a_start_without_a_time_zone_is_refused():
    naive = datetime(2026, 1, 1, tzinfo=UTC).replace(tzinfo=None)
    with pytest.raises(InvalidInput, match="time zone"):
        MarketTrace.single(np.ones(2), np.ones(2, dtype=np.int64), 1.0, start=naive)


def test_pools_need_different_names():
    with pytest.raises(InvalidInput, match="pools"):
        MarketTrace(
            spot_price=np.ones((2, 1)),
            available=np.ones((2, 1), dtype=np.int64),
            on_demand_price=np.ones((2, 1)),
            pools=(Pool("a"), Pool("a")),
        )


def test_rows_and_pools_must_agree():
    with pytest.raises(InvalidInput, match="spot_price"):
        MarketTrace(
            spot_price=np.ones((2, 1)),
            available=np.ones((2, 1), dtype=np.int64),
            on_demand_price=np.ones((2, 1)),
        )


@pytest.mark.parametrize("counts", [[1.7, 2.0], [NAN, 2.0]])
def test_a_count_that_is_not_a_whole_number_is_refused(counts):
    with pytest.raises(InvalidInput, match="available"):
        MarketTrace.single(np.ones(2), np.array(counts), 1.0)


def test_series_cannot_be_changed_afterwards():
    trace = MarketTrace.single(np.ones(2), np.ones(2, dtype=np.int64), 1.0)
    with pytest.raises(ValueError, match="read-only"):
        trace.spot_price[0, 0] = 0.5


def test_a_pool_is_found_by_name_and_the_first_by_default():
    trace = two_pools()
    assert trace.pool().pools == (Pool("a"),)
    assert trace.pool("b").slot(1).spot_price == 0.4
    assert trace.pool("b").slot(1).available == 4


def test_an_unknown_pool_is_named_with_those_there_are():
    with pytest.raises(NotFound, match=r"no pool named 'c'; known: a, b"):
        two_pools().pool("c")


def test_a_window_beyond_the_end_says_how_long_the_trace_is():
    trace = two_pools()
    with pytest.raises(InvalidInput, match=r"has 2 slots, the job needs 5"):
        trace.window(0, 5)
    with pytest.raises(InvalidInput, match=r"from 0 to 1"):
        trace.window(2, 1)
    with pytest.raises(InvalidInput, match=r"start"):
        trace.window(-1, 1)


def test_a_window_is_the_slots_asked_for():
    assert two_pools().window(1, 1).spot_price.tolist() == [0.2]
