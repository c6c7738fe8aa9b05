"""A campaign: batches are chosen, run one after the other, and what they show is kept.

The next batch is chosen, and the next worker started, while the current one runs: the GPU waits for
neither. Whatever ends a worker, the campaign goes on without the configuration that did it;
whatever ends the campaign, what was measured is in its file or is found when it is begun again.
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
from duetune.knowledge.measure.choice import MemoryRoom, fitting
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
    seconds: float = math.inf
    count: int = 10**9


class Label(msgspec.Struct, frozen=True, kw_only=True):
    """What every observation says of where it is from."""

    provenance: str = "duetune profile"
    cluster: str = ""


class CampaignProgress(msgspec.Struct, frozen=True, kw_only=True):
    """Of this run; ``before`` were there already. ``running`` is the model in memory."""

    before: int
    done: int
    valid: int
    oom: int
    failed: int
    elapsed_s: float
    running: str = ""


class Campaign:
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
        """``history`` is known beside what the file holds: learnt from, and not run again. The
        campaign is over early once ``satisfied``.
        """
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
        """Until the budget is spent or nothing is left to choose. When it is interrupted, what was
        measured is in the file.
        """
        self._began = time.monotonic()
        self._folder.mkdir(exist_ok=True)
        workers = _Workers(self._running.worker, self._folder)
        proven = False
        try:
            # Choosing yields to the worker, whose launches of small kernels are being timed.
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
            # All that was measured is in the file; after any other error it is found there again.
            shutil.rmtree(self._folder, ignore_errors=True)
            raise
        finally:
            workers.close()
            self._journal.close()
        return self.progress()

    def progress(self, running: str = "") -> CampaignProgress:
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
        """To its end, or until time is up: then nothing follows."""
        self._numbered += 1
        begun, model = time.monotonic(), batch.group[0]
        run = BatchRun(
            batch,
            self._folder / f"{self._numbered:06}",
            self._running,
            worker=workers.take(),
            start=workers.take,
        )
        # At once: importing torch and all that can take as long as a batch.
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
        """Whether it is time to choose the next batch: late enough to know half of this one, early
        enough to be done before it ends.
        """
        left = sum(batch.seconds[seen:]) * self._slowness
        return 2 * seen >= len(batch.configurations) or left < 1.5 * self._choice_s

    def _wind_up(self, run: BatchRun) -> None:
        """Of an interrupted batch: the current trial may end, and is kept."""
        run.stop()
        begun = time.monotonic()
        with contextlib.suppress(KeyboardInterrupt):
            while not run.over and time.monotonic() - begun < _GRACE_S:
                self._keep(run.poll())
                time.sleep(_POLL_S)
        if not run.over:
            run.kill()

    def _give_up(self, run: BatchRun, *, proven: bool) -> None:
        if not proven:
            # Not this batch's doing: no worker has ever started here.
            raise DuetuneError(f"the profiler's worker does not start: {run.last_words()}")
        self._keep(run.rest())

    def _choose(self, running: Batch | None) -> Batch | None:
        """Runs beside the worker: it looks at a copy."""
        begun = time.monotonic()
        try:
            return self._chosen(running)
        finally:
            self._choice_s = time.monotonic() - begun

    def _chosen(self, running: Batch | None) -> Batch | None:
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
        group = None if running is None else running.group
        if room.count <= 0:
            return None
        return self._chooser.choose(
            observations, taken, msgspec.structs.replace(room, running=group)
        )

    def _room(self, expected_s: float = 0.0, pending: int = 0) -> MemoryRoom:
        done = len(self._journal.observations) - self._before
        return MemoryRoom(
            seconds=self._budget.seconds - self._elapsed_s - expected_s,
            count=self._budget.count - done - pending,
            slowness=self._slowness,
        )

    def _keep(self, found: Iterable[BatchMeasurements]) -> None:
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
        """What a campaign that was killed had measured but not written down."""
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
    """Of this thread alone, on Linux; of the whole process elsewhere, which then waits anyway."""
    with contextlib.suppress(OSError):
        os.nice(10)


class _Workers:
    """Workers that have been started and wait; at most one, since each takes host memory."""

    def __init__(self, command: Sequence[str], folder: Path) -> None:
        self._command = command
        self._folder = folder
        self._count = 0
        self._spare: WorkerProcess | None = None

    def prepare(self) -> None:
        if self._spare is None:
            self._count += 1
            self._spare = WorkerProcess(self._command, self._folder / f"worker-{self._count}.log")

    def take(self) -> WorkerProcess:
        self.prepare()
        worker, self._spare = self._spare, None
        if worker is None:
            raise DuetuneError("no worker")
        return worker

    def close(self) -> None:
        if self._spare is not None:
            self._spare.kill()
            self._spare = None
