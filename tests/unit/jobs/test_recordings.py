"""Recordings of a home: one writer, and what is imported into them."""

from __future__ import annotations

import os
import threading
from datetime import UTC, datetime

import numpy as np
import pytest

from duetune.core.market import MarketTrace, Pool
from duetune.errors import InvalidInput
from duetune.jobs.recordings import import_jobs, import_trace, opened_recording, slot_s_of_jobs
from duetune.market.traces import load_trace
from duetune.store.store import open_store
from support.harness import Room

POOL = Pool("here")


def trace_of(counts, **how):
    prices = np.ones(len(counts))
    start = how.pop("start", datetime(2026, 11, 1, tzinfo=UTC))
    return MarketTrace.single(prices, np.array(counts), 3.0, pool=POOL, start=start, **how)


def test_one_process_writes_at_a_time(tmp_path):
    path = tmp_path / "markets" / "here.csv"
    with opened_recording(path, POOL, 1800.0):
        words = f"expected a file that nobody writes; process {os.getpid()} does"
        with (
            pytest.raises(InvalidInput, match=words),
            opened_recording(path, POOL, 1800.0, wait_s=0.0),
        ):
            pass
    with opened_recording(path, POOL, 1800.0):
        pass


def test_a_writer_that_is_soon_done_is_waited_for(tmp_path):
    path = tmp_path / "here.csv"
    first = opened_recording(path, POOL, 1800.0)
    first.__enter__()
    leaving = threading.Timer(0.1, lambda: first.__exit__(None, None, None))
    leaving.start()
    with opened_recording(path, POOL, 1800.0, wait_s=600.0) as recording:
        assert recording.path == path
    leaving.join()


@pytest.mark.parametrize("name", ["folder.csv", "table.txt", "file/below.csv"])
def test_a_target_that_cannot_be_a_recording_is_refused(tmp_path, name):
    (tmp_path / "folder.csv").mkdir()
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(InvalidInput, match="recording: "),
        opened_recording(tmp_path / name, POOL, 1800.0),
    ):
        pass


def test_a_trace_is_added_in_the_slots_of_the_file(tmp_path):
    path = tmp_path / "here.csv"
    with opened_recording(path, POOL, 3600.0) as recording:
        assert import_trace(trace_of([4, 2, 3, 3]), recording) == 2
    assert load_trace(path).available.tolist() == [[2, 3]]
    with opened_recording(path, POOL, None) as recording:
        assert recording.slot_s == 3600.0
        with pytest.raises(InvalidInput, match="a trace with times"):
            import_trace(trace_of([4, 2], start=None), recording)


def test_what_jobs_were_granted_is_added_to_what_was_recorded(tmp_path):
    with open_store(tmp_path / "home.db") as store:
        assert slot_s_of_jobs(store, ("",)) is None
        room = Room(store=store)
        room.submit()
        room.run()
        assert slot_s_of_jobs(store, ("",)) == 1800.0
        assert slot_s_of_jobs(store, ("campus",)) is None
        path = tmp_path / "here.csv"
        with opened_recording(path, POOL, 1800.0) as recording:
            assert import_jobs(store, recording, ("campus",)) == 0, "jobs of another fleet"
            first = import_jobs(store, recording, ("",))
            assert first == len(recording.slots) > 3
            assert recording.start == room.began
            assert import_jobs(store, recording, ("",)) == 0, "again it changes nothing"
            known = dict(recording.slots)
        with opened_recording(path, POOL, None) as recording:
            assert recording.slots == known
            assert {slot.at_least for slot in known.values()} == {True, False}
