"""The data folder: small tables made here, and the real ones where they are."""

from __future__ import annotations

import csv
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest

from duetune.errors import InvalidInput, NotFound
from duetune.market import catalog, datasets
from duetune.market.instance_types import AWS_INSTANCES, InstanceType
from duetune.market.resample import slice_time

polars = pytest.importorskip("polars", reason="needs the parquet extra")

START = datetime(2025, 3, 10, tzinfo=UTC)


def hours(*offsets):
    return [START + timedelta(hours=offset) for offset in offsets]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("DUETUNE_DATA", str(tmp_path))

    def write(name, **columns):
        frame = polars.DataFrame(columns)
        if name.endswith(".csv"):
            frame.write_csv(tmp_path / name)
        else:
            frame.write_parquet(tmp_path / name)

    return write


@pytest.fixture
def real():
    if not (datasets.data_folder() / "README.md").is_file():
        pytest.skip("the data folder (shared/data beside the repository) is not here")


def test_a_missing_folder_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("DUETUNE_DATA", str(tmp_path))
    with pytest.raises(NotFound, match=r"h100_counts\.parquet.*DUETUNE_DATA"):
        datasets.h100_counts()


def test_h100_counts_hold_a_short_gap(folder):
    ticks = [START + timedelta(minutes=10 * tick) for tick in (0, 1, 2, 5, 6)]
    folder(
        "h100_counts.parquet",
        zone=["b"] * 5 + ["a"] * 5,
        ts=ticks * 2,
        available=[1, 2, 3, 4, 5] + [16] * 5,
        spot_usd_gpu_h=[3.0] * 10,
        ondemand_usd_gpu_h=[9.0] * 10,
    )
    trace = datasets.h100_counts(zones=["b", "a"])
    assert [pool.name for pool in trace.pools] == ["b", "a"]
    assert trace.available[0].tolist() == [1, 2, 3, 3, 3, 4, 5]
    assert trace.slot_hours == 1 / 6
    assert datasets.h100_counts(zones=["b"], gaps="longest").slots == 3
    assert datasets.h100_counts(slot_hours=0.5).available.tolist() == [[16, 16], [1, 3]]
    with pytest.raises(InvalidInput, match="gap in pool 'a'"):
        datasets.h100_counts(gaps="error")


def test_v100_slots_are_chosen_by_set_and_zone(folder):
    sets = ["x/one/z1_v100_1"] * 2 + ["x/one/z2_v100_1"] * 2 + ["x/two/z1_v100_1"] * 2
    folder(
        "v100_2023_paired_slots.parquet",
        trace_id=sets,
        zone=["z"] * 6,
        slot=[0, 1] * 3,
        ts_assumed=hours(0, 0.5) * 3,
        avail_min=[0, 1, 1, 1, 9, 9],
        avail_start=[1, 1, 1, 1, 9, 9],
        spot_usd_h=[1.0, 2.0] * 3,
        ondemand_usd_h=[3.0] * 6,
    )
    trace = datasets.v100_paired(trace_set="x/one")
    assert [pool.name for pool in trace.pools] == ["z1", "z2"]
    assert trace.available.tolist() == [[0, 1], [1, 1]]
    assert trace.spot_price.tolist() == [[0.5, 1.0]] * 2
    start = datasets.v100_paired(trace_set="x/one", zones=["z1"], availability="start")
    assert start.available.tolist() == [[1, 1]]
    with pytest.raises(InvalidInput, match="trace_set"):
        datasets.v100_paired(trace_set="x/three")


def spot_traces_tables(folder, price):
    folder(
        "spot_traces_series.csv",
        trace_id=["s/z1_k80_8", "s/z2_v100_1"],
        trace_set=["s", "s"],
        zone=["z1", "z2"],
        accelerator=["K80", "V100"],
        gpus_per_node=[8, 1],
        gap_seconds=[600, 600],
        start_date=["2025-03-10"] * 2,
        start_utc=[None, None],
    )
    names = ["s/z1_k80_8"] * 4 + ["s/z2_v100_1"] * 4
    folder(
        "spot_traces_ticks.parquet",
        trace_id=names,
        tick=[0, 1, 2, 3] * 2,
        available_nodes=[1, 0, 1, 1, 0, 1, 2, 3],
        spot_usd_h=[price] * 8,
    )
    folder(
        "spot_traces_slots.parquet",
        trace_id=names,
        slot_seconds=[1800] * 8,
        slot=[0, 1, 2, 3] * 2,
        avail_min=[1, 0, 1, 1, 0, 1, 2, 3],
        spot_usd_h=[price] * 8,
    )


