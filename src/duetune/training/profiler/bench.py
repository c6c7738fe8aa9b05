"""Runs trials on one model: steps of our trainer on random rows, timed."""

from __future__ import annotations

import math
import statistics
import time
from typing import TYPE_CHECKING

import torch
import transformers

from duetune.knowledge.measure.worker_messages import (
    GB,
    Ready,
    TrialResult,
    installed_software,
)
from duetune.training.profiler.device_memory import DeviceMemory
from duetune.training.profiler.subject import Subject, Unsupported

if TYPE_CHECKING:
    from duetune.knowledge.measure.worker_messages import Header, Outcome, Trial
    from duetune.training.shared_state import SharedState

_LEAK = 10**9
_NO_MEMORY = ("out of memory", "CUBLAS_STATUS_ALLOC_FAILED", "CUBLAS_STATUS_NOT_INITIALIZED")
_POISON = ("CUDA error", "CUDA driver error", "cuDNN error", "CUBLAS_STATUS_EXECUTION_FAILED")


class Bench:
    """Holds one model in memory and measures one trial after the other on it."""

    def __init__(self, header: Header) -> None:
        transformers.utils.logging.set_verbosity_error()  # type: ignore[no-untyped-call]
        self._header = header
        # Some functions of torch need the index of the GPU.
        self._device = torch.device("cuda:0" if header.device == "cuda" else header.device)
        self._memory = DeviceMemory(self._device)
        self._subject: Subject | None = None
        self._built_for: Trial | None = None
        self._base = 0

    def build(self, trial: Trial) -> Ready:
        """Build the model for a trial, and return what the worker reports first.

        A model that does not fit shows up as out of memory in every trial.
        """
        try:
            self._build(trial)
        except torch.OutOfMemoryError:
            self._subject = None
        known = self._memory.known
        return Ready(
            device=torch.cuda.get_device_name(self._device) if known else "cpu",
            software=installed_software(),
            parameters=0 if self._subject is None else self._subject.parameters,
            build_s=0.0 if self._subject is None else self._subject.build_s,
            memory_gb=self._memory.total / GB if known else None,
            context_gb=self._memory.context / GB if known else None,
        )

    def _build(self, trial: Trial) -> None:
        """Replace the model; the old one is gone before the new one is made."""
        self._subject = None
        self._built_for = trial
        self._memory.release(everything=True)
        self._subject = Subject(self._header, trial, self._device)
        self._memory.settle()
        self._base = self._memory.allocated

    def run(self, trial: Trial) -> TrialResult:
        """Return the result of one trial; errors of the configuration become results, not
        exceptions.

        After a result with the flag "poisoned" the process must end, because a CUDA error made it
        useless.
        """
        begun, measured_at = time.perf_counter(), time.time()
        clock = Stopwatch()
        outcome: Outcome = "failed"
        error = ""
        flags: tuple[str, ...] = ()
        try:
            if self._built_for is None or trial.built != self._built_for.built:
                self._build(trial)
            self._memory.restart()
            if self._subject is None:
                outcome, error = "oom", "the weights alone do not fit"
            else:
                flags = self._measure(self._subject, trial, clock)
                outcome = "valid"
        except Unsupported as reason:
            error = f"Unsupported: {reason}"
        except torch.OutOfMemoryError as reason:
            outcome, error = "oom", _first_line(reason)
        except Exception as reason:  # noqa: BLE001 - whatever it is, the next trial must run
            text = str(reason)
            lost = any(mark in text for mark in _NO_MEMORY)
            outcome, error = "oom" if lost else "failed", _first_line(reason)
            if not lost and any(mark in text for mark in _POISON):
                flags = ("poisoned",)
        # Only here are the error's stack frames gone, and with them the tensors they held.
        peak, allocated, context = self._peaks()
        if flags != ("poisoned",):
            flags += self._clear()
        known = self._memory.known
        valid = outcome == "valid"
        step_s = clock.step_s if valid else None
        return TrialResult(
            id=trial.id,
            outcome=outcome,
            measured_at=measured_at,
            runtime_s=time.perf_counter() - begun,
            tokens_per_s=clock.tokens / step_s if step_s else None,
            step_s=step_s / trial.grad_accum if step_s else None,
            first_step_s=clock.first_s,
            steps=len(clock.steps) if valid else 0,
            step_rows=clock.rows if valid else None,
            peak_memory_gb=(peak + context) / GB if known and valid else None,
            peak_allocated_gb=allocated / GB if known and valid else None,
            context_gb=context / GB if known else None,
            loss=clock.loss,
            error=error,
            flags=flags,
        )

    def _peaks(self) -> tuple[int, int, int]:
        """Return reserved, allocated and context bytes, or zeros if CUDA no longer answers."""
        try:
            return self._memory.peak_reserved, self._memory.peak_allocated, self._memory.context
        except RuntimeError:
            return 0, 0, 0

    def _measure(self, subject: Subject, trial: Trial, clock: Stopwatch) -> tuple[str, ...]:
        """Prepare the trainer's state for a trial, time its steps, and return flags."""
        state = subject.state(trial)
        clock.rows = subject.rows
        flags = self._time(state, clock)
        clock.tokens = state.known.tokens // state.step
        loss = state.known.losses[0]
        clock.loss = loss if math.isfinite(loss) else None
        return flags if clock.loss is not None else (*flags, "loss-not-finite")

    def _time(self, state: SharedState, clock: Stopwatch) -> tuple[str, ...]:
        """Time steps until there are enough of them or the time is up, and return flags."""
        timing = self._header.timing
        # The first step also compiles and loads kernels, so it says nothing about the others.
        clock.first_s = clock.time(state, self._memory)
        begun = time.perf_counter()
        for _ in range(timing.warm_up_steps - 1):
            second = clock.time(state, self._memory)
            if second > timing.max_s / 2:
                # So long a step needs no further warm-up.
                clock.steps.append(second)
                break
        while time.perf_counter() - begun < timing.max_s or not clock.steps:
            if timing.enough(clock.steps) and sum(clock.steps) >= timing.min_s:
                break
            clock.steps.append(clock.time(state, self._memory))
        return () if timing.enough(clock.steps) else ("few-steps",)

    def _clear(self) -> tuple[str, ...]:
        """Release what the trial left, so that the next one starts alike; rebuild the model if
        necessary.
        """
        try:
            if self._subject is not None:
                self._subject.forget_gradients()
            self._memory.release()
            if self._memory.allocated - self._base < _LEAK:
                return ()
            if self._subject is not None:
                self._subject.detach()
            self._memory.release()
            if self._memory.allocated - self._base < _LEAK:
                return ()
            if self._built_for is not None:
                self._build(self._built_for)
        except torch.OutOfMemoryError:
            return ("poisoned",)
        except RuntimeError as error:
            if any(mark in str(error) for mark in _POISON):
                return ("poisoned",)
            raise
        return ("rebuilt",)


class Stopwatch:
    """Seconds of each measured step; the first step is stored separately.

    ``rows`` and ``tokens`` are those of one step.
    """

    def __init__(self) -> None:
        self.steps: list[float] = []
        self.first_s: float | None = None
        self.loss: float | None = None
        self.rows = 0
        self.tokens = 0

    @property
    def step_s(self) -> float:
        """Return the median step in seconds."""
        return statistics.median(self.steps)

    @staticmethod
    def time(state: SharedState, memory: DeviceMemory) -> float:
        """Do one step of the trainer, as the only member, and return its seconds."""
        begun = time.perf_counter()
        state.update(state.contribution(0, (0.0,), _untouched)[0])
        memory.wait()
        return time.perf_counter() - begun


def _untouched() -> None:
    """Nobody watches a trial, so nobody is told that it lives."""


def _first_line(error: BaseException) -> str:
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0][:300]}" if text else type(error).__name__
