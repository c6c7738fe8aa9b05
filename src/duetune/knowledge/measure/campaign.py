"""A campaign: batches are chosen and run one after the other, and the results are stored.

The next batch is chosen and the next worker started while the current batch runs, so the GPU does
not wait. If a worker dies, the campaign goes on without the configuration that killed it. If the
campaign dies, everything measured is in its file or is recovered at the next start.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import shutil
import time
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING

import msgspec

from duetune.errors import DuetuneError
from duetune.knowledge.measure.batch_run import BatchMeasurements, BatchRun, Running
from duetune.knowledge.measure.campaign_file import CampaignFile
from duetune.knowledge.measure.choice import RemainingBudget, fitting
from duetune.knowledge.measure.trials import observation_of, protocol_text, read_batch
from duetune.knowledge.measure.worker_messages import TrialResult
from duetune.knowledge.measure.worker_process import WorkerProcess, new_events

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

    from duetune.knowledge.measure.choice import Chooser
    from duetune.knowledge.measure.trials import Batch
    from duetune.knowledge.observation import Observation

_POLL_S = 0.05
_GRACE_S = 20.0
_SLOWNESS = (0.5, 10.0)


class Budget(msgspec.Struct, frozen=True, kw_only=True):
    """When a campaign ends: after this many seconds, or this many configurations."""

    seconds: float = math.inf
    count: int = 10**9


class Label(msgspec.Struct, frozen=True, kw_only=True):
    """What every observation of a campaign says about its origin."""

    provenance: str = "duetune profile"
    cluster: str = ""


class CampaignProgress(msgspec.Struct, frozen=True, kw_only=True):
    """Counts of this run of a campaign.

    - ``before``: observations that the file had at the start.
    - ``running``: the model in memory.
    """

    before: int
    done: int
    valid: int
    oom: int
    failed: int
    elapsed_s: float
    running: str = ""


class Campaign:
    """Measures batch after batch into one file.

    - ``out``: the file; a second campaign on the same file continues it.
    - ``history``: earlier observations; they are learned from and not measured again.
    - ``report``: called with the progress while batches run.
    - ``satisfied``: called before each choice; the campaign ends early if it returns True.
    """

    def __init__(
        self,
        out: Path,
        chooser: Chooser,
        running: Running,
        budget: Budget,
        *,
        label: Label | None = None,
        history: Sequence[Observation] = (),
        report: Callable[[CampaignProgress], None] = lambda _: None,
        satisfied: Callable[[Sequence[Observation]], bool] = lambda _: False,
    ) -> None:
        """Open the file and recover what an earlier campaign had measured."""
        self._chooser = chooser
        self._running = running
        self._budget = budget
        self._label = label or Label()
        self._history = list(history)
        self._report = report
        self._satisfied = satisfied
        self._journal = CampaignFile(out)
        self._details = out.with_name(f"{out.stem}.details.jsonl")
        self._folder = out.with_name(f"{out.name}.work")
        self._slowness = 1.0
        self._choice_s = 0.0
        self._numbered = 0
        self._began = time.monotonic()
        self._recover()
        self._before = len(self._journal.observations)

    def run(self) -> CampaignProgress:
        """Run until the budget is spent or nothing is left to choose, and return the progress.

        After an interrupt, everything measured is in the file.
        """
        self._began = time.monotonic()
        self._folder.mkdir(exist_ok=True)
        workers = _Workers(self._running.worker, self._folder)
        proven = False
        try:
            # The chooser has a low priority, because the worker's kernel launches are being timed.
            with ThreadPoolExecutor(1, "chooser", initializer=_be_nice) as thread:
                workers.prepare()
                batch = self._choose(None)
                while batch is not None and (batch := fitting(batch, self._room())) is not None:
                    run, following = self._run_batch(batch, workers, thread)
                    proven = proven or run.started
                    if run.abandoned:
                        self._give_up(run, proven=proven)
                    batch = None if following is None else following.result()
            shutil.rmtree(self._folder, ignore_errors=True)
        except KeyboardInterrupt:
            # Everything is in the file. After other errors the folder stays, to recover from it.
            shutil.rmtree(self._folder, ignore_errors=True)
            raise
        finally:
            workers.close()
            self._journal.close()
        return self.progress()

    def progress(self, running: str = "") -> CampaignProgress:
        """Return the counts so far; ``running`` is the model in memory."""
        outcomes = [str(each.outcome) for each in self._journal.observations[self._before :]]
        return CampaignProgress(
            before=self._before,
            done=len(outcomes),
            valid=outcomes.count("valid"),
            oom=outcomes.count("oom"),
            failed=outcomes.count("failed"),
            elapsed_s=self._elapsed_s,
            running=running,
        )

    @property
    def _elapsed_s(self) -> float:
        return time.monotonic() - self._began

    def _run_batch(
        self, batch: Batch, workers: _Workers, thread: ThreadPoolExecutor
    ) -> tuple[BatchRun, Future[Batch | None] | None]:
        """Run a batch to its end, and choose the next one meanwhile.

        If the time is up, the batch is stopped and nothing follows.
        """
        self._numbered += 1
        begun, model = time.monotonic(), batch.model
        run = BatchRun(
            batch,
            self._folder / f"{self._numbered:06}",
            self._running,
            worker=workers.take(),
            start=workers.take,
        )
        # Started now, because importing torch can take as long as a batch.
        if self._room(batch.expected_s, len(batch.configurations)).count > 0:
            workers.prepare()
        following: Future[Batch | None] | None = None
        size, seen, stopped_at = len(batch.configurations), 0, math.inf
        try:
            while not run.over:
                found = run.poll()
                seen += len(found)
                self._keep(found)
                self._report(self.progress(model))
                if stopped_at == math.inf and self._elapsed_s >= self._budget.seconds:
                    run.stop()
                    stopped_at = time.monotonic()
                if time.monotonic() - stopped_at > _GRACE_S:
                    run.kill()
                if following is None and stopped_at == math.inf and self._due(batch, seen):
                    following = thread.submit(self._choose, batch)
                time.sleep(_POLL_S if not run.over else 0.0)
        except BaseException:
            self._wind_up(run)
            raise
        if run.started and seen == size:
            ratio = (time.monotonic() - begun) / batch.expected_s
            low, high = _SLOWNESS
            self._slowness = min(high, max(low, 0.5 * self._slowness + 0.5 * ratio))
        return run, None if stopped_at < math.inf else following

    def _due(self, batch: Batch, seen: int) -> bool:
        """Return whether to choose the next batch now.

        The choice should be late enough to know half of this batch, and early enough to be done
        before it ends.
        """
        left = sum(batch.seconds[seen:]) * self._slowness
        return 2 * seen >= len(batch.configurations) or left < 1.5 * self._choice_s

    def _wind_up(self, run: BatchRun) -> None:
        """Let the current trial of an interrupted batch finish, and store it."""
        run.stop()
        begun = time.monotonic()
        with contextlib.suppress(KeyboardInterrupt):
            while not run.over and time.monotonic() - begun < _GRACE_S:
                self._keep(run.poll())
                time.sleep(_POLL_S)
        if not run.over:
            run.kill()

    def _give_up(self, run: BatchRun, *, proven: bool) -> None:
        """Store the rest of a batch as failed, or raise if no worker has ever started."""
        if not proven:
            # Not the fault of this batch: no worker has ever started here.
            raise DuetuneError(f"the profiler's worker does not start: {run.last_words()}")
        self._keep(run.rest())

    def _choose(self, running: Batch | None) -> Batch | None:
        """Return the next batch, and measure how long the choice takes; runs in a second thread."""
        begun = time.monotonic()
        try:
            return self._chosen(running)
        finally:
            self._choice_s = time.monotonic() - begun

    def _chosen(self, running: Batch | None) -> Batch | None:
        """Return the next batch, from a copy of the observations."""
        observations = [*self._history, *self._journal.observations]
        if self._satisfied(observations):
            return None
        pending = () if running is None else running.configurations
        taken = {each.configuration.key for each in observations}
        open_ones = [each.key not in taken for each in pending].count(True)
        taken.update(each.key for each in pending)
        expected = 0.0
        if running is not None:
            expected = sum(running.seconds) * open_ones / len(pending) * self._slowness
        room = self._room(expected, open_ones)
        model = None if running is None else running.model
        if room.count <= 0:
            return None
        return self._chooser.choose(
            observations, taken, msgspec.structs.replace(room, running=model)
        )

    def _room(self, expected_s: float = 0.0, pending: int = 0) -> RemainingBudget:
        """Return what is left of the budget after the running batch."""
        done = len(self._journal.observations) - self._before
        return RemainingBudget(
            seconds=self._budget.seconds - self._elapsed_s - expected_s,
            count=self._budget.count - done - pending,
            slowness=self._slowness,
        )

    def _keep(self, found: Iterable[BatchMeasurements]) -> None:
        """Append results to the campaign's file, and details to a file beside it."""
        measured = list(found)
        if not measured:
            return
        protocol = protocol_text(self._running.timing)
        self._journal.append(
            observation_of(
                configuration,
                result,
                provenance=self._label.provenance,
                cluster=self._label.cluster,
                protocol=protocol,
            )
            for configuration, result in measured
        )
        with self._details.open("a", encoding="utf-8") as file:
            file.writelines(result.line() + "\n" for _, result in measured)

    def _recover(self) -> None:
        """Store what a killed campaign had measured but not written to its file."""
        if not self._folder.is_dir():
            return
        known = {each.configuration.key for each in self._journal.observations}
        for path in sorted(self._folder.glob("*.batch.jsonl")):
            results = path.with_name(path.name.replace(".batch.", ".results."))
            if not results.exists():
                continue
            with contextlib.suppress(json.JSONDecodeError, IndexError):
                configurations = {each.key: each for each in read_batch(path)}
                values = [each.values for each in new_events(results, 0)]
                rows = [TrialResult.of(each) for each in values if each.get("event") == "result"]
                new = [row for row in rows if row.id in configurations and row.id not in known]
                known.update(row.id for row in new)
                self._keep(BatchMeasurements(configurations[row.id], row) for row in new)
        shutil.rmtree(self._folder, ignore_errors=True)


def _be_nice() -> None:
    """Lower the priority of this thread on Linux, or of the process elsewhere."""
    with contextlib.suppress(OSError):
        os.nice(10)


class _Workers:
    """Keeps at most one started worker in reserve, because each one takes host memory."""

    def __init__(self, command: Sequence[str], folder: Path) -> None:
        self._command = command
        self._folder = folder
        self._count = 0
        self._spare: WorkerProcess | None = None

    def prepare(self) -> None:
        """Start a worker in reserve if there is none."""
        if self._spare is None:
            self._count += 1
            self._spare = WorkerProcess(self._command, self._folder / f"worker-{self._count}.log")

    def take(self) -> WorkerProcess:
        """Return the worker in reserve, or a new one."""
        self.prepare()
        worker, self._spare = self._spare, None
        if worker is None:
            raise DuetuneError("no worker")
        return worker

    def close(self) -> None:
        """End the worker in reserve."""
        if self._spare is not None:
            self._spare.kill()
            self._spare = None