def test_spot_traces_count_gpus_and_price_them(folder):
    spot_traces_tables(folder, 16.0)
    trace = datasets.spot_traces_ticks(on_demand_usd_gpu_h=3.0, trace_set="s")
    assert trace.available.tolist() == [[8, 0, 8, 8], [0, 1, 2, 3]]
    assert trace.spot_price * 6 == pytest.approx(np.array([[2.0] * 4, [16.0] * 4]))
    assert trace.start == START
    assert datasets.spot_trace_sets() == ("s",)
    half = datasets.spot_traces_ticks(on_demand_usd_gpu_h=3.0, trace_set="s", slot_hours=0.5)
    assert half.available.tolist() == [[0], [0]]
    slots = datasets.spot_traces_slots(on_demand_usd_gpu_h=3.0, trace_set="s", accelerator="V100")
    assert slots.available.tolist() == [[0, 1, 2, 3]]
    with pytest.raises(InvalidInput, match="slot_hours"):
        datasets.spot_traces_slots(on_demand_usd_gpu_h=3.0, trace_set="s", slot_hours=2.0)


def test_spot_traces_without_prices_ask_for_them(folder):
    spot_traces_tables(folder, None)
    with pytest.raises(InvalidInput, match="spot_usd_gpu_h"):
        datasets.spot_traces_ticks(on_demand_usd_gpu_h=3.0, trace_set="s")
    trace = datasets.spot_traces_ticks(
        on_demand_usd_gpu_h=3.0, spot_usd_gpu_h=0.6, trace_set="s", zones=["z2"]
    )
    assert trace.spot_price == pytest.approx(np.full((1, 4), 0.1))


def aws_tables(folder):
    folder(
        "aws_gpu_series.csv",
        series_id=["aws/p5/az1", "aws/p5/az2"],
        instance_type=["p5", "p5"],
        accelerator=["H100", "H100"],
        gpus=[8, 8],
        az=["az1", "az2"],
    )
    folder(
        "aws_gpu_spot_events.parquet",
        series_id=["aws/p5/az1"] * 4 + ["aws/p5/az2"] * 2,
        ts=hours(0, 6, 2500, 2506) + hours(2, 12),
        ondemand_usd_h=[80.0] * 6,
        spot_usd_h=[8.0, 16.0, 24.0, 32.0, 40.0, 48.0],
    )


def test_aws_prices_never_cross_the_blind_stretch(folder):
    aws_tables(folder)
    whole = {"accelerator": "H100", "available": 8, "slot_hours": 1.0}
    trace = catalog.aws_spot_prices(**whole)
    assert [pool.name for pool in trace.pools] == ["p5/az1", "p5/az2"]
    assert trace.slots == 11
    assert trace.start == START + timedelta(hours=2)
    assert trace.spot_price[:, [0, 3, 4, -1]].tolist() == [[1, 1, 2, 2], [5, 5, 5, 6]]
    with pytest.raises(InvalidInput, match=r"gap in pool 'p5/az1': '2025-03-10T13:00:00Z'"):
        catalog.aws_spot_prices(**whole, gaps="error")
    with pytest.raises(InvalidInput, match="gap"):
        catalog.aws_spot_prices(**whole, gaps="hold")
    later = catalog.aws_spot_prices(**whole, zones=["az1"], start=START + timedelta(hours=2500))
    assert later.spot_price.tolist() == [[3.0] * 6]


def test_aws_prices_need_a_choice(folder):
    aws_tables(folder)
    with pytest.raises(InvalidInput, match="accelerator"):
        catalog.aws_spot_prices(available=1)
    with pytest.raises(InvalidInput, match="instance_type"):
        catalog.aws_spot_prices(available=1, instance_type="p9")


