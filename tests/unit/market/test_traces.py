"""Files in duetune's own format: what is read, what is refused, and in which words."""

from __future__ import annotations

import sys
from datetime import UTC, datetime

import numpy as np
import pytest

from duetune.core.market import MarketTrace, Pool
from duetune.errors import DuetuneError, InvalidInput, MissingExtra, NotFound
from duetune.market.traces import load_pieces, load_trace, save_trace

HEADER = "time,spot_usd_gpu_h,on_demand_usd_gpu_h,available\n"
GOOD = HEADER + (
    "2025-01-01T00:00:00Z,1.0,4.0,3\n"
    "2025-01-01T00:30:00Z,1.5,4.0,0\n"
    "2025-01-01T01:00:00Z,2.0,4.0,16\n"
)
GAPPY = HEADER + (
    "2025-01-01T00:00:00Z,1.0,4.0,3\n"
    "2025-01-01T00:30:00Z,1.5,4.0,2\n"
    "2025-01-01T02:00:00Z,2.0,4.0,16\n"
    "2025-01-01T02:30:00Z,2.5,4.0,16\n"
    "2025-01-01T03:00:00Z,3.0,4.0,16\n"
)


@pytest.fixture
def write(tmp_path):
    def writer(text, name="market.csv"):
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        return path

    return writer


def refusal(path, **options):
    with pytest.raises(InvalidInput) as caught:
        load_trace(path, **options)
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_prices_per_hour_become_prices_per_slot(write):
    trace = load_trace(write(GOOD))
    assert trace.slot_hours == 0.5
    assert trace.spot_price.tolist() == [[0.5, 0.75, 1.0]]
    assert trace.on_demand_price.tolist() == [[2.0, 2.0, 2.0]]
    assert trace.available.tolist() == [[3, 0, 16]]
    assert trace.start == datetime(2025, 1, 1, tzinfo=UTC)
    assert trace.pools == (Pool("default"),)
    assert trace.name == "market"


def test_times_in_other_zones_are_read_as_the_same_moments(write):
    trace = load_trace(write(GOOD.replace("00:00:00Z", "02:00:00+02:00", 1)))
    assert trace.start == datetime(2025, 1, 1, tzinfo=UTC)


def test_pools_become_rows_in_order_of_appearance(write):
    text = "time,pool,zone,accelerator,spot_usd_gpu_h,on_demand_usd_gpu_h,available\n" + "".join(
        f"2025-01-01T0{hour}:00:00Z,{pool},z{pool},H100,{hour + 1},9,{hour}\n"
        for hour in range(3)
        for pool in "ba"
    )
    trace = load_trace(write(text))
    assert trace.pools == (Pool("b", "H100", "zb"), Pool("a", "H100", "za"))
    assert trace.slot_hours == 1.0
    assert load_trace(write(text), pool="a").pools == (Pool("a", "H100", "za"),)
    with pytest.raises(NotFound, match="no pool named 'c'"):
        load_trace(write(text), pool="c")


def test_slot_hours_resamples_and_is_the_slot_of_a_file_with_one_row(write):
    assert load_trace(write(GOOD), slot_hours=1.5).spot_price.tolist() == [[2.25]]
    single = write("".join(GOOD.splitlines(keepends=True)[:2]))
    assert load_trace(single, slot_hours=0.25).slot_hours == 0.25
    assert "slot_hours is required" in refusal(single)


def test_what_the_caller_gives_stands_for_a_column_and_replaces_one(write):
    text = "time,spot_usd_gpu_h\n2025-01-01T00:00:00Z,1\n2025-01-01T01:00:00Z,2\n"
    trace = load_trace(write(text), on_demand_usd_gpu_h=4.0, available=8)
    assert trace.available.tolist() == [[8, 8]]
    assert trace.on_demand_price.tolist() == [[4.0, 4.0]]
    counts = MarketTrace.single(np.ones(4), np.array([5, 6, 7, 8]), 2.0, slot_hours=0.5)
    joined = load_trace(write(text), on_demand_usd_gpu_h=4.0, available=counts)
    assert joined.available.tolist() == [[5, 7]]
    assert load_trace(write(GOOD), spot_usd_gpu_h=0.0).spot_price.tolist() == [[0.0, 0.0, 0.0]]


