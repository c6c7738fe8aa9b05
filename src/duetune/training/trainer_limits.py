"""What a Trainer in a job with several members cannot do, with the reason."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch.utils.data import IterableDataset

from duetune.errors import InvalidInput
from duetune.training import ranks

if TYPE_CHECKING:
    from transformers import Trainer

_NOT_WITH_MEMBERS = (
    ("deepspeed", "no DeepSpeed: each member is one process with the whole model"),
    ("fsdp", "no FSDP: each member is one process with the whole model"),
    ("parallelism_config", "none: each member is one process with the whole model"),
    ("auto_find_batch_size", "False: all members must have the same microbatches"),
    ("push_to_hub", "False: push the published folder when the job is done"),
    ("sync_ref_model", "False: a new member would not know the reference model"),
    ("use_vllm", "False: each member generates with its own weights, without vLLM"),
)
"""Arguments that must be off, and what is allowed instead."""


def check(trainer: Trainer) -> None:
    """Raise ``InvalidInput`` if the members of a group cannot train together with this Trainer."""
    args = trainer.args
    if ranks.several() or args.world_size > 1:
        allowed = "1: a member is one process; for torchrun use one node (accelerators: auto:1)"
        raise InvalidInput("world_size", args.world_size, allowed)
    if args.n_gpu > 1:
        allowed = "1: a member has one GPU; set CUDA_VISIBLE_DEVICES"
        raise InvalidInput("n_gpu", args.n_gpu, allowed)
    for field, allowed in _NOT_WITH_MEMBERS:
        if value := getattr(args, field, None):
            raise InvalidInput(field, str(value), allowed)
    if getattr(trainer, "model_init", None) is not None:
        raise InvalidInput("model_init", "given", "none: give the model itself")
    data: object = trainer.train_dataset
    if data is None or isinstance(data, IterableDataset) or not hasattr(data, "__len__"):
        allowed = "a dataset with a length; members must find the examples of any step"
        raise InvalidInput("train_dataset", type(data).__name__, allowed)
    if args.train_sampling_strategy == "batch_rebalance":
        allowed = "random, sequential or group_by_length"
        raise InvalidInput("train_sampling_strategy", args.train_sampling_strategy, allowed)
    optimiser = str(getattr(args.optim, "value", args.optim))
    if "lomo" in optimiser or "layerwise" in optimiser:
        allowed = "an optimiser that makes its step after all gradients are there"
        raise InvalidInput("optim", optimiser, allowed)
