"""Progress as the controller reads it from a job's folder."""

from __future__ import annotations

import json
import os
import time

import pytest

from duetune.control.connections import FolderReports
from duetune.testing.memory_fleet import ManualClock
from duetune.training.hazard import read_hazard
from duetune.wall_clock import OFFSET_FILE


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "job").mkdir()
    return tmp_path


def test_when_it_was_said_is_told_by_the_fleets_clock(folder):
    clock = ManualClock(1000.0)
    report = {"step": 3, "total_steps": 9, "phase": "training", "at": time.time() - 2}
    (folder / "job" / "progress.json").write_text(json.dumps(report))
    progress, at = FolderReports(folder, clock, speed=100.0).read("job")
    assert progress.step == 3
    assert at == pytest.approx(800, abs=60)


def test_a_report_without_a_time_counts_from_when_it_was_written(folder):
    path = folder / "job" / "progress.json"
    path.write_text('{"step": 3, "total_steps": 9, "phase": "finished"}')
    os.utime(path, (time.time() - 5, time.time() - 5))
    _, at = FolderReports(folder, ManualClock(1000.0), speed=10.0).read("job")
    assert at == pytest.approx(950, abs=10)


def test_no_report_is_none(folder):
    assert FolderReports(folder, ManualClock(), speed=1.0).read("job") is None


def test_the_hazard_is_in_the_workers_own_seconds(folder):
    reports = FolderReports(folder, ManualClock(), speed=100.0)
    reports.hazard("job", lived_s=72_000.0, losses=4)
    mean = read_hazard(folder / "job" / "hazard.json")
    # One loss in eight hours believed before, four in twenty seen: 28 hours and five, 100 times
    # as fast.
    assert mean == pytest.approx(28 * 3600 / 5 / 100)


@pytest.mark.parametrize("step", [600, -600])
def test_a_report_is_never_older_than_the_last_look_whatever_the_wall_clock_says(
    folder, tmp_path, monkeypatch, step
):
    offset = tmp_path / "offset"
    offset.write_text("0")
    monkeypatch.setenv(OFFSET_FILE, str(offset))
    path = folder / "job" / "progress.json"
    reports = FolderReports(folder, ManualClock(1000.0), speed=1.0)
    path.write_text(json.dumps({"step": 3, "phase": "training", "at": time.time()}))
    assert reports.read("job")[1] == pytest.approx(1000, abs=60)
    offset.write_text(str(step))
    assert reports.read("job")[1] == pytest.approx(1000, abs=60)
    path.write_text(json.dumps({"step": 4, "phase": "training", "at": time.time()}))
    assert reports.read("job")[1] == pytest.approx(1000, abs=60)
