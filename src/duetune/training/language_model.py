"""What all parts of the trainer know of a model: its interface, number formats and random draws."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import torch

from duetune.errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from duetune.training.task import TrainingTask

    class LanguageModel(torch.nn.Module):
        """The part of a transformers or PEFT model that is used here."""

        config: object

        def enable_input_require_grads(self) -> None: ...

        def disable_adapter(self) -> contextlib.AbstractContextManager[None]: ...

        def get_output_embeddings(self) -> torch.nn.Module | None: ...

        def save_pretrained(self, folder: Path) -> None: ...


_TYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}


def precision(task: TrainingTask) -> torch.dtype | None:
    """Return the data type for computation; None for that of the weights."""
    return None if task.computed_in == "fp32" else _TYPES[task.computed_in]


def stored_type(task: TrainingTask) -> torch.dtype:
    """Return the data type in which the weights of the base model are stored."""
    return _TYPES.get(task.weights, torch.float32)


def recompute_activations(model: torch.nn.Module, *, wanted: bool) -> None:
    """Turn the recomputation of activations on or off.

    Newer versions of transformers name it by what it stores, older ones by gradients.
    """
    kind = "activation" if hasattr(model, "activation_checkpointing_enable") else "gradient"
    switch = getattr(model, f"{kind}_checkpointing_{'enable' if wanted else 'disable'}")
    switch(**({f"{kind}_checkpointing_kwargs": {"use_reentrant": False}} if wanted else {}))


@contextlib.contextmanager
def seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Seed random draws inside the block, without changing the draws outside."""
    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(seed)
        yield


def refused(task: TrainingTask, what: str, error: Exception) -> InvalidInput:
    """Return the error for a model that transformers cannot read, in one line."""
    allowed = f"a folder or a name on the hub with {what} ({short_reason(error)})"
    return InvalidInput("model", task.model, allowed)


def short_reason(error: Exception) -> str:
    """Return the beginning of an error's message, in one line."""
    return " ".join(str(error).split())[:160]
