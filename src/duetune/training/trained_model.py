"""Loads the model of a task, computes its loss, and saves it; base and adapters: ``adapters``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, cast

import torch
import transformers
from torch.nn import functional

from duetune.errors import InvalidInput
from duetune.training.adapters import load_base, order_layers, with_adapter
from duetune.training.language_model import refused, seeded

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray

    from duetune.training.language_model import LanguageModel
    from duetune.training.task import TrainingTask
    from duetune.training.tokens import TokenizedRows, Tokenizer

_IGNORED = -100


def load_tokenizer(task: TrainingTask) -> Tokenizer:
    """Load the tokenizer of the task's model; ``InvalidInput`` if there is none."""
    if Path(task.model).is_absolute() and not Path(task.model).is_dir():
        # Otherwise transformers would ask the hub first, which takes long.
        raise InvalidInput("model", task.model, "a folder or a name on the hub")
    try:
        return cast("Tokenizer", transformers.AutoTokenizer.from_pretrained(task.model))
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise refused(task, "a tokenizer", error) from None


def load_model(task: TrainingTask, device: torch.device) -> LanguageModel:
    """Return the model with its trainable parameters, the same on every member."""
    return prepared(task, load_base(task, device), device)


def prepared(task: TrainingTask, base: LanguageModel, device: torch.device) -> LanguageModel:
    """Return a base model made ready to train: adapter, types of weights, checkpointing."""
    # The random weights of an adapter must be the same on every member.
    with seeded(task.seed, device):
        model = with_adapter(task, base) if task.adapts else base
    for parameter in model.parameters():
        if parameter.requires_grad and not task.trained_in_bf16:
            parameter.data = parameter.data.float()
    model.train()
    if task.gradient_checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        if task.adapts:
            model.enable_input_require_grads()
    return model


def summed_loss(
    model: LanguageModel,
    data: TokenizedRows,
    rows: NDArray[np.int64],
    device: torch.device,
    dtype: torch.dtype | None,
) -> torch.Tensor:
    """Return the summed loss of the tokens that count. The caller divides by the batch's tokens."""
    ids, mask, labels = padded(data, rows)
    with torch.autocast(device.type, dtype=dtype, enabled=dtype is not None):
        logits = model(input_ids=ids.to(device), attention_mask=mask.to(device)).logits
    return functional.cross_entropy(
        logits[:, :-1].float().flatten(0, 1),
        labels[:, 1:].to(device).flatten(),
        ignore_index=_IGNORED,
        reduction="sum",
    )


def padded(
    data: TokenizedRows, rows: NDArray[np.int64]
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return tokens, attention mask and labels, padded to the longest of these rows."""
    pieces = [data.row(int(row)) for row in rows]
    longest = max(len(ids) for ids, _ in pieces)
    tokens = torch.zeros(len(pieces), longest, dtype=torch.int64)
    mask = torch.zeros(len(pieces), longest, dtype=torch.int64)
    labels = torch.full((len(pieces), longest), _IGNORED, dtype=torch.int64)
    for place, (ids, counts) in enumerate(pieces):
        row = torch.from_numpy(ids.astype("int64"))
        tokens[place, : len(ids)] = row
        mask[place, : len(ids)] = 1
        labels[place, : len(ids)] = torch.where(torch.from_numpy(counts), row, _IGNORED)
    return tokens, mask, labels


@torch.no_grad()
def mean_loss(
    model: LanguageModel,
    data: TokenizedRows,
    batches: Sequence[NDArray[np.int64]],
    device: torch.device,
    dtype: torch.dtype | None,
) -> float:
    """Return the mean loss per token that counts, over all batches."""
    model.eval()
    total = sum(float(summed_loss(model, data, rows, device, dtype)) for rows in batches)
    return total / max(1, sum(data.targets(rows) for rows in batches))


def save_model(model: LanguageModel, tokenizer: Tokenizer, folder: Path) -> None:
    """Save an adapter (for PEFT) or the whole model (for transformers), with the tokenizer."""
    for parameter in model.parameters():
        if parameter.requires_grad:
            # Copy it out of the flat vector: tensors that share memory look like tied weights.
            parameter.data = parameter.data.clone()
    order_layers(model)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
