"""Public JSON formats."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import numpy as np
import pytest

from duetune.core.market import MarketTrace, Pool
from duetune.errors import InvalidInput
from duetune.market.json_formats import load_aws_price_history, load_spot_traces_json
from duetune.market.traces import load_trace


@pytest.fixture
def write(tmp_path):
    def writer(document):
        path = tmp_path / "document.json"
        path.write_text(document if isinstance(document, str) else json.dumps(document))
        return path

    return writer


def spot_traces(data, **more):
    return {"metadata": {"gap_seconds": 600}, "data": data, **more}


def test_spot_traces_count_what_is_available(write):
    path = write(spot_traces([0, 1, 4]))
    trace = load_trace(path, spot_usd_gpu_h=1.2, on_demand_usd_gpu_h=3.0, gpus_per_instance=8)
    assert trace.slot_hours == 600 / 3600
    assert trace.available.tolist() == [[0, 8, 32]]
    assert trace.spot_price == pytest.approx(np.full((1, 3), 0.2))
    assert trace.on_demand_price == pytest.approx(np.full((1, 3), 0.5))


def test_spot_traces_prices_are_per_instance_and_can_be_replaced(write):
    path = write(spot_traces([1, 1], prices=[8.0, 16.0]))
    trace = load_trace(path, on_demand_usd_gpu_h=3.0, gpus_per_instance=8, pool="here")
    assert trace.spot_price * 6 == pytest.approx(np.array([[1.0, 2.0]]))
    assert trace.pools == (Pool("here"),)
    fixed = load_trace(path, on_demand_usd_gpu_h=3.0, spot_usd_gpu_h=6.0)
    assert fixed.spot_price == pytest.approx(np.array([[1.0, 1.0]]))


def test_the_sign_of_spot_traces_can_be_turned(write):
    prices = {"on_demand_usd_gpu_h": 3.0, "spot_usd_gpu_h": 1.0, "ones_mean_preempted": True}
    assert load_trace(write(spot_traces([0, 1])), **prices).available.tolist() == [[1, 0]]
    counts = write(spot_traces([0, 3]))
    assert load_spot_traces_json(counts, instances=4, **prices).available.tolist() == [[4, 1]]
    with pytest.raises(InvalidInput, match="data at 1: 3"):
        load_trace(counts, **prices)


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        (spot_traces([]), "at least one value in data"),
        (spot_traces([1, -1]), "data at 1: -1"),
        (spot_traces([1, 0.5]), "data at 1: 0.5"),
        (spot_traces([1, "x"]), r"JSON of this format \(Expected `float`"),
        (spot_traces([1], prices=[1, 2]), "prices of document.json: 2"),
        ({"metadata": {"gap_seconds": 0}, "data": [1]}, "gap_seconds: 0"),
        ({"metadata": {}, "data": [1]}, "gap_seconds"),
        ('{"metadata": {"gap_seconds": 1}, "data": [1, NaN]}', "JSON of this format"),
    ],
)
def test_broken_spot_traces_are_refused(write, document, expected):
    price = None if "prices" in document else 1.0
    with pytest.raises(InvalidInput, match=expected):
        load_trace(write(document), on_demand_usd_gpu_h=3.0, spot_usd_gpu_h=price)


def test_missing_prices_must_be_given(write):
    path = write(spot_traces([1]))
    with pytest.raises(InvalidInput, match="spot_usd_gpu_h is required"):
        load_trace(path, on_demand_usd_gpu_h=3.0)
    with pytest.raises(InvalidInput, match="on_demand_usd_gpu_h is required"):
        load_trace(path, spot_usd_gpu_h=3.0)


def change(time, price, zone="us-east-1a", kind="p5.48xlarge", product="Linux/UNIX"):
    return {
        "AvailabilityZone": zone,
        "InstanceType": kind,
        "ProductDescription": product,
        "SpotPrice": price,
        "Timestamp": f"2025-01-01T{time}Z",
    }


HISTORY = [
    change("03:00:00", "24.0"),
    change("01:10:00", "16.0"),
    change("02:00:00", "40.0", zone="us-east-1b"),
    change("00:00:00", "8.0"),
    change("00:20:00", "32.0", zone="us-east-1b"),
]
GIVEN = {"on_demand_usd_gpu_h": 9.0, "available": 8, "gpus_per_instance": 8}


def test_price_changes_become_steps_read_at_the_start_of_each_slot(write):
    trace = load_trace(write({"SpotPriceHistory": HISTORY}), slot_hours=0.5, **GIVEN)
    assert [pool.name for pool in trace.pools] == ["us-east-1a", "us-east-1b"]
    assert trace.start == datetime(2025, 1, 1, 0, 30, tzinfo=UTC)
    assert (trace.spot_price / 0.5).tolist() == [[1, 1, 2, 2, 2], [4, 4, 4, 5, 5]]
    assert trace.available.tolist() == [[8] * 5] * 2


def test_one_zone_and_a_time_range_can_be_chosen(write):
    path = write({"SpotPriceHistory": HISTORY})
    trace = load_aws_price_history(
        path,
        zones=["us-east-1a"],
        start=datetime(2025, 1, 1, 1, tzinfo=UTC),
        stop=datetime(2025, 1, 1, 5, tzinfo=UTC),
        slot_hours=1.0,
        **GIVEN,
    )
    assert trace.spot_price.tolist() == [[1, 2, 3, 3]]
    with pytest.raises(InvalidInput, match="zones: "):
        load_aws_price_history(path, zones=["mars-1a"], **GIVEN)
    with pytest.raises(InvalidInput, match="not before"):
        load_aws_price_history(path, start=datetime(2024, 1, 1, tzinfo=UTC), **GIVEN)


def test_old_prices_are_a_gap_where_the_caller_says_so(write):
    path = write({"SpotPriceHistory": HISTORY})
    with pytest.raises(InvalidInput, match="gap in pool 'us-east-1a'"):
        load_aws_price_history(path, max_hold_hours=1.5, **GIVEN)


def test_availability_of_another_trace_is_taken_slot_by_slot(write):
    counts = MarketTrace.single(np.ones(3), np.array([4, 0, 2]), 2.0, slot_hours=0.5)
    path = write({"SpotPriceHistory": HISTORY})
    trace = load_trace(path, on_demand_usd_gpu_h=9.0, available=counts)
    assert trace.available.tolist() == [[4, 0, 2]] * 2


@pytest.mark.parametrize(
    ("history", "expected"),
    [
        ([], "this file has none"),
        ([change("00:00:00", "x")], "SpotPrice of price 1"),
        ([change("00:00:00", "-1")], "SpotPrice of price 1"),
        ([change("00:00:00", "1"), change("00:00:00", "2")], "one price for a zone and time"),
        ([change("00:00:00", "1"), change("00:00:00", "1", kind="g5.xlarge")], "instance_type"),
        ([change("00:00:00", "1"), change("00:00:00", "1", product="Windows")], "product"),
        ([change("00:00:00", "1")], "at least one slot"),
        ([{**change("", "1"), "Timestamp": "yesterday"}], "Timestamp of price 1"),
        ([{"SpotPrice": "1"}], "AvailabilityZone"),
    ],
)
def test_broken_price_history_is_refused(write, history, expected):
    with pytest.raises(InvalidInput, match=expected):
        load_trace(write({"SpotPriceHistory": history}), **GIVEN)


@pytest.mark.parametrize(
    ("kind", "gpus", "accelerator"),
    [
        ("p5.48xlarge", 8, "H100"),
        ("p4d.24xlarge", 8, "A100"),
        ("g5.12xlarge", 4, "A10G"),
        ("p3.2xlarge", 1, "V100"),
    ],
)
def test_prices_of_an_instance_become_prices_of_a_gpu(write, kind, gpus, accelerator):
    history = [change("00:00:00", "24.0", kind=kind), change("02:00:00", "24.0", kind=kind)]
    path = write({"SpotPriceHistory": history})
    trace = load_trace(path, on_demand_usd_gpu_h=9.0, available=8, slot_hours=1.0)
    assert trace.spot_price.tolist() == [[24.0 / gpus] * 2]
    assert trace.on_demand_price.tolist() == [[9.0] * 2]
    assert trace.pools[0].accelerator == accelerator


def test_an_unknown_instance_type_needs_its_number_of_gpus(write):
    history = [
        change("00:00:00", "24.0", kind="p9.1xlarge"),
        change("02:00:00", "24.0", kind="p9.1xlarge"),
    ]
    path = write({"SpotPriceHistory": history})
    given = {"on_demand_usd_gpu_h": 9.0, "available": 8, "slot_hours": 1.0}
    with pytest.raises(InvalidInput, match=r"gpus_per_instance is required.*p9\.1xlarge"):
        load_trace(path, **given)
    assert load_trace(path, gpus_per_instance=6, **given).spot_price.tolist() == [[4.0, 4.0]]
    with pytest.raises(InvalidInput, match="gpus_per_instance: 0"):
        load_trace(path, gpus_per_instance=0, **given)


def test_a_price_is_not_capacity(write):
    with pytest.raises(InvalidInput, match="available is required"):
        load_trace(write({"SpotPriceHistory": HISTORY}), on_demand_usd_gpu_h=9.0)
