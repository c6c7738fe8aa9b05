"""Where a member's metrics go: always to ``metrics.jsonl``, and to the trackers of ``report_to``.

Only the leader of the members reports. The id of the run is that of the job, so a later leader, on
another node or of another controller, continues the same run. Trackers are called in a thread: a
slow one loses rows, a broken one is left out, and training never waits for them.
"""

from __future__ import annotations

import importlib
import importlib.util
import logging
import os
import queue
import threading
from functools import partial
from typing import TYPE_CHECKING, Protocol, TypeVar, assert_never

import msgspec

from duetune.errors import MissingExtra
from duetune.training.metrics import MetricRow, MetricsFile, MetricsLog
from duetune.training.task import Tracker

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from duetune.training.task import TrainingTask

_T = TypeVar("_T")

_log = logging.getLogger(__name__)

PROJECT = "duetune"
"""The project or experiment of a run whose task names none."""
RUN_TAG = "duetune.run"
"""The tag by which a run of MLflow is found again; MLflow gives out its ids itself."""
_MOST_WAITING = 1000
_CLOSE_S = 10.0
_MODULES = {
    Tracker.WANDB: ("wandb",),
    Tracker.MLFLOW: ("mlflow",),
    Tracker.TENSORBOARD: ("tensorboard",),
}


class TrackedRun(Protocol):
    """One run in a tracker."""

    def log(self, row: MetricRow) -> None:
        """Send the values of a step; called again for the same step when more is known."""

    def close(self, *, done: bool) -> None:
        """Send what is left; ``done`` says that training is complete."""


def check_trackers(task: TrainingTask) -> None:
    """Raise ``MissingExtra`` if the library of a tracker is missing. Plans call this."""
    for tracker in task.report_to:
        if any(importlib.util.find_spec(name) is None for name in _MODULES[tracker]):
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
        self._sender: TrackerSender | None = None

    @property
    def warning(self) -> str:
        """Return why the file could not be written; empty if it could."""
        return self._log.warning

    def lead(self, step: int, *, leads: bool) -> None:
        """Set whether this member reports. Called when the group has formed at ``step``."""
        self._log.lead(step, leads=leads)
        self._leads = leads
        if leads and self._sender is None and self._task.report_to:
            self._sender = TrackerSender(
                {tracker.value: self._opener(tracker, step) for tracker in self._task.report_to}
            )

    def add(self, row: MetricRow) -> None:
        """Take the metrics of a step, or more of them for the last step."""
        row = msgspec.structs.replace(row, run=self._run)
        self._log.add(row)
        if self._leads and self._sender is not None:
            self._sender.put(row)

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
        if self._leads and self._sender is not None:
            self._sender.put(row)

    def close(self) -> None:
        """Send what is left, for a few seconds at most."""
        if self._sender is not None:
            self._sender.close(done=self._done)

    def _opener(self, tracker: Tracker, step: int) -> Callable[[], TrackedRun]:
        return lambda: open_run(tracker, self._folder, self._run, self._task, step)


class TrackerSender:
    """Sends rows to trackers in a thread; ``openers`` are called there, too."""

    def __init__(self, openers: Mapping[str, Callable[[], TrackedRun]]) -> None:
        self._openers = openers
        self._waiting: queue.Queue[MetricRow | None] = queue.Queue(_MOST_WAITING)
        self._lost = False
        self._done = False
        # A daemon: a tracker that hangs must not keep the process alive.
        self._thread = threading.Thread(target=self._work, name="trackers", daemon=True)
        self._thread.start()

    def put(self, row: MetricRow) -> None:
        """Hand over a row without waiting; it is lost if too many are waiting already."""
        try:
            self._waiting.put_nowait(row)
        except queue.Full:
            if not self._lost:
                _log.warning("trackers are too slow; some rows are only in metrics.jsonl")
            self._lost = True

    def close(self, *, done: bool, limit_s: float = _CLOSE_S) -> None:
        """Wait until all rows are sent, for ``limit_s`` seconds at most."""
        self._done = done
        try:
            self._waiting.put(None, timeout=limit_s)
        except queue.Full:
            return
        self._thread.join(limit_s)

    def _work(self) -> None:
        runs: dict[str, TrackedRun] = {}
        for name, opener in self._openers.items():
            opened = self._guarded(runs, name, opener)
            if opened is not None:
                runs[name] = opened
        while (row := self._waiting.get()) is not None:
            for name, run in tuple(runs.items()):
                self._guarded(runs, name, partial(run.log, row))
        for name, run in tuple(runs.items()):
            self._guarded(runs, name, partial(run.close, done=self._done))

    def _guarded(self, runs: dict[str, TrackedRun], name: str, work: Callable[[], _T]) -> _T | None:
        """Return what ``work`` returns; if it fails, go on without this tracker."""
        try:
            return work()
        except Exception as error:  # noqa: BLE001 - trackers raise many kinds
            runs.pop(name, None)
            words = " ".join(str(error).split())[:200] or type(error).__name__
            _log.warning("%s gets no metrics any more: %s; training continues", name, words)
            return None


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
