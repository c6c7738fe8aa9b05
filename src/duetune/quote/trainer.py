"""What duetune's own trainer does, in the words of configuration knowledge."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from duetune.knowledge.configuration import (
    LORA_TARGETS,
    Configuration,
    Interconnect,
    Precision,
    Sharding,
)
from duetune.knowledge.configuration import Method as Known
from duetune.knowledge.registry import model_name
from duetune.training.task import Method

if TYPE_CHECKING:
    from duetune.quote.site import Site

ATTENTION, ALL_LINEAR = LORA_TARGETS
_NO_RANK = 8
"""Where nothing is adapted: one value, so that equal configurations are equal."""


class Recipe(msgspec.Struct, frozen=True):
    """How one job is trained. A step takes ``accumulation`` microbatches over all GPUs together.
    ``usual_length`` is that of its examples, which may be up to ``max_length`` long; 0: not known.
    """

    method: Method
    precision: str
    microbatch: int
    max_length: int
    gradient_checkpointing: bool
    lora_r: int
    accumulation: int = 1
    lora_targets: str = ALL_LINEAR
    usual_length: int = 0


def rounds(accumulation: int, gpus: int) -> int:
    """Microbatches one after the other in a step: the busiest GPU's share."""
    return -(-accumulation // gpus)


def configuration_of(
    recipe: Recipe, model: str, site: Site, *, gpus: int = 1, length: int | None = None
) -> Configuration:
    """One GPU to a node, each with all of the model; microbatches are shared out in rounds.

    ``length`` is that of the examples, if they are not as long as they may be.
    """
    adapters = recipe.method is Method.LORA
    return Configuration(
        model=model_name(model),
        method=Known(recipe.method.value),
        gpu_model=site.gpu_model,
        num_gpus=gpus,
        num_nodes=gpus,
        batch_size=recipe.microbatch * gpus,
        tokens_per_sample=recipe.max_length if length is None else length,
        grad_accum=rounds(recipe.accumulation, gpus),
        precision=_precision(recipe),
        sharding=Sharding.DDP if gpus > 1 else Sharding.NONE,
        grad_checkpoint=recipe.gradient_checkpointing,
        lora_rank=recipe.lora_r if adapters else _NO_RANK,
        lora_targets=recipe.lora_targets if adapters else ATTENTION,
        interconnect=Interconnect.TCP if gpus > 1 else Interconnect.AUTO,
        memory_cap_gb=site.memory_cap_gb,
        software=site.software,
    )


def on_one_gpu(configuration: Configuration) -> Configuration:
    """What one GPU of the group needs: no less than if it were alone."""
    return configuration.replace(
        num_gpus=1,
        num_nodes=1,
        batch_size=max(1, configuration.batch_size // configuration.num_gpus),
        sharding=Sharding.NONE,
        interconnect=Interconnect.AUTO,
    )


def _precision(recipe: Recipe) -> Precision:
    """What is trained is kept in 32 bits, the frozen weights beside adapters in 16."""
    frozen = recipe.method is not Method.FULL
    match recipe.precision:
        case "bf16":
            return Precision.BF16 if frozen else Precision.BF16_MIXED
        case "fp16":
            return Precision.FP16 if frozen else Precision.FP16_MIXED
        case _:
            return Precision.FP32
