"""Recordings: appended line by line, merged, mended, and written by one process at a time."""

from __future__ import annotations

import os
from datetime import UTC, datetime

import pytest

from duetune.core.market import Pool
from duetune.errors import InvalidInput
from duetune.market.feeds.recording import HEADER, RecordedSlot, Recording
from duetune.market.traces import load_grid, load_trace

POOL = Pool("p4d/a", "A100", "a")
START = datetime(2026, 11, 1, tzinfo=UTC).timestamp()
SLOT_S = 1800.0


def opened(path):
    return Recording(path, POOL, SLOT_S)


def at(number):
    return START + number * SLOT_S


@pytest.fixture
def path(tmp_path):
    return tmp_path / "pool.csv"


def test_it_grows_by_a_line_and_goes_on_after_a_restart(path):
    assert opened(path).append(at(0), RecordedSlot(1.1, 3.0, 4))
    assert opened(path).append(at(1), RecordedSlot(1.2, 3.0))
    before = path.read_bytes()
    recording = opened(path)
    assert recording.append(at(3), RecordedSlot(1.3, 3.0, 2, at_least=True))
    assert path.read_bytes().startswith(before), "nothing is written twice"
    grid = load_grid(path)
    assert grid.present.tolist() == [[True, True, False, True]]
    assert grid.counted.tolist() == [[True, False, False, True]]
    assert grid.at_least.tolist() == [[False, False, False, True]]
    assert opened(path).slots == recording.slots


def test_a_slot_is_recorded_once_and_never_earlier_than_the_last(path):
    recording = opened(path)
    assert recording.append(at(2), RecordedSlot(1.0, 3.0, 4))
    assert not recording.append(at(2) + 5, RecordedSlot(9.0, 3.0, 4))
    assert not recording.append(at(1), RecordedSlot(9.0, 3.0, 4))
    assert len(path.read_text().splitlines()) == 2


def test_half_a_line_is_cut_off(path):
    opened(path).append(at(0), RecordedSlot(1.0, 3.0, 4))
    whole = path.read_bytes()
    for torn in (b"2026-11-01T00:30", b"2026-11-01T00:30:00Z,p4d/a,A100,a,1.0,3.0,4,0.5"):
        path.write_bytes(whole + torn)
        assert opened(path).append(at(1), RecordedSlot(2.0, 3.0, 5))
        assert load_trace(path).available.tolist() == [[4, 5]]
    for size in (0, 5, len(",".join(HEADER)) + 1):
        path.write_bytes(whole[:size])
        assert opened(path).append(at(7), RecordedSlot(2.0, 3.0, 5))
        assert opened(path).last == 0


def test_a_full_disk_leaves_no_half_line(path, monkeypatch):
    recording = opened(path)
    recording.append(at(0), RecordedSlot(1.0, 3.0, 4))
    before, write = path.read_bytes(), os.write
    monkeypatch.setattr(os, "write", lambda file, content: write(file, content[:9]))
    with pytest.raises(InvalidInput, match="the disk is full"):
        recording.append(at(1), RecordedSlot(1.0, 3.0, 4))
    monkeypatch.undo()
    assert path.read_bytes() == before


def test_a_file_that_does_not_fit_is_refused(path):
    opened(path).append(at(0), RecordedSlot(1.0, 3.0, 4))
    with pytest.raises(InvalidInput, match="a file of other: p4d/a"):
        Recording(path, Pool("other"), SLOT_S)
    with pytest.raises(InvalidInput, match="slots of 10 min; this file has 30"):
        Recording(path, POOL, 600.0)
    path.write_text("time,what\n1,2\n")
    with pytest.raises(InvalidInput, match="spot_usd_gpu_h"):
        opened(path)


def test_a_trace_without_our_columns_is_taken_over(path):
    path.write_text(
        "available,time,on_demand_usd_gpu_h,spot_usd_gpu_h,pool\n"
        "4,2026-11-01T00:00:00Z,3.0,1.0,p4d/a\n5,2026-11-01T00:30:00Z,3.0,1.5,p4d/a\n"
    )
    assert opened(path).append(at(2), RecordedSlot(2.0, 3.0, 6))
    assert load_trace(path).available.tolist() == [[4, 5, 6]]


def test_merging_fills_gaps_and_counts_and_keeps_prices(path):
    recording = opened(path)
    recording.append(at(2), RecordedSlot(1.0, 3.0))
    recording.append(at(3), RecordedSlot(1.0, 3.0, 4))
    found = {
        0: RecordedSlot(9.0, 3.0, 1, at_least=True),
        2: RecordedSlot(9.0, 3.0, 2, at_least=True),
        3: RecordedSlot(9.0, 3.0, 7, at_least=True),
    }
    assert recording.merge(found, START) == 2
    assert recording.merge(found, START) == 0, "the second time nothing changes"
    assert opened(path).slots == {
        0: RecordedSlot(9.0, 3.0, 1, at_least=True),
        2: RecordedSlot(1.0, 3.0, 2, at_least=True),
        3: RecordedSlot(1.0, 3.0, 4),
    }
    assert recording.append(at(4), RecordedSlot(1.0, 3.0, 4))
    assert opened(path).last == 4


def test_exact_counts_replace_and_the_higher_bound_stays():
    one = RecordedSlot(1.0, 3.0, 4)
    bound = RecordedSlot(1.0, 3.0, 2, at_least=True)
    assert one.joined(RecordedSlot(9.0, 9.0, 3)) == RecordedSlot(1.0, 3.0, 3)
    assert one.joined(bound) == one
    assert one.joined(RecordedSlot(9.0, 9.0)) == one
    assert bound.joined(bound._replace(available=5)).available == 5
    assert bound.joined(bound._replace(available=1)).available == 2
