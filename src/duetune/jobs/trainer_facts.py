"""What duetune's own trainer does, in terms of configuration knowledge.

It says how weights and optimiser state are stored and how GPUs share the work. Estimates for it are
in ``trainer_knowledge``. Which value an open field of a job gets is decided in ``question``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
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
from duetune.knowledge.measure.worker_messages import PACKAGES, TRAINER, installed_software
from duetune.training.task import OptimiserName, TrainingMethod, TrainingTask

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

USUAL = TrainingTask(model="", dataset="")
"""The trainer's default of every field."""

NODE = 8
"""GPUs per machine with other trainers."""

ATTENTION, ALL_LINEAR = LORA_TARGETS
NO_RANK = 8
"""LoRA rank in configurations without LoRA: one value, so that equal ones compare equal."""

_FROZEN = {"bf16": Precision.BF16, "fp16": Precision.FP16, "fp32": Precision.FP32}
_TRAINED = {"bf16": Precision.BF16_MIXED, "fp16": Precision.FP16_MIXED, "fp32": Precision.FP32}
WHOLE = (*_TRAINED.values(), Precision.BF16)
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

OPTIONS: dict[str, tuple[str, ...]] = {
    "method": tuple(TrainingMethod),
    "optimiser": tuple(Optimiser),
    "attention": (Attention.SDPA, Attention.VARLEN),
}
"""The values of configuration fields that the trainer supports."""

_REPLICATED = (Sharding.NONE, Sharding.DDP)
_SHARDABLE = [
    state
    for name, state in _STATES.items()
    if not msgspec.structs.replace(USUAL, method=TrainingMethod.FULL, optim=name).unshardable
]
"""Optimisers whose state the GPUs of a member can share."""


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


def named_optimiser(state: str) -> str:
    """Return the trainer's name of an optimiser of configuration knowledge."""
    return next(name.value for name, known in _STATES.items() if known == state)


def unshardable(method: str, optim: str | None) -> str:
    """Return why the GPUs of a member cannot share a training; "" if they can."""
    if method not in set(TrainingMethod):
        return ""
    name = USUAL.optim if optim is None else OptimiserName(optim)
    return msgspec.structs.replace(USUAL, method=TrainingMethod(method), optim=name).unshardable


def adapted_layers(modules: str | Sequence[str] | None) -> str:
    """Return the layers that LoRA adapts, as configurations name them. A regular expression counts
    as all linear layers.
    """
    found = lora_targets_of(modules or USUAL.lora_target_modules)
    return found if is_lora_targets(found) else ALL_LINEAR


def placement(
    gpus: int, sharding: str | None = None, gpus_per_member: int = 1
) -> dict[str, str | int]:
    """Return the configuration fields that say how GPUs share the work.

    Without ``sharding`` it is duetune's way: a node per member, each with the whole model on its
    ``gpus_per_member`` GPUs. Other trainers use nodes of up to eight GPUs.
    """
    own, members = sharding is None, gpus // gpus_per_member
    kind = Sharding.DDP if gpus_per_member == 1 else Sharding.HYBRID
    if own and members == 1:
        kind = Sharding.FSDP
    return {
        "num_gpus": gpus,
        "num_nodes": members if own else nodes_of(gpus),
        "sharding": (sharding or kind) if gpus > 1 else Sharding.NONE,
        "interconnect": Interconnect.TCP if own and members > 1 else Interconnect.AUTO,
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


def on_gpus(one: Configuration, gpus: int, gpus_per_member: int = 1) -> Configuration:
    """Return a configuration of one GPU as it is on ``gpus`` GPUs, with the same microbatch on each
    of them.
    """
    return one.replace(
        batch_size=one.batch_size * gpus,
        grad_accum=-(-one.grad_accum // gpus),
        **placement(gpus, None, gpus_per_member),
    )


def foreign_fields(configuration: Configuration) -> tuple[str, ...]:
    """Return the settings that duetune's trainer does not support, as "field value"; empty if the
    configuration can be launched.
    """
    precisions = WHOLE if configuration.method == Method.FULL else tuple(Precision)
    options = {**OPTIONS, "precision": precisions}
    found = [
        f"{field} {getattr(configuration, field)}"
        for field, words in options.items()
        if getattr(configuration, field) not in words
    ]
    if not in_members(Configurations.of([configuration]))[0]:
        found.append(f"sharding {configuration.sharding}")
    return tuple(found)


def in_members(rows: Configurations) -> NDArray[np.bool_]:
    """Return where GPUs share the work as the trainer's members do: each member has the whole
    model, on one GPU or sharded over those of one node.
    """
    shardable = rows.is_("method", Method.FULL, Method.LORA) & rows.is_("optimiser", *_SHARDABLE)
    one_node = rows.is_("sharding", Sharding.FSDP) & (rows.number("num_nodes") == 1)
    sharded = shardable & (one_node | rows.is_("sharding", Sharding.HYBRID))
    found: NDArray[np.bool_] = rows.is_("sharding", *_REPLICATED) | sharded
    return found


def gpus_per_member(rows: Configurations) -> NDArray[np.float64]:
    """Return on how many GPUs each configuration holds one copy of the model."""
    node = rows.number("num_gpus") / rows.number("num_nodes")
    return np.where(rows.is_("sharding", *_REPLICATED), 1.0, node)
