"""Where a member's metrics go: always to ``metrics.jsonl``, and to the trackers of ``report_to``.

Only the leader of the members reports. The id of the run is that of the job, so a later leader, on
another node or of another controller, continues the same run. Trackers are called in a thread: a
slow one loses rows, a broken one is left out, and training never waits for them.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import logging
import os
import queue
import threading
import time
from functools import partial
from typing import TYPE_CHECKING, Protocol, assert_never

import msgspec

from duetune.errors import MissingExtra
from duetune.training.metrics import MetricRow, MetricsFile, MetricsLog
from duetune.training.task import Tracker

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from duetune.training.task import TrainingTask

_log = logging.getLogger(__name__)

PROJECT = "duetune"
"""The project or experiment of a run whose task names none."""
RUN_TAG = "duetune.run"
"""The tag by which a run of MLflow is found again; MLflow gives out its ids itself."""
_MOST_WAITING = 1000
# Seconds for the last rows: at the end, and on a node that will be taken.
_CLOSE_S, _LEAVE_S = 10.0, 3.0


class TrackedRun(Protocol):
    """One run in a tracker."""

    def log(self, row: MetricRow) -> None:
        """Send the values of a step; called again for the same step when more is known."""

    def close(self, *, done: bool) -> None:
        """Send what is left; ``done`` says that training is complete."""


def check_trackers(task: TrainingTask) -> None:
    """Raise ``MissingExtra`` if the library of a tracker is missing. Plans call this."""
    for tracker in task.report_to:
        if importlib.util.find_spec(tracker.value) is None:
            raise MissingExtra(f"report_to: {tracker}", "track")


class Tracking:
    """The metrics of one member. All members call ``add``; only the leader's rows go out."""

    def __init__(self, folder: Path, run: str, task: TrainingTask) -> None:
        self._folder = folder
        self._run = run
        self._task = task
        self._log = MetricsLog(folder)
        self._leads = False
        self._done = False
        self._senders: list[TrackerSender] = []

    @property
    def warning(self) -> str:
        """Return why the file could not be written; empty if it could."""
        return self._log.warning

    def lead(self, step: int, *, leads: bool) -> None:
        """Set whether this member reports. Called when the group has formed at ``step``."""
        self._log.lead(step, leads=leads)
        self._leads = leads
        if leads and not self._senders:
            self._senders = [
                TrackerSender(
                    tracker.value,
                    partial(open_run, tracker, self._folder, self._run, self._task, step),
                )
                for tracker in self._task.report_to
            ]

    def add(self, row: MetricRow) -> None:
        """Take the metrics of a step, or more of them for the last step."""
        row = msgspec.structs.replace(row, run=self._run)
        self._log.add(row)
        self._send(row)

    def finish(self, row: MetricRow) -> None:
        """Take the last row. Every member writes it: the leader may be gone by now."""
        self._done = True
        if row.eval_loss is None:
            return
        row = msgspec.structs.replace(row, run=self._run)
        try:
            MetricsFile(self._folder).record(row)
        except OSError as error:
            _log.warning("the last metrics could not be written: %s", error)
        self._send(row)

    def close(self) -> None:
        """Send what is left, for a few seconds at most."""
        for sender in self._senders:
            sender.finish(done=self._done)
        until = time.monotonic() + (_CLOSE_S if self._done else _LEAVE_S)
        for sender in self._senders:
            sender.wait(until - time.monotonic())

    def _send(self, row: MetricRow) -> None:
        for sender in self._senders if self._leads else ():
            sender.put(row)


class TrackerSender:
    """Sends rows to one tracker in a thread; ``open_it`` is called there, too."""

    def __init__(self, name: str, open_it: Callable[[], TrackedRun]) -> None:
        self._name = name
        self._open = open_it
        self._waiting: queue.Queue[MetricRow | None] = queue.Queue(_MOST_WAITING)
        self._lost = False
        self._done = False
        # A daemon: a tracker that hangs must not keep the process alive.
        self._thread = threading.Thread(target=self._work, name=f"track-{name}", daemon=True)
        self._thread.start()

    def put(self, row: MetricRow) -> None:
        """Hand over a row without waiting; it is lost if too many are waiting already."""
        try:
            self._waiting.put_nowait(row)
        except queue.Full:
            if not self._lost:
                _log.warning("%s is too slow; some rows are only in metrics.jsonl", self._name)
            self._lost = True

    def finish(self, *, done: bool) -> None:
        """Ask for the end after the rows that wait; ``done`` says that training is complete."""
        self._done = done
        with contextlib.suppress(queue.Full):
            self._waiting.put_nowait(None)

    def wait(self, limit_s: float) -> None:
        """Wait until all is sent, for ``limit_s`` seconds at most."""
        self._thread.join(max(0.0, limit_s))

    def _work(self) -> None:
        try:
            run = self._open()
            while (row := self._waiting.get()) is not None:
                run.log(row)
            run.close(done=self._done)
        except Exception as error:  # noqa: BLE001 - trackers raise many kinds
            words = " ".join(str(error).split())[:200] or type(error).__name__
            _log.warning("%s gets no more metrics: %s; training continues", self._name, words)
            # Nobody reads the queue any more: what comes now is lost without a second warning.
            self._lost = True


