"""What duetune's own trainer does, in the words of configuration knowledge.

This is the one place that says it: the defaults of every field, how weights and optimiser are kept,
and how the GPUs of a job share the work. ``fits``, ``recommend``, ``plan`` and ``launch`` all ask
``TrainerKnowledge`` about configurations that are made here, so that they give the same answer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from duetune.knowledge.configurations.configuration import (
    LORA_TARGETS,
    Attention,
    Configuration,
    Configurations,
    Interconnect,
    Method,
    Optimiser,
    Precision,
    Sharding,
)
from duetune.knowledge.measure.worker_messages import PACKAGES, installed_software
from duetune.knowledge.ranking import exceeding
from duetune.knowledge.sources.decorators import Decorator
from duetune.knowledge.sources.merge import MEMORY, RULE
from duetune.training.task import TrainingMethod, TrainingTask

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from duetune.knowledge.estimate import Estimates
    from duetune.knowledge.sources.knowledge_source import KnowledgeSource

USUAL = TrainingTask(model="", dataset="")
"""The defaults of everything that a job may say about training."""

NODE = 8
"""GPUs of one machine, where other trainers run."""

ATTENTION, ALL_LINEAR = LORA_TARGETS
_ATTENTION_LAYERS = frozenset(("q_proj", "k_proj", "v_proj", "o_proj", "qkv_proj", "c_attn"))
NO_RANK = 8
"""Where nothing is adapted: one value, so that equal configurations are equal."""

_FROZEN = {"bf16": Precision.BF16, "fp16": Precision.FP16, "fp32": Precision.FP32}
_TRAINED = {"bf16": Precision.BF16_MIXED, "fp16": Precision.FP16_MIXED, "fp32": Precision.FP32}
_OPTIONS: dict[str, tuple[str, ...]] = {
    "method": tuple(TrainingMethod),
    "sharding": (Sharding.NONE, Sharding.DDP),
    "optimiser": (Optimiser.ADAMW,),
    "attention": (Attention.SDPA,),
}
"""All that the trainer can do, of the words that configurations may have."""

_GRADIENTS_HELD = 2
"""Microbatches of a step, where gradients are there from its beginning."""

_SMALL_RANK = 64
"""Gradients of adapters up to this rank, the largest that was measured, are too small to matter:
what was measured without them counts.
"""


def trainer_software() -> str:
    """Return what the trainer runs with here; its packages without versions where it is not
    installed.
    """
    return installed_software() or ", ".join(PACKAGES)


def precision_kept(method: str, computed: str) -> Precision:
    """Return how weights are kept that are computed with in bf16, fp16 or fp32: what is trained in
    32 bits, the frozen weights beside adapters as they are computed with.
    """
    return (_TRAINED if method == Method.FULL else _FROZEN)[computed]


def adapted_layers(modules: str | Sequence[str] | None) -> str:
    """Return "attention" if only layers of attention are adapted, else "all-linear"."""
    chosen = modules or USUAL.lora_target_modules
    names = {chosen} if isinstance(chosen, str) else set(chosen)
    return ATTENTION if names <= {*_ATTENTION_LAYERS, ATTENTION} else ALL_LINEAR


def rounds(accumulation: int, gpus: int) -> int:
    """Microbatches one after the other in a step: the busiest GPU's share."""
    return -(-accumulation // gpus)


def placement(gpus: int, sharding: str | None = None) -> dict[str, str | int]:
    """Return the fields that say how GPUs share the work: as the trainer does it, one to a node and
    each with all of the model, or in another way and in nodes of eight.
    """
    own, several = sharding is None, gpus > 1
    return {
        "num_gpus": gpus,
        "num_nodes": gpus if own else gpus // NODE if gpus % NODE == 0 else 1,
        "sharding": (sharding or Sharding.DDP) if several else Sharding.NONE,
        "interconnect": Interconnect.TCP if own and several else Interconnect.AUTO,
    }


def on_gpus(one: Configuration, gpus: int) -> Configuration:
    """Return what a configuration of one GPU is on so many, with the same microbatch; those of a
    step are shared out in rounds.
    """
    size, count = one.batch_size * gpus, rounds(one.grad_accum, gpus)
    return one.replace(batch_size=size, grad_accum=count, **placement(gpus))


def foreign_fields(configuration: Configuration) -> tuple[str, ...]:
    """Return what duetune's trainer does not do of a configuration, as "field value"; empty if it
    can be launched.
    """
    precisions = (_TRAINED if configuration.method == Method.FULL else _FROZEN).values()
    options = {**_OPTIONS, "precision": tuple(precisions)}
    return tuple(
        f"{field} {getattr(configuration, field)}"
        for field, words in options.items()
        if getattr(configuration, field) not in words
    )


class TrainerKnowledge(Decorator):
    """Asks ``source`` whether configurations fit as the trainer runs them: each GPU holds all of
    the model, and the gradients of what is trained from the first microbatch on, so one GPU needs
    the same memory in a group of any size. ``ran_out`` are configurations that ran out of memory
    here; what needs as much does not fit. Rows that are not the trainer's, by what they do or by
    ``software``, are answered as they are.
    """

    def __init__(
        self, source: KnowledgeSource, software: str, ran_out: Sequence[Configuration] = ()
    ) -> None:
        super().__init__(source, "trainer")
        self._software = software
        self._ran_out = tuple(_alone(Configurations.of(ran_out))) if ran_out else ()

    @property
    def name(self) -> str:
        return self.source.name

    def query(self, configurations: Configurations) -> Estimates:
        found = self.source.query(configurations)
        own = np.flatnonzero(self._own(configurations) & (found.cause != RULE))
        if not len(own):
            return found
        alone = _alone(configurations.take(own))
        fit = self.source.query(alone)
        out = exceeding(alone, self._ran_out)
        result = found.take(np.arange(len(found)))
        result.p_valid[own] = np.where(out, 0.0, fit.p_valid)
        result.cause[own] = np.where(out, MEMORY, fit.cause)
        result.memory_gb[own] = fit.memory_gb
        result.measured[own] &= fit.measured
        return result

    def asked(self, configurations: Configurations) -> Configurations:
        return _alone(configurations) if self._own(configurations).all() else configurations

    def ran_out(self, configuration: Configuration) -> bool:
        """Whether a run that needed no more memory ran out of it."""
        return bool(exceeding(_alone(Configurations.of([configuration])), self._ran_out)[0])

    def _own(self, rows: Configurations) -> NDArray[np.bool_]:
        found: NDArray[np.bool_] = rows.is_("software", self._software)
        for field, words in _OPTIONS.items():
            found &= rows.is_(field, *words)
        full = rows.is_("method", Method.FULL)
        found &= np.where(
            full,
            rows.is_("precision", *_TRAINED.values()),
            rows.is_("precision", *_FROZEN.values()),
        )
        found &= rows.number("fast_kernels") + rows.number("fast_moe") == 0
        return found


def _alone(rows: Configurations) -> Configurations:
    """One GPU of each, as if it were the only one, with its gradients."""
    one, first = np.ones(len(rows)), np.zeros(len(rows), np.int64)
    full = rows.is_("method", Method.FULL)
    columns = {
        "num_gpus": one,
        "num_nodes": one,
        "batch_size": np.maximum(1.0, np.floor(rows.per_gpu_batch)),
        "grad_accum": np.where(
            full | (rows.number("lora_rank") > _SMALL_RANK), float(_GRADIENTS_HELD), 1.0
        ),
        "lora_rank": np.where(full, float(NO_RANK), rows.number("lora_rank")),
        "lora_targets": (rows.is_("lora_targets", ALL_LINEAR) & ~full).astype(np.int64),
        "sharding": first,
        "interconnect": first,
    }
    labels: dict[str, tuple[str, ...]] = {
        "lora_targets": (ATTENTION, ALL_LINEAR),
        "sharding": (Sharding.NONE,),
        "interconnect": (Interconnect.AUTO,),
    }
    return Configurations({**rows.columns, **columns}, {**rows.labels, **labels})
