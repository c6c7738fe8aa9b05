"""What a campaign and its worker tell each other: lines of JSON.

Standard library only: a worker runs where nothing is installed but torch and transformers.
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
"""How a worker ends: all rows are written, or a CUDA error made the process useless."""

PLAIN = ("full", 0, "")
"""No adapter."""

Outcome: TypeAlias = Literal["valid", "oom", "failed"]

_WEIGHTS = {"bf16": "bfloat16", "fp16": "float16"}


def weight_dtype(precision: str) -> str:
    """Of the model's weights. An adapter's are always of 32 bits, as PEFT makes them."""
    return _WEIGHTS.get(precision, "float32")


def computed_dtype(method: str, precision: str) -> str | None:
    """What products are computed in where it is not the weights' own: with 32-bit weights under
    the mixed precisions, and with 32-bit adapters beside 16-bit weights.
    """
    if precision.endswith("-mixed") or (method != "full" and precision in _WEIGHTS):
        return _WEIGHTS[precision.removesuffix("-mixed")]
    return None


@dataclass(frozen=True, kw_only=True)
class Timing:
    """How long a configuration is measured: after ``warm_up_steps``, until there are ``min_steps``
    and ``min_s``, or ``max_s`` in all are over. A first step of more than ``slow_step_s`` is the
    only one. Where memory is capped, ``capped_steps`` are enough: its validity is the question.
    """

    warm_up_steps: int = 2
    min_steps: int = 3
    min_s: float = 0.4
    max_s: float = 2.5
    slow_step_s: float = 6.0
    capped_steps: int = 2


@dataclass(frozen=True, kw_only=True)
class Header:
    """The first line of a batch: what all its trials share. ``config`` is the model's, as in its
    ``config.json``; ``weights`` a dtype of torch.
    """

    model: str
    config: dict[str, object]
    weights: str
    device: str = "cuda"
    seed: int = 0
    timing: Timing = field(default_factory=Timing)

    def line(self) -> str:
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def read(cls, line: str) -> Header:
        values = json.loads(line)
        return cls(**{**values, "timing": Timing(**values.get("timing", {}))})


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One configuration to run, with the names of ``knowledge.configuration.Configuration``.
    ``cap_bytes``: what the emulated card has, context included (0: no cap).
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
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def read(cls, line: str) -> Trial:
        """Fields that are not known here are left out: a row may be a whole configuration."""
        return cls(**_known(cls, json.loads(line)))  # type: ignore[arg-type]

    @property
    def adapter(self) -> tuple[str, int, str]:
        """What must be rebuilt in the model when it changes."""
        if self.method == "full":
            return PLAIN
        return (self.method, self.lora_rank, self.lora_targets)


@dataclass(frozen=True, kw_only=True)
class TrialResult:
    """What became of one trial. ``peak_memory_gb`` is what nvidia-smi would show: the allocator's
    reserve and the CUDA context; None where there is no GPU. ``runtime_s`` is all of it, set-up
    included. Gigabytes are 10^9 bytes.
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
        return json.dumps({"event": "result", **dataclasses.asdict(self)})

    @classmethod
    def of(cls, values: Mapping[str, object]) -> TrialResult:
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
        return json.dumps({"event": "ready", **dataclasses.asdict(self)})

    @classmethod
    def of(cls, values: Mapping[str, object]) -> Ready:
        return cls(**_known(cls, values))  # type: ignore[arg-type]


def _known(
    record: type[Trial | TrialResult | Ready], values: Mapping[str, object]
) -> dict[str, object]:
    names = {each.name for each in dataclasses.fields(record)}
    return {name: value for name, value in values.items() if name in names}


def started_line(trial: Trial) -> str:
    """Before a trial runs, so that whoever finds the worker dead knows what killed it."""
    return json.dumps({"event": "started", "id": trial.id})


PACKAGES = ("torch", "transformers", "peft")


def installed_software() -> str:
    """What a worker of this interpreter runs with, as it stands in every configuration."""
    versions = ((name, version_of(name).split("+")[0]) for name in PACKAGES)
    return ", ".join(f"{name} {version}" for name, version in versions if version)


def version_of(name: str) -> str:
    """Of an installed package, which is not imported; empty if it is not there."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return ""
