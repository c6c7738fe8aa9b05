"""The model under test: built once with random weights, then prepared for one trial after another.

Everything that a step does is the trainer's own code. Only the weights and the rows are random.
"""

from __future__ import annotations

import time
import warnings
from typing import TYPE_CHECKING, cast

import msgspec
import numpy as np
import torch
import transformers

from duetune.knowledge.configurations.lora_targets import (
    lora_layers,
)
from duetune.training.adapters import quantise
from duetune.training.forward_pass import choose_forward_pass
from duetune.training.language_model import precision, recompute_activations, stored_type
from duetune.training.profiler.random_rows import random_rows, row_lengths
from duetune.training.shared_state import SharedState
from duetune.training.task import TrainingMethod, TrainingTask
from duetune.training.trained_model import prepared

if TYPE_CHECKING:
    from duetune.knowledge.measure.worker_messages import Header, Trial
    from duetune.training.forward_pass import ForwardPass
    from duetune.training.language_model import LanguageModel

_LEARNING_RATE = 1e-7
"""Small, so that the weights hardly change from one trial to the next."""

OPTIM = {
    "adamw": "adamw_torch",
    "adamw-8bit": "adamw_8bit",
    "paged-adamw": "paged_adamw_32bit",
    "paged-adamw-8bit": "paged_adamw_8bit",
    "adafactor": "adafactor",
    "sgd": "sgd",
    "lion": "lion_32bit",
    "lion-8bit": "lion_8bit",
}
"""The name of each optimiser in ``optim``."""


class Unsupported(Exception):
    """The machine or the trainer cannot run a configuration; this says nothing about memory."""


class Subject:
    """A model with random weights on the device, stored as ``trial`` and those like it need."""

    def __init__(self, header: Header, trial: Trial, device: torch.device) -> None:
        begun = time.perf_counter()
        values = dict(header.config)
        config = transformers.AutoConfig.for_model(str(values.pop("model_type")), **values)
        config.use_cache = False
        torch.manual_seed(header.seed)
        task = task_of(trial, 1)
        # Random weights are drawn on the device: on the host, 14B of them take minutes.
        with torch.device(device):
            base = transformers.AutoModelForCausalLM.from_config(  # type: ignore[no-untyped-call]
                config, dtype=stored_type(task)
            )
        self.parameters = sum(each.numel() for each in base.parameters())
        self._header = header
        self._device = device
        self._base = cast("LanguageModel", base)
        if task.method is TrainingMethod.QLORA:
            quantise(task, self._base, device)
        self._way = choose_forward_pass(self._base, task, device, precision(task))
        self._model = self._base
        self._adapted: tuple[str, int, str, bool] | None = None
        self.vocabulary = int(config.vocab_size)
        self.rows = 0
        """Rows of one step of the last trial."""
        self.build_s = time.perf_counter() - begun

    def state(self, trial: Trial) -> SharedState:
        """Return the trainer's state for a trial, on rows of which each step takes all."""
        _check(trial, self._way)
        lengths = row_lengths(trial, self._header.seed)
        self.rows = len(lengths)
        task = task_of(trial, len(lengths))
        if trial.adapted != self._adapted:
            self.detach()
            with torch.device(self._device), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                self._model = prepared(task, self._base, self._device)
            self._adapted = trial.adapted
        data = random_rows(lengths, self.vocabulary, self._header.seed)
        return SharedState(task, self._model, data, np.arange(len(lengths)), self._device)

    def forget_gradients(self) -> None:
        """Drop all gradients after a trial."""
        for parameter in self._model.parameters():
            parameter.grad = None

    def detach(self) -> None:
        """Undo what a trial did to the model: adapter, checkpointing, frozen weights."""
        self._adapted = None
        unload = getattr(self._model, "unload", None)
        if callable(unload):
            self._base = cast("LanguageModel", unload())
            if hasattr(self._base, "peft_config"):
                del self._base.peft_config
        self._model = self._base
        base = cast("transformers.PreTrainedModel", self._base)
        recompute_activations(base, wanted=False)
        if hasattr(base, "_require_grads_hook"):
            base.disable_input_require_grads()  # type: ignore[no-untyped-call]
        for parameter in self._base.parameters():
            parameter.requires_grad_(parameter.is_floating_point())


def task_of(trial: Trial, rows: int) -> TrainingTask:
    """Return the task of a trial, of which one step takes ``rows`` rows."""
    full = trial.method == "full"
    layers = lora_layers(trial.lora_targets)
    values: dict[str, object] = {
        "model": "",
        "dataset": "",
        "method": trial.method,
        "max_steps": 10**6,
        "per_device_train_batch_size": -(-rows // trial.grad_accum),
        "global_batch": rows,
        "max_tokens_per_microbatch": trial.tokens_per_microbatch,
        "max_length": max(2, trial.longest_sample or trial.tokens_per_sample),
        "learning_rate": _LEARNING_RATE,
        "lr_scheduler_type": "constant",
        "gradient_checkpointing": trial.grad_checkpoint,
        "precision": trial.precision,
        "optim": OPTIM[trial.optimiser],
        "use_liger_kernel": trial.fast_kernels,
    }
    if not full:
        values |= {
            "lora_r": trial.lora_rank,
            "lora_alpha": 2.0 * trial.lora_rank,
            "lora_target_modules": layers,
        }
    return msgspec.convert(values, TrainingTask)


def _check(trial: Trial, way: ForwardPass) -> None:
    """Raise ``Unsupported`` for a trial that cannot run here, or that the trainer computes in
    another way than it says. This comes before it can count as out of memory.
    """
    if trial.num_gpus != 1:
        raise Unsupported("only one GPU can be measured")
    if not way.packed or way.fused != trial.fast_kernels:
        raise Unsupported("; ".join(way.notes) or "the trainer computes it in another way")
