"""The model of a task: loaded, adapted, and written out again."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, cast

import peft
import torch
import transformers
from torch.nn import functional

from duetune.errors import InvalidInput
from duetune.training.task import TrainingMethod

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from duetune.training.task import TrainingTask
    from duetune.training.tokens import TokenizedRows, Tokenizer

    class LanguageModel(torch.nn.Module):
        """What is used of a model of transformers or PEFT."""

        config: object

        def gradient_checkpointing_enable(
            self, gradient_checkpointing_kwargs: dict[str, bool]
        ) -> None: ...

        def enable_input_require_grads(self) -> None: ...

        def disable_adapter(self) -> contextlib.AbstractContextManager[None]: ...

        def save_pretrained(self, folder: Path) -> None: ...


_WEIGHTS = ("*.safetensors", "pytorch_model*.bin")
_IGNORED = -100


def load_tokenizer(task: TrainingTask) -> Tokenizer:
    if Path(task.model).is_absolute() and not Path(task.model).is_dir():
        # The hub would be asked for it first, for a long time.
        raise InvalidInput("model", task.model, "a folder or a name on the hub")
    try:
        return cast("Tokenizer", transformers.AutoTokenizer.from_pretrained(task.model))
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise _refused(task, "a tokenizer", error) from None


def load_model(task: TrainingTask, device: torch.device) -> LanguageModel:
    """The base model with what is to be trained made trainable, the same on every member."""
    base = load_base(task, device)
    # Weights of an adapter are drawn here; every member must draw the same.
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
    return model


def load_base(task: TrainingTask, device: torch.device) -> LanguageModel:
    """A folder without weights gets random ones by the task's seed."""
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
    """What to compute in; None: as the weights are."""
    if task.bf16:
        return torch.bfloat16
    return torch.float16 if task.fp16 else None


@contextlib.contextmanager
def seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Random draws in here follow from ``seed`` and leave those outside as they were."""
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
    """The sum of the losses over the tokens that count: the mean is for who knows the batch."""
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
    """Tokens, their mask and their labels, as long as the longest of these rows."""
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
    """The loss per token that counts, over all batches."""
    model.eval()
    total = sum(float(summed_loss(model, data, rows, device, dtype)) for rows in batches)
    return total / max(1, sum(data.targets(rows) for rows in batches))


def without_adapter(model: LanguageModel) -> contextlib.AbstractContextManager[None]:
    """Inside, the model is what it was before; of an adapted model only."""
    return model.disable_adapter()


def save_model(model: LanguageModel, tokenizer: Tokenizer, folder: Path) -> None:
    """What ``from_pretrained`` of PEFT (an adapter) or of transformers (all of it) reads."""
    for parameter in model.parameters():
        if parameter.requires_grad:
            # Out of the flat buffer: what shares memory is taken for tied weights.
            parameter.data = parameter.data.clone()
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


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
        reason = " ".join(str(error).split())[:160]
        raise InvalidInput(
            "lora_target_modules", chosen, f"layers of this model ({reason})"
        ) from None


def _refused(task: TrainingTask, what: str, error: Exception) -> InvalidInput:
    reason = " ".join(str(error).split())[:160]
    return InvalidInput(
        "model", task.model, f"a folder or a name on the hub with {what} ({reason})"
    )