def test_verda_spot_is_there_only_while_listed(folder):
    folder(
        "market_listing_events.parquet",
        cloud=["verda"] * 5 + ["runpod"],
        instance_type=["1H100", "1H100", "1H100", "8H100", "8H100", "1H100"],
        accelerator=["H100"] * 6,
        gpus=[1.0, 1.0, 1.0, 8.0, 8.0, 1.0],
        region=["FIN"] * 6,
        ts=hours(0, 6, 18, 12, 24, 0),
        ondemand_usd_h=[3.0, None, 4.0, 16.0, None, 1.0],
        spot_usd_h=[1.0, None, None, 4.0, None, 0.1],
    )
    trace = catalog.verda_listings(accelerator="H100")
    assert trace.available.tolist() == [[1, 0, 8, 8]]
    assert (trace.spot_price / 6).tolist() == [[1.0, 1.0, 0.5, 0.5]]
    assert (trace.on_demand_price / 6).tolist() == [[3.0, 3.0, 2.0, 2.0]]


def test_vast_prices_are_medians_per_gpu(folder):
    folder(
        "vast_offers.parquet",
        ts=hours(0, 0, 6, 12),
        accelerator=["H100"] * 4,
        gpus=[1, 2, 1, 1],
        ondemand_usd_h=[3.0, 6.0, 5.0, 5.0],
        min_bid_usd_h=[1.0, 4.0, None, 2.0],
    )
    trace = catalog.vast_minimum_bids(accelerator="H100", available=4)
    assert (trace.spot_price / 6).tolist() == [[1.5, 1.5]]
    assert (trace.on_demand_price / 6).tolist() == [[3.0, 3.0]]
    assert trace.available.tolist() == [[4, 4]]


@pytest.mark.usefixtures("real")
def test_real_h100_counts():
    trace = datasets.h100_counts()
    assert (len(trace.pools), trace.slots) == (9, 2114)
    assert trace.available.max() == 16
    assert datasets.h100_counts(slot_hours=0.5).slots == 704


@pytest.mark.usefixtures("real")
def test_real_v100_traces_agree_at_slots_and_ticks():
    paired = datasets.v100_paired(zones=["us-east-1c"])
    assert paired.slots == 2183
    prices = {"on_demand_usd_gpu_h": 3.06, "spot_usd_gpu_h": 1.0, "zones": ["us-east-1c"]}
    slots = datasets.spot_traces_slots(**prices)
    assert (slots.available == paired.available).all()
    ticks = datasets.spot_traces_ticks(**prices, slot_hours=0.5)
    # A tick that straddles two slots counts in both here, in the first only there.
    assert (ticks.available <= slots.available).mean() > 0.99
    assert (ticks.available == slots.available).mean() > 0.95


@pytest.mark.usefixtures("real")
def test_every_real_trace_set_loads():
    for trace_set in datasets.spot_trace_sets():
        zones = ["us-east-1c"] if trace_set.endswith("aws-04-19-2023") else None
        trace = datasets.spot_traces_slots(
            on_demand_usd_gpu_h=3.06, spot_usd_gpu_h=1.0, trace_set=trace_set, zones=zones
        )
        assert trace.slot_hours == 0.5


@pytest.mark.usefixtures("real")
def test_real_aws_prices_stop_at_the_gap():
    choice = {"instance_type": "p3.2xlarge", "zones": ["apne2-az1"], "available": 1}
    trace = catalog.aws_spot_prices(**choice)
    end = trace.start + timedelta(hours=trace.slots * trace.slot_hours)
    assert end < datetime(2026, 4, 1, 0, 30, tzinfo=UTC)
    quarter = slice_time(trace, datetime(2025, 1, 1, tzinfo=UTC), datetime(2025, 4, 1, tzinfo=UTC))
    ratio = quarter.spot_price / quarter.on_demand_price
    assert 0.05 < ratio.min() <= ratio.max() <= 1.0
    with pytest.raises(InvalidInput, match="gap"):
        catalog.aws_spot_prices(**choice, gaps="error")


@pytest.mark.usefixtures("real")
def test_the_table_of_instance_types_knows_every_real_series():
    with datasets.data_file("aws_gpu_series.csv").open(encoding="utf-8", newline="") as file:
        series = {
            row["instance_type"]: InstanceType(int(row["gpus"]), row["accelerator"])
            for row in csv.DictReader(file)
        }
    assert len(series) == 29
    assert {name: AWS_INSTANCES.get(name) for name in series} == series


@pytest.mark.usefixtures("real")
def test_real_listings_load():
    verda = catalog.verda_listings(accelerator="H100")
    assert 0.05 < (verda.available > 0).mean() < 0.6
    vast = catalog.vast_minimum_bids(accelerator="H100", available=8)
    assert 0.5 < (vast.spot_price / 6).mean() < 5
