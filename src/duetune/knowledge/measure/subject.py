"""The model under test: built once, then adapted to one configuration after the other."""

from __future__ import annotations

import importlib.util
import time
import warnings
from typing import TYPE_CHECKING, cast

import torch
import transformers

from duetune.knowledge.measure.worker_messages import PLAIN

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from duetune.knowledge.measure.worker_messages import Header, Trial

    class LanguageModel(torch.nn.Module):
        """What is used of a model of transformers or PEFT."""

        def get_input_embeddings(self) -> torch.nn.Module: ...

        def set_attn_implementation(self, attn_implementation: str) -> None: ...

        def gradient_checkpointing_enable(
            self, gradient_checkpointing_kwargs: dict[str, bool]
        ) -> None: ...

        def gradient_checkpointing_disable(self) -> None: ...

        def unload(self) -> LanguageModel: ...


_LEARNING_RATE = 1e-7
"""Small, so that the weights hardly change from one configuration to the next."""
_TARGETS: dict[str, str | list[str]] = {
    "attention": ["q_proj", "k_proj", "v_proj", "o_proj"],
    "all-linear": "all-linear",
}
_ATTENTION = {"sdpa": "sdpa", "eager": "eager", "flash": "flash_attention_2"}


class Unsupported(Exception):
    """The machine or the profiler cannot run a configuration; this says nothing about memory."""


class Subject:
    """A model with random weights on the device."""

    def __init__(self, header: Header, device: torch.device) -> None:
        begun = time.perf_counter()
        values = dict(header.config)
        config = transformers.AutoConfig.for_model(str(values.pop("model_type")), **values)
        config.use_cache = False
        torch.manual_seed(header.seed)
        # Random weights are drawn on the device: on the host, 14B of them take minutes.
        with torch.device(device):
            base = transformers.AutoModelForCausalLM.from_config(  # type: ignore[no-untyped-call]
                config, dtype=getattr(torch, header.weights), attn_implementation="sdpa"
            )
        self._device = device
        self._base = cast("LanguageModel", base)
        self._model = self._base
        self._adapter = PLAIN
        self._hook: torch.utils.hooks.RemovableHandle | None = None
        self._base.train()
        self.vocabulary = int(config.vocab_size)
        self.parameters = sum(each.numel() for each in self._base.parameters())
        self.build_s = time.perf_counter() - begun

    def adapt(self, trial: Trial) -> LanguageModel:
        """Return the model as the trial needs it; an adapter that already matches is kept."""
        check(trial)
        if trial.adapter != self._adapter:
            self.detach()
            if trial.method == "lora":
                self._attach(trial)
            self._adapter = trial.adapter
        self._base.set_attn_implementation(_ATTENTION[trial.attention])
        self._checkpoint(trial)
        self._model.train()
        return self._model

    def trained(self) -> Iterator[torch.nn.Parameter]:
        """Return the parameters that are trained."""
        return (each for each in self._model.parameters() if each.requires_grad)

    def forget_gradients(self) -> None:
        """Drop all gradients after a trial."""
        for parameter in self._model.parameters():
            parameter.grad = None

    def detach(self) -> None:
        """Remove the adapter, so that all weights of the plain model are trained."""
        if self._model is not self._base:
            self._base = self._model.unload()
            self._model = self._base
            if hasattr(self._base, "peft_config"):
                del self._base.peft_config
        self._adapter = PLAIN
        for parameter in self._base.parameters():
            parameter.requires_grad_(True)

    def _attach(self, trial: Trial) -> None:
        """Add the trial's LoRA adapter."""
        import peft  # noqa: PLC0415 - takes a second, and full fine-tuning needs none of it

        settings = peft.LoraConfig(
            r=trial.lora_rank,
            lora_alpha=2 * trial.lora_rank,
            lora_dropout=0.0,
            target_modules=_TARGETS[trial.lora_targets],
            task_type="CAUSAL_LM",
        )
        with torch.device(self._device), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            adapted = peft.get_peft_model(
                cast("transformers.PreTrainedModel", self._base), settings
            )
        self._model = cast("LanguageModel", adapted)

    def _checkpoint(self, trial: Trial) -> None:
        """Switch gradient checkpointing on or off."""
        if self._hook is not None:
            self._hook.remove()
            self._hook = None
        if not trial.grad_checkpoint:
            self._base.gradient_checkpointing_disable()
            return
        self._base.gradient_checkpointing_enable(
            gradient_checkpointing_kwargs={"use_reentrant": False}
        )
        if trial.method == "lora":
            # As in every LoRA recipe: the output of the frozen embeddings needs a gradient.
            self._hook = self._base.get_input_embeddings().register_forward_hook(_require_gradient)


def _require_gradient(_module: torch.nn.Module, _inputs: object, output: torch.Tensor) -> None:
    output.requires_grad_(True)


def optimiser_for(
    trial: Trial, parameters: Iterator[torch.nn.Parameter], device: torch.device
) -> torch.optim.Optimizer:
    """Return the optimiser of a trial, made as transformers' Trainer makes it."""
    if trial.optimiser == "adamw":
        return torch.optim.AdamW(parameters, lr=_LEARNING_RATE, fused=device.type == "cuda")
    if trial.optimiser == "sgd":
        return torch.optim.SGD(parameters, lr=_LEARNING_RATE)
    if trial.optimiser == "adafactor":
        made = transformers.optimization.Adafactor(  # type: ignore[no-untyped-call]
            parameters, lr=_LEARNING_RATE, scale_parameter=False, relative_step=False
        )
        return cast("torch.optim.Optimizer", made)
    import bitsandbytes  # type: ignore[import-not-found] # noqa: PLC0415 - checked before

    kinds: dict[str, Callable[..., torch.optim.Optimizer]] = {
        "adamw-8bit": bitsandbytes.optim.AdamW8bit,
        "paged-adamw": bitsandbytes.optim.PagedAdamW32bit,
    }
    return kinds[trial.optimiser](parameters, lr=_LEARNING_RATE)


def check(trial: Trial) -> None:
    """Raise ``Unsupported`` for a trial that cannot run here, before it counts as out of memory."""
    if trial.method not in {"full", "lora"}:
        raise Unsupported(f"method {trial.method} cannot be measured")
    if trial.method == "lora" and trial.lora_targets not in _TARGETS:
        raise Unsupported(f"LoRA targets {trial.lora_targets} are unknown")
    if trial.num_gpus != 1 or trial.grad_accum != 1:
        raise Unsupported("only one GPU without gradient accumulation can be measured")
    if trial.fast_kernels:
        raise Unsupported("fused kernels cannot be measured")
    if trial.attention == "flash" and not importlib.util.find_spec("flash_attn"):
        raise Unsupported("flash_attn is not installed")
    if trial.optimiser in {"adamw-8bit", "paged-adamw"}:
        if not importlib.util.find_spec("bitsandbytes"):
            raise Unsupported("bitsandbytes is not installed")
    elif trial.optimiser not in {"adamw", "sgd", "adafactor"}:
        raise Unsupported(f"optimiser {trial.optimiser} is unknown")
