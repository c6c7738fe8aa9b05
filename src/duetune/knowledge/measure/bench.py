"""Runs trials on one model: real steps of fine-tuning on random tokens, timed.

Like all modules that a worker imports, it uses only torch, transformers and the standard library.
"""

from __future__ import annotations

import contextlib
import math
import statistics
import time
from typing import TYPE_CHECKING

import torch
import transformers

from duetune.knowledge.measure.device_memory import DeviceMemory
from duetune.knowledge.measure.subject import Subject, Unsupported, optimiser_for
from duetune.knowledge.measure.worker_messages import (
    GB,
    Ready,
    TrialResult,
    computed_dtype,
    installed_software,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from duetune.knowledge.measure.worker_messages import Header, Outcome, Trial

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
        self._base = 0

    def build(self) -> Ready:
        """Build the model and return what the worker reports first.

        A model that does not fit shows up as out of memory in every trial.
        """
        try:
            self._build()
        except torch.OutOfMemoryError:
            self._subject = None
        self._memory.settle()
        self._base = self._memory.allocated
        known = self._memory.known
        return Ready(
            device=torch.cuda.get_device_name(self._device) if known else "cpu",
            software=installed_software(),
            parameters=0 if self._subject is None else self._subject.parameters,
            build_s=0.0 if self._subject is None else self._subject.build_s,
            memory_gb=self._memory.total / GB if known else None,
            context_gb=self._memory.context / GB if known else None,
        )

    def _build(self) -> None:
        self._subject = Subject(self._header, self._device)

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
            if self._subject is None or not self._memory.restart(trial):
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
        tokens = trial.batch_size * trial.tokens_per_sample
        return TrialResult(
            id=trial.id,
            outcome=outcome,
            measured_at=measured_at,
            runtime_s=time.perf_counter() - begun,
            tokens_per_s=tokens / step_s if step_s else None,
            step_s=step_s,
            first_step_s=clock.first_s,
            steps=len(clock.steps) if valid else 0,
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
        """Prepare model, optimiser and data of a trial, time its steps, and return flags."""
        model = subject.adapt(trial)
        optimiser = optimiser_for(trial, subject.trained(), self._device)
        computed = computed_dtype(trial.method, trial.precision)
        scaler = torch.amp.GradScaler(self._device.type, enabled=computed == "float16")
        shape = (trial.batch_size, trial.tokens_per_sample)
        draw = torch.Generator(self._device).manual_seed(self._header.seed)
        ids = torch.randint(subject.vocabulary, shape, generator=draw, device=self._device)

        def step() -> torch.Tensor:
            with (
                contextlib.nullcontext()
                if computed is None
                else torch.autocast(self._device.type, dtype=getattr(torch, computed))
            ):
                loss: torch.Tensor = model(input_ids=ids, labels=ids).loss
            scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
            scaler.step(optimiser)
            scaler.update()
            optimiser.zero_grad(set_to_none=True)
            return loss.detach()

        flags = self._time(trial, clock, step)
        return flags if clock.loss is not None else (*flags, "loss-not-finite")

    def _time(
        self, trial: Trial, clock: Stopwatch, step: Callable[[], torch.Tensor]
    ) -> tuple[str, ...]:
        """Time steps until there are enough of them or the time is up, and return flags."""
        timing = self._header.timing
        begun = time.perf_counter()
        first = clock.first(step, self._memory)
        if first > timing.slow_step_s:
            clock.steps.append(first)
            return ("first-step-only",)
        # A step that takes seconds needs no further warm-up.
        for _ in range(timing.warm_up_steps - 1 if first < timing.max_s / 2 else 0):
            clock.time(step, self._memory)
        enough = timing.capped_steps if trial.cap_bytes else timing.min_steps
        long = timing.min_s / 2 if trial.cap_bytes else timing.min_s
        while True:
            clock.steps.append(clock.time(step, self._memory))
            if time.perf_counter() - begun >= timing.max_s:
                break
            if len(clock.steps) >= enough and sum(clock.steps) >= long:
                break
        return () if len(clock.steps) >= enough else ("few-steps",)

    def _clear(self) -> tuple[str, ...]:
        """Release what the trial left, so that the next one starts alike; rebuild the model if
        necessary.
        """
        try:
            self._memory.lift_cap()
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
            self._subject = None
            self._memory.release(everything=True)
            self._build()
            self._memory.settle()
            self._base = self._memory.allocated
        except torch.OutOfMemoryError:
            return ("poisoned",)
        except RuntimeError as error:
            if any(mark in str(error) for mark in _POISON):
                return ("poisoned",)
            raise
        return ("rebuilt",)


class Stopwatch:
    """Seconds of each measured step; the first step is stored separately."""

    def __init__(self) -> None:
        self.steps: list[float] = []
        self.first_s: float | None = None
        self.loss: float | None = None

    @property
    def step_s(self) -> float:
        """Return the median step in seconds."""
        return statistics.median(self.steps)

    def first(self, step: Callable[[], torch.Tensor], memory: DeviceMemory) -> float:
        """Run and time the first step, and store its loss if it is finite."""
        begun = time.perf_counter()
        loss = step()
        memory.wait()
        self.first_s = time.perf_counter() - begun
        value = float(loss)
        self.loss = value if math.isfinite(value) else None
        return self.first_s

    def time(self, step: Callable[[], torch.Tensor], memory: DeviceMemory) -> float:
        """Run one step and return its seconds."""
        begun = time.perf_counter()
        step()
        memory.wait()
        return time.perf_counter() - begun


def _first_line(error: BaseException) -> str:
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0][:300]}" if text else type(error).__name__
