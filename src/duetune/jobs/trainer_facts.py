"""What duetune's own trainer does, in terms of configuration knowledge.

It says how weights and optimiser state are stored and how GPUs share the work. ``fits``,
``recommend``, ``plan`` and ``launch`` all ask ``TrainerKnowledge``, so they give the same answer.
Which value an open field of a job gets (precision, batch, method) is decided in ``question``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from duetune.errors import InvalidInput
from duetune.knowledge.configurations.configuration import (
    Attention,
    Configuration,
    Configurations,
    Interconnect,
    Method,
    Optimiser,
    Precision,
    Sharding,
)
from duetune.knowledge.configurations.lora_targets import (
    LORA_TARGETS,
    is_lora_targets,
    lora_targets_of,
)
from duetune.knowledge.estimate import MEMORY, RULE
from duetune.knowledge.measure.worker_messages import PACKAGES, TRAINER, installed_software
from duetune.knowledge.ranking import exceeding
from duetune.knowledge.sources.decorators import Decorator
from duetune.training.task import OptimiserName, TrainingMethod, TrainingTask

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from duetune.knowledge.estimate import Estimates
    from duetune.knowledge.sources.knowledge_source import KnowledgeSource

USUAL = TrainingTask(model="", dataset="")
"""The trainer's default of every field."""

NODE = 8
"""GPUs per machine with other trainers."""

ATTENTION, ALL_LINEAR = LORA_TARGETS
NO_RANK = 8
"""LoRA rank in configurations without LoRA: one value, so that equal ones compare equal."""

_FROZEN = {"bf16": Precision.BF16, "fp16": Precision.FP16, "fp32": Precision.FP32}
_TRAINED = {"bf16": Precision.BF16_MIXED, "fp16": Precision.FP16_MIXED, "fp32": Precision.FP32}
_WHOLE = (*_TRAINED.values(), Precision.BF16)
"""How weights can be stored that are all trained; frozen ones can be stored in any way."""

_STATES = {
    OptimiserName.ADAMW_TORCH: Optimiser.ADAMW,
    OptimiserName.ADAMW_TORCH_FUSED: Optimiser.ADAMW,
    OptimiserName.ADAMW_8BIT: Optimiser.ADAMW_8BIT,
    OptimiserName.ADAMW_BNB_8BIT: Optimiser.ADAMW_8BIT,
    OptimiserName.PAGED_ADAMW_8BIT: Optimiser.PAGED_ADAMW_8BIT,
    OptimiserName.PAGED_ADAMW_32BIT: Optimiser.PAGED_ADAMW,
    OptimiserName.ADAFACTOR: Optimiser.ADAFACTOR,
    OptimiserName.SGD: Optimiser.SGD,
    OptimiserName.LION_32BIT: Optimiser.LION,
    OptimiserName.LION_8BIT: Optimiser.LION_8BIT,
    OptimiserName.PAGED_LION_32BIT: Optimiser.LION,
    OptimiserName.PAGED_LION_8BIT: Optimiser.LION_8BIT,
}
"""The optimiser of configuration knowledge that needs as much memory, or a little more."""

_OPTIONS: dict[str, tuple[str, ...]] = {
    "method": tuple(TrainingMethod),
    "sharding": (Sharding.NONE, Sharding.DDP),
    "optimiser": tuple(Optimiser),
    "attention": (Attention.SDPA, Attention.VARLEN),
}
"""The values of configuration fields that the trainer supports."""


def trainer_software() -> str:
    """Return the packages and versions the trainer runs with here; without versions if they are not
    installed.
    """
    found = installed_software()
    return found if "," in found else ", ".join((TRAINER, *PACKAGES))


def precision_kept(method: str, computed: str) -> Precision:
    """Return the storage precision of weights whose computations run in ``computed``.

    Trained weights are stored in 32 bits. Frozen weights beside adapters are stored in the
    precision they compute in.
    """
    return (_TRAINED if method == Method.FULL else _FROZEN)[computed]


def known_optimiser(optim: str | None) -> Optimiser:
    """Return the optimiser of configuration knowledge for a name of ``optim``; None: the usual."""
    return _STATES[USUAL.optim if optim is None else OptimiserName(optim)]


def adapted_layers(modules: str | Sequence[str] | None) -> str:
    """Return the layers that LoRA adapts, as configurations name them. A regular expression counts
    as all linear layers.
    """
    found = lora_targets_of(modules or USUAL.lora_target_modules)
    return found if is_lora_targets(found) else ALL_LINEAR


