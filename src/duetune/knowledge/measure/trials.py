"""Configurations as a worker reads them, and its results as observations."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from duetune.errors import InvalidInput
from duetune.knowledge.configurations.configuration import (
    Attention,
    Configuration,
    Method,
    Optimiser,
    Precision,
)
from duetune.knowledge.facts.model_registry import registered
from duetune.knowledge.measure.worker_messages import (
    Header,
    Timing,
    TrialResult,
    version_of,
)
from duetune.knowledge.observation import Observation, Origin, RunOutcome

if TYPE_CHECKING:
    from collections.abc import Sequence


class Batch(msgspec.Struct, frozen=True, kw_only=True):
    """Configurations of one model, which one worker has in memory.

    - ``seconds``: expected seconds of each configuration.
    - ``start_s``: expected seconds until the first.
    """

    configurations: tuple[Configuration, ...]
    seconds: tuple[float, ...]
    start_s: float

    @property
    def expected_s(self) -> float:
        """Return the expected seconds of the whole batch."""
        return self.start_s + sum(self.seconds)

    @property
    def model(self) -> str:
        """Return the model of all configurations."""
        return self.configurations[0].model


def write_batch(
    path: Path, configurations: Sequence[Configuration], *, device: str, seed: int, timing: Timing
) -> None:
    """Write the file that a worker reads: a header, then one line per configuration."""
    first = configurations[0]
    header = Header(
        model=first.model,
        config=model_config(first.model),
        device=device,
        seed=seed,
        timing=timing,
    )
    lines = [header.line()]
    lines += (json.dumps({**msgspec.to_builtins(one), "id": one.key}) for one in configurations)
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def read_batch(path: Path) -> tuple[Configuration, ...]:
    """Return the configurations of such a file."""
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()[1:]]
    fields = Configuration.__struct_fields__
    return tuple(
        msgspec.convert({name: row[name] for name in fields if name in row}, Configuration)
        for row in rows
    )


def observation_of(
    configuration: Configuration,
    result: TrialResult,
    *,
    provenance: str,
    cluster: str,
    protocol: str,
) -> Observation:
    """Return a worker's result as an observation."""
    return Observation(
        configuration=configuration,
        outcome=RunOutcome(result.outcome),
        tokens_per_s=result.tokens_per_s,
        step_s=result.step_s,
        peak_memory_gb=result.peak_memory_gb or None,
        needed_memory_gb=_needed(result),
        runtime_s=result.runtime_s or None,
        steps=result.steps,
        step_rows=result.step_rows,
        measured_at=result.measured_at,
        origin=Origin.CAMPAIGN,
        provenance=provenance,
        cluster=cluster,
        protocol=protocol,
        error=result.error,
        flags=result.flags,
    )


def unmeasurable(configuration: Configuration) -> str | None:
    """Return why no worker can run a configuration, or None if one can."""
    if configuration.num_gpus != 1 or configuration.num_nodes != 1:
        return "only runs on one GPU can be measured"
    if not configuration.tokens_per_microbatch:
        return "our trainer packs rows, so tokens_per_microbatch is needed"
    if configuration.memory_cap_gb:
        return "memory caps cannot be measured"
    if configuration.method not in {Method.FULL, Method.LORA, Method.QLORA}:
        return f"method {configuration.method} cannot be measured"
    if configuration.method is not Method.FULL and configuration.precision in _MIXED:
        return "frozen weights are stored as they are computed with, so bf16 or fp32"
    if configuration.fast_moe:
        return "expert parallelism cannot be measured"
    if configuration.attention not in {Attention.VARLEN, Attention.SDPA}:
        return f"our trainer does not use {configuration.attention} attention"
    if configuration.fast_kernels and not version_of("liger-kernel"):
        return "liger-kernel is not installed"
    quantised = configuration.method is Method.QLORA or configuration.optimiser not in _TORCH
    if quantised and not version_of("bitsandbytes"):
        return "bitsandbytes is not installed"
    return None


_MIXED = (Precision.BF16_MIXED, Precision.FP16_MIXED)
_TORCH = (Optimiser.ADAMW, Optimiser.ADAFACTOR, Optimiser.SGD)
"""Optimisers that need no bitsandbytes."""


def protocol_text(timing: Timing) -> str:
    """Return the measuring protocol in words, which is stored with every observation."""
    return (
        "steps of duetune's trainer on packed random rows with random weights: forward, backward,"
        f" clipping and optimiser; {timing.warm_up_steps} step of warm-up, then the median of at"
        f" least {timing.min_steps}, or of 2 that differ by at most {timing.agreement:.0%}, and of"
        f" at least {timing.min_s:g} s, at most {timing.max_s:g} s after the first; peak memory is"
        " what torch reserved (with expandable segments) and the CUDA context"
    )


def _needed(result: TrialResult) -> float | None:
    """Return the memory in use at the peak plus the context, without what the allocator kept for
    later.
    """
    if result.peak_allocated_gb is None or result.context_gb is None:
        return None
    return result.peak_allocated_gb + result.context_gb


_NOT_OF_A_CONFIG = frozenset(("aliases", "parameters", "active_parameters"))


def model_config(model: str) -> dict[str, object]:
    """Return the ``config.json`` of a model: from its folder, a file, or the registry.

    Raises ``InvalidInput`` for models that are described nowhere. A worker builds the model from
    it.
    """
    path = Path(model)
    if path.is_dir():
        path /= "config.json"
    if path.is_file():
        return _of_file(path)
    found = registered(model)
    if found is None:
        raise InvalidInput("model", model, "a model of the registry, or a folder with config.json")
    values = msgspec.json.decode(found[1], type=dict[str, object])
    config = {name: value for name, value in values.items() if name not in _NOT_OF_A_CONFIG}
    if config.get("model_type") == "mistral":
        # The registry lists no window, so there is none; the default of transformers is one.
        config.setdefault("sliding_window", None)
    return config


def _of_file(path: Path) -> dict[str, object]:
    try:
        config = msgspec.json.decode(path.read_bytes(), type=dict[str, object])
    except OSError as error:
        raise InvalidInput("model", str(path), f"a readable file ({error.strerror})") from None
    except msgspec.MsgspecError as error:
        raise InvalidInput("model", str(path), f"the configuration of a model ({error})") from None
    if "model_type" not in config:
        raise InvalidInput("model", str(path), "a configuration with a model_type")
    return config