def test_a_gap_is_refused_by_name_and_time(write):
    message = refusal(write(GAPPY))
    assert "gap in pool 'default': '2025-01-01T01:00:00Z'" in message
    assert "before 2025-01-01T02:00:00Z" in message


def test_a_gap_can_be_held_up_to_a_limit(write):
    trace = load_trace(write(GAPPY), gaps="hold", max_hold_hours=1.0)
    assert trace.available.tolist() == [[3, 2, 2, 2, 16, 16, 16]]
    assert "at most 0.5 h" in refusal(write(GAPPY), gaps="hold", max_hold_hours=0.5)


def test_a_gap_can_be_avoided_or_split_at(write):
    longest = load_trace(write(GAPPY), gaps="longest")
    assert longest.slots == 3
    assert longest.start == datetime(2025, 1, 1, 2, tzinfo=UTC)
    assert [piece.slots for piece in load_pieces(write(GAPPY))] == [2, 3]
    assert "load_pieces" in refusal(write(GAPPY), gaps="split")


def test_a_pool_that_starts_later_is_a_gap_and_is_never_filled_backwards(write):
    text = "time,pool,spot_usd_gpu_h,on_demand_usd_gpu_h,available\n" + "".join(
        f"2025-01-01T0{hour}:00:00Z,{pool},1,9,1\n"
        for hour in range(4)
        for pool in "ab"
        if (hour, pool) != (0, "b")
    )
    assert "gap in pool 'b': '2025-01-01T00:00:00Z'" in refusal(write(text), gaps="hold")
    assert load_trace(write(text), gaps="longest").slots == 3


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("1.5,4.0,0", "nan,4.0,0", "spot_usd_gpu_h in row 2 (2025-01-01T00:30:00Z): nan"),
        ("1.5,4.0,0", "-1,4.0,0", "spot_usd_gpu_h in row 2 (2025-01-01T00:30:00Z): -1.0"),
        ("1.5,4.0,0", "inf,4.0,0", "spot_usd_gpu_h in row 2"),
        ("1.5,4.0,0", "1.5,0,0", "on_demand_usd_gpu_h in row 2"),
        ("1.5,4.0,0", "1.5,4.0,-1", "available in row 2"),
        ("1.5,4.0,0", "1.5,4.0,2.5", "available in row 2"),
        ("1.5,4.0,0", "cheap,4.0,0", "spot_usd_gpu_h in row 2: 'cheap'"),
        ("1.5,4.0,0", "1.5,4.0", "row 2 of market.csv: '3 fields'"),
        ("T00:30:00Z", "T00:30:00", "time in row 2: '2025-01-01T00:30:00'"),
        ("2025-01-01T00:30:00Z", "soon", "time in row 2: 'soon'"),
        ("T00:30:00Z", "T00:00:00Z", "time in row 2 (duplicate"),
        ("T01:00:00Z", "T00:15:00Z", "time in row 3 (earlier than the row before"),
        ("T01:00:00Z", "T01:10:00Z", "time in row 3: '2025-01-01T01:10:00Z'"),
        ("2025-01-01T01", "9025-01-01T01", "time in row 3: '9025-01-01T01:00:00Z'"),
        ("spot_usd_gpu_h", "spot", "also spot_usd_gpu_h"),
        ("spot_usd_gpu_h", "available", "different names"),
        ("1.5,4.0,0", '"1.5,4.0,0', "a readable CSV file"),
    ],
)
def test_what_cannot_be_a_market_is_refused_in_one_line(write, old, new, expected):
    assert expected in refusal(write(GOOD.replace(old, new)))


