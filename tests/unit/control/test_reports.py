"""Progress as the controller reads it from a job's folder."""

from __future__ import annotations

import json
import os
import time

import pytest

from duetune.control.connections import FolderReports
from duetune.control.turn import measured_pace
from duetune.core.events import Disturbance, Disturbed
from duetune.core.fleet import NodeState
from duetune.testing.memory_fleet import ManualClock
from duetune.training.hazard import read_hazard
from duetune.training.metrics import read_metrics
from duetune.wall_clock import OFFSET_FILE
from support.stories import Story, moment


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


def _trained(*reports):
    """A job of one node that has started, after reports of (slots since the start, steps)."""
    story = Story(policy="maximal_spot", throughput=(0.0, 40.0))
    story.slot(0.0, available=1)
    story.ask(0.0)
    story.run_all(0.1)
    for at, step in reports:
        story.steps(step, at=at)
    return story


def test_a_command_that_reports_no_time_per_step_is_measured_by_its_steps():
    # Twenty steps in half a slot; the time before the first report is not counted.
    story = _trained((0.4, 10), (0.9, 30))
    assert measured_pace(story.state, speed=100.0) == {1: pytest.approx(40.0)}


def test_a_command_with_few_steps_in_a_slot_is_measured_over_slots():
    story = _trained((0.5, 1), (0.9, 2))
    for slot, step in ((1, 3), (2, 5)):
        story.slot(slot, available=1, pace=measured_pace(story.state, speed=1.0))
        story.steps(step, at=slot + 0.5)
    assert measured_pace(story.state, speed=1.0) == {}
    story.slot(3, available=1)
    story.steps(7, at=3.5)
    assert measured_pace(story.state, speed=1.0) == {1: pytest.approx(2.0)}
    story.slot(4, available=1, pace={1: 2.0})
    story.steps(9, at=4.5)
    assert measured_pace(story.state, speed=1.0) == {}, "a new measurement begins"


def test_its_own_time_per_step_counts_without_a_number_of_workers():
    story = _trained()
    story.steps(11, at=0.9, step_s=0.5)
    assert measured_pace(story.state, speed=100.0) == {1: 36.0}


def test_a_disturbed_spell_is_not_measured():
    story = _trained((0.4, 10), (0.5, 12))
    story.tell(Disturbed(moment(0.6), Disturbance.STOOD_STILL, seconds=60.0))
    story.steps(30, at=0.9)
    assert measured_pace(story.state, speed=1.0) == {}
    story.steps(40, at=1.0)
    assert measured_pace(story.state, speed=1.0) == {1: pytest.approx(100.0)}


def test_steps_of_other_nodes_are_not_measured():
    story = _trained((0.4, 10), (0.5, 30))
    (name,) = story.state.nodes
    story.report(story.node(name, NodeState.LOST, at=0.6, since=0.1), at=0.6)
    assert measured_pace(story.state, speed=1.0) == {}
    story.launch("other", at=0.6)
    story.report(story.node("other", at=0.7, since=0.7), at=0.7)
    story.steps(32, at=0.8)
    assert measured_pace(story.state, speed=1.0) == {}
    story.steps(37, at=0.9)
    assert measured_pace(story.state, speed=1.0) == {1: pytest.approx(50.0)}


def test_losses_of_a_users_command_become_metrics(folder):
    path, metrics = folder / "job" / "progress.json", folder / "job" / "metrics.jsonl"

    def told(**report):
        path.write_text(json.dumps({"phase": "training", "at": 5.0, **report}))
        reports.read("job")

    reports = FolderReports(folder, ManualClock(), speed=1.0)
    told(step=1)
    assert read_metrics(metrics) == []
    told(step=2, loss=3.0)
    told(step=3, loss=3.0)
    told(step=4, loss=2.0, eval_loss=2.5, world=2)
    told(step=6, loss=1.5, eval_loss=2.5)
    first = [(row.step, row.loss, row.eval_loss) for row in read_metrics(metrics)]
    assert first == [(2, 3.0, None), (4, 2.0, 2.5), (6, 1.5, None)]
    # After a preemption the command goes on from step 3, under another controller.
    reports = FolderReports(folder, ManualClock(), speed=1.0)
    told(step=3, loss=3.0)
    told(step=4, loss=2.25)
    again = [(row.step, row.loss, row.run) for row in read_metrics(metrics)]
    assert again == [(2, 3.0, "job"), (3, 3.0, "job"), (4, 2.25, "job")]


def test_the_built_in_trainer_writes_its_metrics_itself(folder):
    (folder / "job" / "task.json").write_text("{}")
    (folder / "job" / "progress.json").write_text('{"step": 3, "loss": 1.0}')
    FolderReports(folder, ManualClock(), speed=1.0).read("job")
    assert not (folder / "job" / "metrics.jsonl").exists()
