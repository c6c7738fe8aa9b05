"""The messages between a campaign and its worker: lines of JSON.

Only the standard library is used here.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib.metadata
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

GB = 1e9
DONE, POISONED = 0, 75
"""Exit status of a worker: all rows are written, or a CUDA error made the process useless."""

Outcome: TypeAlias = Literal["valid", "oom", "failed"]


@dataclass(frozen=True, kw_only=True)
class Timing:
    """The length of the measurement of one configuration.

    - ``warm_up_steps``: steps before the measurement.
    - ``min_steps``, ``min_s``: the measurement ends when both are reached.
    - ``agreement``: two steps are enough if they differ by at most this share.
    - ``max_s``: or it ends when this many seconds have passed since the first step.
    """

    warm_up_steps: int = 1
    min_steps: int = 3
    min_s: float = 0.2
    max_s: float = 4.0
    agreement: float = 0.04

    def enough(self, steps: Sequence[float]) -> bool:
        """Return whether these seconds of steps say how long a step takes."""
        agreed = len(steps) == 2 and max(steps) <= (1.0 + self.agreement) * min(steps)
        return agreed or len(steps) >= self.min_steps


@dataclass(frozen=True, kw_only=True)
class Header:
    """The first line of a batch: what all its trials share.

    - ``config``: the model's ``config.json``.
    """

    model: str
    config: dict[str, object]
    device: str = "cuda"
    seed: int = 0
    timing: Timing = field(default_factory=Timing)

    def line(self) -> str:
        """Return the header as a line of the batch file."""
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def read(cls, line: str) -> Header:
        """Return the header of a line."""
        values = json.loads(line)
        return cls(**{**values, "timing": Timing(**values.get("timing", {}))})


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One configuration to run, with the field names of ``Configuration``."""

    id: str
    method: str
    precision: str
    batch_size: int
    tokens_per_sample: int
    tokens_per_microbatch: int
    longest_sample: int
    grad_checkpoint: bool
    lora_rank: int
    lora_targets: str
    optimiser: str
    attention: str
    num_gpus: int = 1
    grad_accum: int = 1
    fast_kernels: bool = False

    def line(self) -> str:
        """Return the trial as a line of the batch file."""
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def read(cls, line: str) -> Trial:
        """Return the trial of a line, which may hold a whole configuration; unknown fields are
        ignored.
        """
        return cls(**_known(cls, json.loads(line)))  # type: ignore[arg-type]

    @property
    def built(self) -> tuple[str, bool]:
        """Return what the model must be built anew for when it changes: how its weights are
        stored, and whether it has fused kernels.
        """
        return self.method if self.method == "qlora" else self.precision, self.fast_kernels

    @property
    def adapted(self) -> tuple[str, int, str, bool]:
        """Return what the model in memory must be prepared anew for when it changes."""
        rank, targets = (0, "") if self.method == "full" else (self.lora_rank, self.lora_targets)
        return self.method, rank, targets, self.grad_checkpoint


def ordered(trials: list[Trial]) -> list[Trial]:
    """Return the trials in the order to run them: alike ones follow each other, small ones come
    first.

    Those without fused kernels come before all others: Liger replaces the layers in the module of
    the model's family, so every model that the process builds afterwards has them.
    """
    return sorted(
        trials,
        key=lambda each: (
            each.fast_kernels,
            each.built,
            each.adapted,
            each.tokens_per_microbatch,
            each.id,
        ),
    )


@dataclass(frozen=True, kw_only=True)
class TrialResult:
    """The result of one trial; gigabytes are 10^9 bytes.

    - ``runtime_s``: all seconds, including set-up.
    - ``peak_memory_gb``: what nvidia-smi would show: the allocator's reserve plus the CUDA context;
    None without a GPU.
    - ``peak_allocated_gb``: the part of the reserve that tensors used.
    - ``step_rows``: rows of one optimiser step.
    """

    id: str
    outcome: Outcome
    measured_at: float
    runtime_s: float
    tokens_per_s: float | None = None
    step_s: float | None = None
    first_step_s: float | None = None
    steps: int = 0
    step_rows: int | None = None
    peak_memory_gb: float | None = None
    peak_allocated_gb: float | None = None
    context_gb: float | None = None
    loss: float | None = None
    error: str = ""
    flags: tuple[str, ...] = ()

    def line(self) -> str:
        """Return the result as a line of the results file."""
        return json.dumps({"event": "result", **dataclasses.asdict(self)})

    @classmethod
    def of(cls, values: Mapping[str, object]) -> TrialResult:
        """Return the result from the values of a line; unknown fields are ignored."""
        chosen = _known(cls, values)
        flags = chosen.get("flags")
        if isinstance(flags, list):
            chosen["flags"] = tuple(str(flag) for flag in flags)
        return cls(**chosen)  # type: ignore[arg-type]


@dataclass(frozen=True, kw_only=True)
class Ready:
    """The worker's first line: the model is built."""

    device: str
    software: str
    parameters: int
    build_s: float
    memory_gb: float | None
    context_gb: float | None

    def line(self) -> str:
        """Return the message as a line of the results file."""
        return json.dumps({"event": "ready", **dataclasses.asdict(self)})

    @classmethod
    def of(cls, values: Mapping[str, object]) -> Ready:
        """Return the message from the values of a line; unknown fields are ignored."""
        return cls(**_known(cls, values))  # type: ignore[arg-type]


def _known(
    record: type[Trial | TrialResult | Ready], values: Mapping[str, object]
) -> dict[str, object]:
    names = {each.name for each in dataclasses.fields(record)}
    return {name: value for name, value in values.items() if name in names}


def started_line(trial: Trial) -> str:
    """Return the line that is written before a trial runs, to know the culprit if the worker
    dies.
    """
    return json.dumps({"event": "started", "id": trial.id})


PACKAGES = ("torch", "transformers", "peft")
TRAINER = "duetune 2"
"""Our trainer, and a number that grows when its steps take other time or memory than before. Older
measurements are then those of another software.
"""


def installed_software() -> str:
    """Return the trainer, packages and versions that a worker runs with, as every configuration
    records them.
    """
    versions = ((name, version_of(name).split("+")[0]) for name in PACKAGES)
    return ", ".join((TRAINER, *(f"{name} {version}" for name, version in versions if version)))


@functools.cache
def version_of(name: str) -> str:
    """Return the version of an installed package without importing it; empty if it is not
    installed.
    """
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return ""
