"""Names that other tools use for GPUs, precisions, optimisers and sharding, translated to ours."""

from __future__ import annotations

from duetune.errors import InvalidInput
from duetune.knowledge.configurations.configuration import (
    Configuration,
    Method,
    Optimiser,
    Precision,
    Sharding,
)
from duetune.knowledge.facts.gpus import gpu_name

_PRECISIONS = {
    "bfloat16": Precision.BF16,
    "bf16": Precision.BF16,
    "float16": Precision.FP16,
    "fp16": Precision.FP16,
    "half": Precision.FP16,
    "float32": Precision.FP32,
    "fp32": Precision.FP32,
    "float": Precision.FP32,
}
MIXED = {Precision.BF16: Precision.BF16_MIXED, Precision.FP16: Precision.FP16_MIXED}
_STRATEGIES = {
    "full_shard": Sharding.FSDP,
    "1": Sharding.FSDP,
    "shard_grad_op": Sharding.FSDP_GRAD_OP,
    "2": Sharding.FSDP_GRAD_OP,
    "no_shard": Sharding.DDP,
    "3": Sharding.DDP,
    "hybrid_shard": Sharding.HYBRID,
    "4": Sharding.HYBRID,
    "hybrid_shard_zero2": Sharding.HYBRID,
    "5": Sharding.HYBRID,
}


def known_gpu(column: str, text: str) -> str:
    """Return our name of a GPU; refuses an unknown one. ``column`` names it in errors."""
    name = gpu_name(text)
    if name is None:
        raise InvalidInput(column, text, "a GPU that duetune knows")
    return name


def method_named(column: str, text: str) -> Method:
    """Return the training method of this name."""
    try:
        return Method(text.casefold())
    except ValueError:
        raise InvalidInput(column, text, f"one of {', '.join(Method)}") from None


def precision_named(column: str, text: str) -> Precision:
    """Return the precision of a name such as ``torch.bfloat16``."""
    found = _PRECISIONS.get(text.casefold().removeprefix("torch."))
    if found is None:
        raise InvalidInput(column, text, f"one of {', '.join(_PRECISIONS)}")
    return found


def rank_of(method: Method, rank: int) -> int:
    """Return the LoRA rank; the default rank without adapters, so that equal runs have equal
    keys.
    """
    return Configuration(model="", gpu_model="").lora_rank if method is Method.FULL else rank


def optimiser_named(text: str) -> Optimiser:
    """Return the optimiser of a transformers name. Other kinds count as AdamW, because they keep
    about as much state.
    """
    name = text.casefold()
    if "adafactor" in name:
        return Optimiser.ADAFACTOR
    if name.startswith("sgd"):
        return Optimiser.SGD
    if name.startswith("paged"):
        return Optimiser.PAGED_ADAMW
    return Optimiser.ADAMW_8BIT if "8bit" in name else Optimiser.ADAMW


def sharding_named(text: str, gpus: int, nodes: int) -> Sharding:
    """Return the sharding of an FSDP strategy; hybrid in one node is the same as full."""
    if gpus == 1:
        return Sharding.NONE
    found = _STRATEGIES.get(text.casefold().removeprefix("shardingstrategy."), Sharding.FSDP)
    return Sharding.FSDP if found is Sharding.HYBRID and nodes == 1 else found
