"""The messages between a campaign and its worker: lines of JSON.

Only the standard library is used here: a worker runs where nothing but torch, transformers and PEFT
is installed.
"""

from __future__ import annotations

import dataclasses
import importlib.metadata
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Mapping

GB = 1e9
DONE, POISONED = 0, 75
"""Exit status of a worker: all rows are written, or a CUDA error made the process useless."""

PLAIN = ("full", 0, "")
"""The value of ``Trial.adapter`` without an adapter."""

Outcome: TypeAlias = Literal["valid", "oom", "failed"]

_WEIGHTS = {"bf16": "bfloat16", "fp16": "float16"}


def weight_dtype(precision: str) -> str:
    """Return torch's type of the model's weights; an adapter's weights always have 32 bits."""
    return _WEIGHTS.get(precision, "float32")


def computed_dtype(method: str, precision: str) -> str | None:
    """Return the type of products if it differs from the weights' own, otherwise None.

    It differs under mixed precision, and with 32-bit adapters on 16-bit weights.
    """
    if precision.endswith("-mixed") or (method != "full" and precision in _WEIGHTS):
        return _WEIGHTS[precision.removesuffix("-mixed")]
    return None


@dataclass(frozen=True, kw_only=True)
class Timing:
    """The length of the measurement of one configuration.

    - ``warm_up_steps``: steps before the measurement.
    - ``min_steps``, ``min_s``: the measurement ends when both are reached.
    - ``max_s``: or when this many seconds have passed in all.
    - ``slow_step_s``: a longer first step is the only one.
    - ``capped_steps``: enough steps under a memory cap, where validity is the question.
    """

    warm_up_steps: int = 2
    min_steps: int = 3
    min_s: float = 0.4
    max_s: float = 2.5
    slow_step_s: float = 6.0
    capped_steps: int = 2


@dataclass(frozen=True, kw_only=True)
class Header:
    """The first line of a batch: what all its trials share.

    - ``config``: the model's ``config.json``.
    - ``weights``: torch's type of the weights.
    """

    model: str
    config: dict[str, object]
    weights: str
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
    """One configuration to run, with the field names of ``Configuration``.

    ``cap_bytes`` is the memory of the emulated card, including the context (0: no cap).
    """

    id: str
    method: str
    precision: str
    batch_size: int
    tokens_per_sample: int
    grad_checkpoint: bool
    lora_rank: int
    lora_targets: str
    optimiser: str
    attention: str
    fast_kernels: bool = False
    num_gpus: int = 1
    grad_accum: int = 1
    cap_bytes: int = 0

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
    def adapter(self) -> tuple[str, int, str]:
        """Return what the model must be rebuilt for when it changes."""
        if self.method == "full":
            return PLAIN
        return (self.method, self.lora_rank, self.lora_targets)


@dataclass(frozen=True, kw_only=True)
class TrialResult:
    """The result of one trial; gigabytes are 10^9 bytes.

    - ``runtime_s``: all seconds, including set-up.
    - ``peak_memory_gb``: what nvidia-smi would show: the allocator's reserve plus the CUDA context;
    None without a GPU.
    - ``peak_allocated_gb``: the part of the reserve that tensors used.
    """

    id: str
    outcome: Outcome
    measured_at: float
    runtime_s: float
    tokens_per_s: float | None = None
    step_s: float | None = None
    first_step_s: float | None = None
    steps: int = 0
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


def installed_software() -> str:
    """Return the packages and versions that a worker runs with, as every configuration records
    them.
    """
    versions = ((name, version_of(name).split("+")[0]) for name in PACKAGES)
    return ", ".join(f"{name} {version}" for name, version in versions if version)


def version_of(name: str) -> str:
    """Return the version of an installed package without importing it; empty if it is not
    installed.
    """
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return ""
