"""Loads the model of a task, computes its loss, and saves it; base and adapters: ``adapters``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, cast

import transformers

from duetune.errors import InvalidInput
from duetune.training.adapters import load_base, order_layers, with_adapter
from duetune.training.chat_templates import template_text
from duetune.training.forward_pass import counted_loss
from duetune.training.language_model import recompute_activations, refused, seeded
from duetune.training.packed_rows import laid_end_to_end

if TYPE_CHECKING:
    import numpy as np
    import torch
    from numpy.typing import NDArray

    from duetune.training.language_model import LanguageModel
    from duetune.training.task import TrainingTask
    from duetune.training.tokens import TokenizedRows, Tokenizer


def load_tokenizer(task: TrainingTask) -> Tokenizer:
    """Load the tokenizer of the task's model; ``InvalidInput`` if there is none."""
    if Path(task.model).is_absolute() and not Path(task.model).is_dir():
        # Otherwise transformers would ask the hub first, which takes long.
        raise InvalidInput("model", task.model, "a folder or a name on the hub")
    revision = task.model_revision or "main"
    try:
        found = transformers.AutoTokenizer.from_pretrained(
            task.model, revision=revision, trust_remote_code=False
        )
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise refused(task, "a tokenizer", error) from None
    for field in ("eos_token", "pad_token"):
        token: str | None = getattr(task, field)
        if token is None:
            continue
        if token not in found.get_vocab():
            raise InvalidInput(field, token, "a token of the model's vocabulary")
        setattr(found, field, token)
    if task.chat_template is not None:
        found.chat_template = template_text(task.chat_template)
    return cast("Tokenizer", found)


def load_model(task: TrainingTask, device: torch.device, *, choose: bool = True) -> LanguageModel:
    """Return the model with its trainable parameters, the same on every member.

    Without ``choose`` the caller chooses the way in which the model is computed.
    """
    return prepared(task, load_base(task, device, choose=choose), device)


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
        recompute_activations(model, wanted=True)
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
    return counted_loss(model, laid_end_to_end(data, rows), device, dtype)


def save_model(model: LanguageModel, tokenizer: Tokenizer, folder: Path) -> None:
    """Save an adapter (for PEFT) or the whole model (for transformers), with the tokenizer."""
    order_layers(model)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
