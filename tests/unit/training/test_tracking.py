"""Trackers get one run per job, and can neither slow nor stop training."""

from __future__ import annotations

import os
import subprocess
import sys
import threading

import pytest

from duetune.errors import MissingExtra
from duetune.training import tracking
from duetune.training.metrics import METRICS, MetricRow, read_metrics
from duetune.training.task import Tracker, TrainingTask
from support.patience import PATIENCE_S

TASK = TrainingTask(model="tiny", dataset="rows.jsonl", report_to=tuple(Tracker), project="tests")


class Run:
    def __init__(self):
        self.rows = []
        self.closed = None

    def log(self, row):
        self.rows.append(row)

    def close(self, *, done):
        self.closed = done


def test_a_tracker_that_breaks_is_left_out(caplog):
    class Broken(Run):
        def log(self, row):
            raise OSError(f"no route to host for step {row.step}")

    def refuse():
        raise ValueError("no key")

    for name, opener in (("broken", Broken), ("shut", refuse)):
        sender = tracking.TrackerSender(name, opener)
        for step in (1, 2):
            sender.put(MetricRow(step=step))
        sender.finish(done=True)
        sender.wait(PATIENCE_S)
    assert [record.message for record in caplog.records] == [
        "broken gets no more metrics: no route to host for step 1; training continues",
        "shut gets no more metrics: no key; training continues",
    ]


def test_a_tracker_that_hangs_holds_nobody_up(monkeypatch, caplog):
    monkeypatch.setattr(tracking, "_MOST_WAITING", 2)
    awake = threading.Event()
    sender = tracking.TrackerSender("slow", lambda: awake.wait() and Run())
    for step in range(1, 10):
        sender.put(MetricRow(step=step))
    sender.finish(done=False)
    sender.wait(0.01)
    assert [record.message for record in caplog.records] == [
        "slow is too slow; some rows are only in metrics.jsonl"
    ]
    awake.set()


def test_only_the_leader_reports_and_every_row_has_the_run(tmp_path, monkeypatch):
    runs = []

    def opened(*_):
        runs.append(Run())
        return runs[-1]

    monkeypatch.setattr(tracking, "open_run", opened)
    members = [tracking.Tracking(tmp_path, "job-1", TASK) for _ in range(2)]
    for rank, member in enumerate(members):
        member.lead(0, leads=rank == 0)
        member.add(MetricRow(step=1, loss=2.0))
        member.finish(MetricRow(step=1, eval_loss=1.5))
        member.close()
    assert [run.closed for run in runs] == [True] * 3
    assert [[row.eval_loss for row in run.rows] for run in runs] == [[None, 1.5]] * 3
    assert read_metrics(tmp_path / METRICS) == [
        MetricRow(step=1, run="job-1", loss=2.0, eval_loss=1.5)
    ]


def test_a_library_that_is_missing_is_named_at_plan_time(monkeypatch):
    tracking.check_trackers(TrainingTask(model="m", dataset="d"))
    monkeypatch.setattr(tracking.importlib.util, "find_spec", lambda _: None)
    with pytest.raises(MissingExtra, match=r"report_to: wandb.*duetune\[track\]"):
        tracking.check_trackers(TASK)


def test_mlflow_goes_on_with_the_run_of_the_job(tmp_path, monkeypatch):
    pytest.importorskip("mlflow")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    for step in (1, 2):
        run = tracking.open_run(Tracker.MLFLOW, tmp_path, "job-1", TASK, step)
        # The first step is done again after a restart.
        for number in range(1, step + 1):
            run.log(MetricRow(step=number, loss=1 / number))
        run.close(done=step == 2)
    client, (experiment,) = (
        run._client,
        run._client.search_experiments(filter_string="name='tests'"),
    )
    (found,) = client.search_runs([experiment.experiment_id])
    assert found.data.tags[tracking.RUN_TAG] == "job-1"
    assert found.data.params["model"] == "tiny"
    assert found.info.status == "FINISHED"
    history = client.get_metric_history(found.info.run_id, "loss")
    assert [(each.step, each.value) for each in history] == [(1, 1.0), (2, 0.5)]


@pytest.mark.parametrize("tracker", [Tracker.WANDB, Tracker.TENSORBOARD])
def test_the_others_have_one_run_per_job_too(tracker, tmp_path, monkeypatch):
    pytest.importorskip(tracker.value)
    monkeypatch.setenv("WANDB_MODE", "offline")
    for step in (0, 2):
        run = tracking.open_run(tracker, tmp_path, "job-1", TASK, step)
        run.log(MetricRow(step=step + 1, loss=1.0))
        run.log(MetricRow(step=step + 2, loss=0.5, eval_loss=0.75))
        run.close(done=step == 2)
    if tracker is Tracker.WANDB:
        files = tmp_path.glob("wandb/offline-run-*/*.wandb")
        assert {path.name for path in files} == {"run-job-1.wandb"}
    else:
        assert {path.parent for path in tmp_path.rglob("events.*")} == {tmp_path / "tensorboard"}


@pytest.mark.more
def test_a_later_process_goes_on_with_the_run(tmp_path):
    code = (
        "import sys, pathlib\n"
        "from duetune.training.metrics import MetricRow\n"
        "from duetune.training.task import Tracker, TrainingTask\n"
        "from duetune.training.tracking import Tracking\n"
        "task = TrainingTask(model='m', dataset='d', report_to=tuple(Tracker))\n"
        "step = int(sys.argv[2])\n"
        "tracking = Tracking(pathlib.Path(sys.argv[1]), 'job-1', task)\n"
        "tracking.lead(step, leads=True)\n"
        "tracking.add(MetricRow(step=step + 1, loss=1.0))\n"
        "tracking.finish(MetricRow(step=step + 1, eval_loss=2.0))\n"
        "for sender in tracking._senders: sender.finish(done=True); sender.wait(600)\n"
    )
    for step in (0, 1):
        subprocess.run(
            [sys.executable, "-c", code, tmp_path, str(step)],
            env=os.environ | {"WANDB_MODE": "offline"},
            check=True,
        )
    assert [row.step for row in read_metrics(tmp_path / METRICS)] == [1, 2]
    names = [path.name for path in tmp_path.glob("wandb/offline-run-*/*.wandb")]
    assert names == ["run-job-1.wandb"] * 2
    (losses,) = tmp_path.glob("mlflow/*/*/metrics/loss")
    assert [line.split()[2] for line in losses.read_text().splitlines()] == ["1", "2"]
    assert len(list(tmp_path.glob("tensorboard/events.*"))) == 2