def test_two_rows_in_one_slot_are_refused(write):
    crowded = GOOD + "2025-01-01T01:00:01Z,2.0,4.0,16\n"
    assert "time in row 4: '2025-01-01T01:00:01Z'" in refusal(write(crowded))


def test_files_that_are_no_trace_are_refused(write, tmp_path):
    assert "an existing file" in refusal(tmp_path / "none.csv")
    assert "an existing file" in refusal(tmp_path)
    assert "this one is empty" in refusal(write("  \n"))
    assert "this file has none" in refusal(write(HEADER))
    assert "a known format" in refusal(write("hello\nworld\n", "market.txt"))
    assert "one of csv" in refusal(write(GOOD), format="xls")
    assert "readable JSON" in refusal(write('{"data": [1,', "market.json"))
    assert "a JSON object" in refusal(write("[1, 2]", "market.json"))
    assert "a readable Parquet file" in refusal(write("PAR1 but not really", "m.parquet"))
    binary = tmp_path / "binary.csv"
    binary.write_bytes(b"time,\xff\xfe\n")
    assert "a readable CSV file" in refusal(binary)


def test_the_format_is_told_by_content_where_the_suffix_says_nothing(write, tmp_path):
    assert load_trace(write(GOOD, "market.data")).slots == 3
    save_trace(load_trace(write(GOOD)), tmp_path / "market.parquet")
    moved = (tmp_path / "market.parquet").rename(tmp_path / "market.bin")
    assert load_trace(moved).slots == 3


def test_parquet_without_a_zone_or_columns_is_refused(tmp_path):
    polars = pytest.importorskip("polars", reason="needs the parquet extra")
    path = tmp_path / "market.parquet"
    good = {"spot_usd_gpu_h": [1.0], "on_demand_usd_gpu_h": [2.0], "available": [1]}
    moment = datetime(2025, 1, 1)  # noqa: DTZ001
    polars.DataFrame({"time": [moment], **good}).write_parquet(path)
    assert "times with a time zone" in refusal(path, slot_hours=1.0)
    polars.DataFrame({"time": ["2025-01-01T00:00:00Z"], **good}).write_parquet(path)
    assert load_trace(path, slot_hours=1.0).start == datetime(2025, 1, 1, tzinfo=UTC)
    polars.DataFrame({"time": ["2025-01-01T00:00:00Z"]}).write_parquet(path)
    assert "also spot_usd_gpu_h" in refusal(path)
    polars.DataFrame({"time": ["x"], **good, "spot_usd_gpu_h": ["a"]}).write_parquet(path)
    assert "row 1: 'x'" in refusal(path)


def test_csv_works_and_parquet_says_what_to_install_without_polars(write, tmp_path, monkeypatch):
    save_trace(load_trace(write(GOOD)), tmp_path / "market.parquet")
    monkeypatch.setitem(sys.modules, "polars", None)
    trace = load_trace(write(GOOD))
    save_trace(trace, tmp_path / "again.csv")
    with pytest.raises(MissingExtra, match=r"duetune\[parquet\]"):
        load_trace(tmp_path / "market.parquet")
    with pytest.raises(MissingExtra, match=r"duetune\[parquet\]"):
        save_trace(trace, tmp_path / "again.parquet")


def test_saving_where_nothing_can_be_saved_is_refused(tmp_path):
    trace = MarketTrace.single(np.ones(2), np.ones(2, dtype=np.int64), 2.0)
    for path in ("market.txt", "no/such/folder/market.csv", "no/such/folder/market.parquet"):
        with pytest.raises(DuetuneError, match="path"):
            save_trace(trace, tmp_path / path)


def test_tables_are_per_gpu_already(write):
    with pytest.raises(InvalidInput, match=r"gpus_per_instance: 8 is not allowed.*per GPU"):
        load_trace(write(GOOD), gpus_per_instance=8)