def open_run(tracker: Tracker, folder: Path, run: str, task: TrainingTask, step: int) -> TrackedRun:
    """Return the run of a job in a tracker: a new one, or the one of an earlier leader.

    ``step`` is the number of steps that are done; rows after it are sent again.
    """
    match tracker:
        case Tracker.WANDB:
            return _WandbRun(folder, run, task)
        case Tracker.MLFLOW:
            return _MlflowRun(folder, run, task)
        case Tracker.TENSORBOARD:
            return _TensorboardRun(folder, task, step)
    assert_never(tracker)


class _WandbRun:
    def __init__(self, folder: Path, run: str, task: TrainingTask) -> None:
        wandb = importlib.import_module("wandb")
        self._run = wandb.init(
            id=run,
            resume="allow",
            project=task.project or os.environ.get("WANDB_PROJECT") or PROJECT,
            name=task.run_name or run,
            dir=str(folder),
            config=_settings(task),
            settings=wandb.Settings(console="off", silent=True),
        )

    def log(self, row: MetricRow) -> None:
        # W&B itself drops steps before its last one.
        self._run.log(row.values, step=row.step)

    def close(self, *, done: bool) -> None:  # noqa: ARG002 - a resumed run is shown as running
        self._run.finish()


class _MlflowRun:
    def __init__(self, folder: Path, run: str, task: TrainingTask) -> None:
        uri = os.environ.get("MLFLOW_TRACKING_URI") or f"file:{folder / 'mlflow'}"
        if uri.startswith("file:"):
            os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
        self._client = importlib.import_module("mlflow").MlflowClient(tracking_uri=uri)
        name = task.project or os.environ.get("MLFLOW_EXPERIMENT_NAME") or PROJECT
        experiment = self._client.get_experiment_by_name(name)
        place = (
            self._client.create_experiment(name) if experiment is None else experiment.experiment_id
        )
        found = self._client.search_runs([place], f"tags.`{RUN_TAG}` = '{run}'", max_results=1)
        if found:
            self._id = found[0].info.run_id
        else:
            tags = {RUN_TAG: run, "mlflow.runName": task.run_name or run}
            self._id = self._client.create_run(place, tags=tags).info.run_id
            for field, value in _settings(task).items():
                self._client.log_param(self._id, field, value)
        history = self._client.get_metric_history(self._id, "loss") if found else []
        # MLflow keeps every value it is given, so steps that are done again are left out.
        self._sent = max((each.step for each in history), default=0)

    def log(self, row: MetricRow) -> None:
        if row.step > self._sent or (row.step == self._sent and row.loss is None):
            for name, value in row.values.items():
                self._client.log_metric(self._id, name, value, step=row.step)

    def close(self, *, done: bool) -> None:
        if done:
            self._client.set_terminated(self._id)


class _TensorboardRun:
    def __init__(self, folder: Path, task: TrainingTask, step: int) -> None:
        module = importlib.import_module("torch.utils.tensorboard")
        place = folder / "tensorboard"
        fresh = not place.exists()
        # The steps after this one are done again: their old values are hidden.
        self._writer = module.SummaryWriter(str(place), purge_step=None if fresh else step + 1)
        if fresh:
            lines = (f"    {name}: {value}" for name, value in _settings(task).items())
            self._writer.add_text("settings", "\n".join(lines))

    def log(self, row: MetricRow) -> None:
        for name, value in row.values.items():
            self._writer.add_scalar(name, value, row.step)
        self._writer.flush()

    def close(self, *, done: bool) -> None:  # noqa: ARG002 - files have no status
        self._writer.close()


def _settings(task: TrainingTask) -> dict[str, object]:
    """Return the settings of a task by name, as trackers show them."""
    found: dict[str, object] = msgspec.to_builtins(
        {name: getattr(task, name) for name in task.__struct_fields__}
    )
    return {name: value for name, value in found.items() if value is not None}