def rounds(accumulation: int, gpus: int) -> int:
    """Return the microbatches that the busiest GPU computes one after the other in a step."""
    return -(-accumulation // gpus)


def placement(gpus: int, sharding: str | None = None) -> dict[str, str | int]:
    """Return the configuration fields that say how GPUs share the work.

    Without ``sharding`` it is duetune's way: one GPU per node, each with the whole model. Other
    trainers use nodes of up to eight GPUs.
    """
    own, several = sharding is None, gpus > 1
    return {
        "num_gpus": gpus,
        "num_nodes": gpus if own else nodes_of(gpus),
        "sharding": (sharding or Sharding.DDP) if several else Sharding.NONE,
        "interconnect": Interconnect.TCP if own and several else Interconnect.AUTO,
    }


def nodes_of(gpus: int) -> int:
    """Return on how many machines other trainers hold ``gpus`` GPUs: the fewest of up to eight GPUs
    that have equally many. A number that leaves most of a machine empty is refused.
    """
    fewest = -(-gpus // NODE)
    nodes = next(nodes for nodes in range(fewest, gpus + 1) if gpus % nodes == 0)
    if nodes > 2 * fewest:
        raise InvalidInput(
            "gpus", gpus, f"equally many GPUs on machines of {NODE}, such as 8 or 12"
        )
    return nodes


def on_gpus(one: Configuration, gpus: int) -> Configuration:
    """Return a configuration of one GPU as it is on ``gpus`` GPUs, with the same microbatch. The
    microbatches of a step are shared out in rounds.
    """
    size, count = one.batch_size * gpus, rounds(one.grad_accum, gpus)
    return one.replace(batch_size=size, grad_accum=count, **placement(gpus))


def sharded(one: Configuration, gpus: int) -> Configuration:
    """Return a configuration of one GPU as a member of ``gpus`` GPUs runs it, with the same
    microbatch on every GPU and one copy of the model over all of them.
    """
    if gpus == 1:
        return one
    return one.replace(
        batch_size=one.batch_size * gpus,
        grad_accum=rounds(one.grad_accum, gpus),
        num_gpus=gpus,
        num_nodes=1,
        sharding=Sharding.FSDP,
    )


def foreign_fields(configuration: Configuration) -> tuple[str, ...]:
    """Return the settings that duetune's trainer does not support, as "field value"; empty if the
    configuration can be launched.
    """
    precisions = _WHOLE if configuration.method == Method.FULL else tuple(Precision)
    options = {**_OPTIONS, "precision": precisions}
    return tuple(
        f"{field} {getattr(configuration, field)}"
        for field, words in options.items()
        if getattr(configuration, field) not in words
    )


class TrainerKnowledge(Decorator):
    """Configuration knowledge for duetune's own trainer; it decorates ``source``.

    The trainer packs rows, so ``source`` is asked about packed rows. Each GPU holds the whole model
    and the gradients of what is trained, so it needs the same memory in a group of any size.
    ``ran_out`` are configurations that ran out of memory here; a configuration that needs as much
    does not fit. Rows of other trainers are answered by ``source`` unchanged.
    """

    def __init__(
        self, source: KnowledgeSource, software: str, ran_out: Sequence[Configuration] = ()
    ) -> None:
        super().__init__(source, "trainer")
        self._software = software
        rows = packed_rows(Configurations.of(ran_out)) if ran_out else None
        self._ran_out = () if rows is None else tuple(_alone(rows))

    @property
    def name(self) -> str:
        """The name of the source behind it."""
        return self.source.name

    def query(self, configurations: Configurations) -> Estimates:
        """Return the estimates, with memory as the trainer needs it on one GPU."""
        found = self.source.query(configurations)
        own = np.flatnonzero(self._own(configurations) & (found.cause != RULE))
        if not len(own):
            return found
        packed = packed_rows(configurations.take(own))
        pace = self.source.query(packed)
        alone = _alone(packed)
        fit = self.source.query(alone)
        out = exceeding(alone, self._ran_out)
        result = found.take(np.arange(len(found)))
        result.p_valid[own] = np.where(out, 0.0, fit.p_valid)
        result.cause[own] = np.where(out, MEMORY, fit.cause)
        result.memory_gb[own] = fit.memory_gb
        result.measured[own] = pace.measured & fit.measured
        result.tokens_per_s[own] = pace.tokens_per_s
        result.support[own] = pace.support
        result.extrapolated[own] = pace.extrapolated
        return result

    def asked(self, configurations: Configurations) -> Configurations:
        """Return the configurations whose memory is looked up: those of one GPU."""
        own = self._own(configurations).all()
        return _alone(packed_rows(configurations)) if own else configurations

    def ran_out(self, configuration: Configuration) -> bool:
        """Return whether a run that needed no more memory ran out of it."""
        rows = packed_rows(Configurations.of([configuration]))
        return bool(exceeding(_alone(rows), self._ran_out)[0])

    def _own(self, rows: Configurations) -> NDArray[np.bool_]:
        found: NDArray[np.bool_] = rows.is_("software", self._software)
        for field, words in _OPTIONS.items():
            found &= rows.is_(field, *words)
        found &= ~rows.is_("method", Method.FULL) | rows.is_("precision", *_WHOLE)
        found &= rows.number("fast_moe") == 0
        return found


def packed_rows(rows: Configurations) -> Configurations:
    """Return configurations of our trainer as it runs them: rows of a microbatch lie end to end,
    with fused kernels. Those that say how rows are packed stay as they are.
    """
    padded = ~rows.packed
    columns = {
        "batch_size": np.where(padded, rows.number("num_gpus"), rows.number("batch_size")),
        "tokens_per_microbatch": np.maximum(1.0, np.floor(rows.per_gpu_tokens)),
        "fast_kernels": np.where(padded, 1.0, rows.number("fast_kernels")),
        "attention": np.zeros(len(rows), np.int64),
    }
    labels = {**rows.labels, "attention": (Attention.VARLEN.value,)}
    return Configurations({**rows.columns, **columns}, labels)


def _alone(rows: Configurations) -> Configurations:
    """Return each packed configuration as one GPU alone runs it."""
    one, first = np.ones(len(rows)), np.zeros(len(rows), np.int64)
    full = rows.is_("method", Method.FULL)
    columns = {
        "num_gpus": one,
        "num_nodes": one,
        "batch_size": np.maximum(1.0, np.floor(rows.per_gpu_batch)),
        "grad_accum": one,
        "lora_rank": np.where(full, float(NO_RANK), rows.number("lora_rank")),
        "lora_targets": np.where(full, 0, rows.columns["lora_targets"] + 1).astype(np.int64),
        "sharding": first,
        "interconnect": first,
    }
    labels: dict[str, tuple[str, ...]] = {
        "lora_targets": (ATTENTION, *rows.labels["lora_targets"]),
        "sharding": (Sharding.NONE,),
        "interconnect": (Interconnect.AUTO,),
    }
    return Configurations({**rows.columns, **columns}, {**rows.labels, **labels})
