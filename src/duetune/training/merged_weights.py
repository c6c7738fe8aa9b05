"""Merges the adapter of a finished job into its base model, for programs without PEFT.

An adapter beside weights in 4 bits is merged into the weights before they were quantised.
"""

from __future__ import annotations

import contextlib
import secrets
import shutil
from typing import TYPE_CHECKING

import msgspec
import peft
import torch

from duetune.errors import InvalidInput
from duetune.training.adapters import load_base
from duetune.training.publication import published
from duetune.training.task import TrainingMethod
from duetune.training.trained_model import load_tokenizer

if TYPE_CHECKING:
    from pathlib import Path

    from duetune.training.task import TrainingTask


def merge_adapter(task: TrainingTask, output: Path, target: Path) -> None:
    """Write the base model of ``task`` with the adapter in ``output`` to the folder ``target``.

    ``duetune merge`` calls it on the machine that has the result; it needs the memory of the model.
    """
    if not task.adapts:
        raise InvalidInput(
            "job", str(output), "a job with an adapter; this one trained all weights"
        )
    if published(output) is None:
        raise InvalidInput("job", str(output), "a finished job; this one has no result yet")
    if target.exists():
        raise InvalidInput("--output", str(target), "a folder that does not exist yet")
    plain = msgspec.structs.replace(task, method=TrainingMethod.LORA)
    base = load_base(plain, torch.device("cpu"))
    try:
        model = peft.PeftModel.from_pretrained(base, str(output)).merge_and_unload()
    except ValueError as error:
        raise InvalidInput("job", str(output), f"an adapter that can be merged ({error})") from None
    target.parent.mkdir(parents=True, exist_ok=True)
    draft = target.with_name(f".{target.name}.{secrets.token_hex(4)}")
    try:
        model.save_pretrained(draft)
        load_tokenizer(task).save_pretrained(draft)
        draft.rename(target)
    finally:
        with contextlib.suppress(OSError):
            shutil.rmtree(draft)
