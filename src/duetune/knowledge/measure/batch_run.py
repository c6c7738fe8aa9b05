"""One batch, run to its end: if a worker dies, the other configurations are still run."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from duetune.knowledge.measure.trials import write_batch
from duetune.knowledge.measure.worker_messages import DONE, Timing, TrialResult
from duetune.knowledge.measure.worker_process import WORKER, WorkerProcess

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from duetune.knowledge.configurations.configuration import Configuration
    from duetune.knowledge.measure.trials import Batch


_TRIES = 2


class Running(msgspec.Struct, frozen=True, kw_only=True):
    """How workers are run.

    - ``hang_s``: a worker that is silent for this long in a trial hangs.
    - ``build_s``: the same limit before its first trial.
    - ``worker``: the command that starts a worker.
    """

    device: str = "cuda"
    seed: int = 0
    timing: Timing = Timing()
    hang_s: float = 90.0
    build_s: float = 240.0
    worker: tuple[str, ...] = WORKER


class BatchMeasurements(NamedTuple):
    """One configuration and its result."""

    configuration: Configuration
    result: TrialResult


class BatchRun:
    """Runs a batch in a worker; ``poll`` must be called until ``over``.

    ``worker`` is a worker that waits for a batch. ``start`` returns another one when it dies with
    work left.
    """

    def __init__(
        self,
        batch: Batch,
        place: Path,
        running: Running,
        *,
        worker: WorkerProcess,
        start: Callable[[], WorkerProcess],
    ) -> None:
        self._waiting = {each.key: each for each in batch.configurations}
        self._place = place
        self._running = running
        self._start = start
        self._worker = worker
        self._part = 0
        self._given = 0
        self._futile = 0
        self._stopping = False
        self.started = False
        """Whether any worker got as far as having the model in memory."""
        self.over = False
        self.abandoned = False
        """Whether it was given up, since worker after worker died before its first trial."""
        self._give()

    def poll(self) -> list[BatchMeasurements]:
        """Advance the batch and return the results that arrived since the last call."""
        if self.over:
            return []
        status = self._worker.status  # read first, so that its last lines are not missed
        found = self._results()
        if status is None and self._worker.silent_s > self._limit_s:
            self._worker.kill()
            found += self._results()
            found += self._blame(f"Hang: silent for {self._limit_s:g} s")
            self._go_on()
        elif status is not None:
            self._worker.release()
            if status != DONE:
                found += self._blame(self._how_it_ended(status))
            self._go_on()
        return found

    def stop(self) -> None:
        """Ask the worker to stop after the current trial."""
        self._stopping = True
        self._worker.ask_to_stop()

    def kill(self) -> None:
        """End the worker at once; the batch is over."""
        self._worker.kill()
        self.over = True

    def last_words(self) -> str:
        """Return the last line that the worker wrote to standard error."""
        return self._worker.last_words()

    def rest(self) -> list[BatchMeasurements]:
        """Return everything that was not run as failed; called for a batch that was given up."""
        error = f"Crash: the worker did not start ({self.last_words()})"
        return [self._failed(each, error) for each in self._waiting.values()]

    def _give(self) -> None:
        """Write the remaining configurations to a file and hand it to the worker."""
        self._part += 1
        self._given = len(self._waiting)
        batch = self._place.with_name(f"{self._place.name}-{self._part}.batch.jsonl")
        results = batch.with_name(batch.name.replace(".batch.", ".results."))
        running = self._running
        write_batch(
            batch,
            tuple(self._waiting.values()),
            device=running.device,
            seed=running.seed,
            timing=running.timing,
        )
        self._worker.give(batch, results)

    def _results(self) -> list[BatchMeasurements]:
        """Return new results, and note whether the worker has loaded the model."""
        found = [
            BatchMeasurements(self._waiting.pop(each.id), each)
            for each in self._worker.results()
            if each.id in self._waiting
        ]
        self.started = self.started or self._worker.ready is not None
        return found

    @property
    def _limit_s(self) -> float:
        """Return how long the worker may be silent now, in seconds."""
        return self._running.build_s if self._worker.current is None else self._running.hang_s

    def _blame(self, error: str) -> list[BatchMeasurements]:
        """Return the trial that ran when the worker died as failed."""
        culprit = self._worker.current
        if culprit not in self._waiting:
            return []
        return [self._failed(self._waiting.pop(culprit), error)]

    def _how_it_ended(self, status: int) -> str:
        how = f"killed by signal {-status}" if status < 0 else f"ended with {status}"
        words = self._worker.last_words()
        return f"Crash: the worker {how}" + (f" ({words})" if words else "")

    @staticmethod
    def _failed(configuration: Configuration, error: str) -> BatchMeasurements:
        result = TrialResult(
            id=configuration.key,
            outcome="failed",
            measured_at=time.time(),
            runtime_s=0.0,
            error=error,
            flags=("crashed",),
        )
        return BatchMeasurements(configuration, result)

    def _go_on(self) -> None:
        """Start another worker with what is left, unless the batch is stopped or workers make no
        progress.
        """
        self._futile = self._futile + 1 if len(self._waiting) == self._given else 0
        self.abandoned = self._futile >= _TRIES and not self._stopping
        if not self._waiting or self._stopping or self.abandoned:
            self.over = True
            return
        self._worker = self._start()
        self._give()
