"""Loads the model of a task, adds an adapter, computes its loss, and saves it."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, cast

import peft
import torch
import transformers

from duetune.errors import InvalidInput
from duetune.training.forward_pass import choose_forward_pass, counted_loss
from duetune.training.packing import laid_end_to_end
from duetune.training.task import TrainingMethod

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from duetune.training.task import TrainingTask
    from duetune.training.tokens import TokenizedRows, Tokenizer

    class LanguageModel(torch.nn.Module):
        """The part of a transformers or PEFT model that is used here."""

        config: object

        def gradient_checkpointing_enable(
            self, gradient_checkpointing_kwargs: dict[str, bool]
        ) -> None: ...

        def enable_input_require_grads(self) -> None: ...

        def disable_adapter(self) -> contextlib.AbstractContextManager[None]: ...

        def save_pretrained(self, folder: Path) -> None: ...


_WEIGHTS = ("*.safetensors", "pytorch_model*.bin")


def load_tokenizer(task: TrainingTask) -> Tokenizer:
    """Load the tokenizer of the task's model; ``InvalidInput`` if there is none."""
    if Path(task.model).is_absolute() and not Path(task.model).is_dir():
        # Otherwise transformers would ask the hub first, which takes long.
        raise InvalidInput("model", task.model, "a folder or a name on the hub")
    try:
        return cast("Tokenizer", transformers.AutoTokenizer.from_pretrained(task.model))
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise _refused(task, "a tokenizer", error) from None


def load_model(task: TrainingTask, device: torch.device, *, choose: bool = True) -> LanguageModel:
    """Return the model with its trainable parameters, the same on every member.

    Without ``choose`` the caller chooses the way in which the model is computed.
    """
    base = load_base(task, device)
    # The random weights of an adapter must be the same on every member.
    with seeded(task.seed, device):
        model = base if task.method is TrainingMethod.FULL else _with_adapter(task, base)
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.data = parameter.data.float()
    model.train()
    if task.gradient_checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        if task.method is TrainingMethod.LORA:
            model.enable_input_require_grads()
    if choose:
        choose_forward_pass(model, task, device, precision(task))
    return model


def load_base(task: TrainingTask, device: torch.device) -> LanguageModel:
    """Load the base model; a folder without weights gets random ones from the task's seed."""
    frozen = task.method is TrainingMethod.LORA
    dtype = precision(task) if frozen and precision(task) is not None else torch.float32
    folder = Path(task.model)
    try:
        if folder.is_dir() and not any(any(folder.glob(pattern)) for pattern in _WEIGHTS):
            config = transformers.AutoConfig.from_pretrained(folder)
            with seeded(task.seed, torch.device("cpu")):
                model = transformers.AutoModelForCausalLM.from_config(  # type: ignore[no-untyped-call]
                    config, dtype=dtype
                )
        else:
            model = transformers.AutoModelForCausalLM.from_pretrained(task.model, dtype=dtype)
    except (OSError, ValueError, TypeError, KeyError, RuntimeError) as error:
        raise _refused(task, "a causal language model", error) from None
    model.config.use_cache = False
    return cast("LanguageModel", model.to(device))


def precision(task: TrainingTask) -> torch.dtype | None:
    """Return the data type for computation; None for that of the weights."""
    if task.bf16:
        return torch.bfloat16
    return torch.float16 if task.fp16 else None


@contextlib.contextmanager
def seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Seed random draws inside the block, without changing the draws outside."""
    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(seed)
        yield


def summed_loss(
    model: LanguageModel,
    data: TokenizedRows,
    rows: NDArray[np.int64],
    device: torch.device,
    dtype: torch.dtype | None,
) -> torch.Tensor:
    """Return the summed loss of the tokens that count. The caller divides by the batch's tokens."""
    return counted_loss(model, laid_end_to_end(data, rows), device, dtype)


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
    for config in getattr(model, "peft_config", {}).values():
        if isinstance(config.target_modules, set):
            # A set is written in an order that changes from process to process.
            config.target_modules = sorted(config.target_modules)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def check_adapter(task: TrainingTask) -> None:
    """Refuse LoRA layers that the model does not have. No weights are loaded or made; plans call
    this where the names of the weights leave it open.
    """
    try:
        config = transformers.AutoConfig.from_pretrained(task.model)
        with torch.device("meta"):
            model = transformers.AutoModelForCausalLM.from_config(config)  # type: ignore[no-untyped-call]
    except (OSError, ValueError, TypeError, KeyError, RuntimeError) as error:
        raise _refused(task, "a causal language model", error) from None
    _with_adapter(task, cast("LanguageModel", model))


def _with_adapter(task: TrainingTask, base: LanguageModel) -> LanguageModel:
    chosen = task.lora_target_modules
    config = peft.LoraConfig(
        task_type=peft.TaskType.CAUSAL_LM,
        r=task.lora_r,
        lora_alpha=task.lora_alpha,  # type: ignore[arg-type]
        lora_dropout=task.lora_dropout,
        target_modules=chosen if isinstance(chosen, str) else list(chosen),
    )
    try:
        return cast("LanguageModel", peft.get_peft_model(base, config))
    except ValueError as error:
        unknown = "not found in the base model" in str(error)
        allowed = "names of layers of this model" + ("" if unknown else f" ({_short(error)})")
        raise InvalidInput("lora_target_modules", chosen, allowed) from None


def _refused(task: TrainingTask, what: str, error: Exception) -> InvalidInput:
    allowed = f"a folder or a name on the hub with {what} ({_short(error)})"
    return InvalidInput("model", task.model, allowed)


def _short(error: Exception) -> str:
    return " ".join(str(error).split())[:160]
