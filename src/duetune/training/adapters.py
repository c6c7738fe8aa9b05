"""Loads the base model of a task, in 4 bits for QLoRA, and puts LoRA adapters into it."""

from __future__ import annotations

import contextlib
import importlib.util
import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, cast

import torch
import transformers

from duetune.errors import InvalidInput, MissingExtra
from duetune.training.forward_pass import choose_forward_pass
from duetune.training.language_model import precision, refused, seeded, short_reason, stored_type
from duetune.training.task import TrainingMethod

if TYPE_CHECKING:
    from collections.abc import Iterator

    from duetune.training.language_model import LanguageModel
    from duetune.training.task import TrainingTask

_WEIGHTS = ("*.safetensors", "pytorch_model*.bin")
_PROBLEMS = (OSError, ValueError, TypeError, KeyError, RuntimeError)


def load_base(task: TrainingTask, device: torch.device, *, choose: bool = True) -> LanguageModel:
    """Load the base model; a folder without weights gets random ones from the task's seed.

    Without ``choose`` the caller chooses the way in which the model is computed.
    """
    bits = _quantisation(task) if task.method is TrainingMethod.QLORA else None
    folder = Path(task.model)
    options = _options(task)
    try:
        if folder.is_dir() and not any(any(folder.glob(pattern)) for pattern in _WEIGHTS):
            config = transformers.AutoConfig.from_pretrained(folder, trust_remote_code=False)
            with seeded(task.seed, torch.device("cpu")):
                model = transformers.AutoModelForCausalLM.from_config(config, **options)  # type: ignore[no-untyped-call]
            if bits is not None:
                quantise(task, cast("LanguageModel", model), device)
        else:
            if bits is not None:
                place = torch.cuda.current_device() if device.type == "cuda" else device
                options |= {"quantization_config": bits, "device_map": {"": place}}
            model = transformers.AutoModelForCausalLM.from_pretrained(
                task.model, revision=task.model_revision or "main", **options
            )
    except _PROBLEMS as error:
        raise refused(task, "a causal language model", error) from None
    model.config.use_cache = False
    if bits is not None:
        _leave_as_they_are(cast("LanguageModel", model))
    # transformers refuses to move weights in 4 bits; they are on the device already.
    base = cast("LanguageModel", model if bits is not None else model.to(device))
    if choose:
        choose_forward_pass(base, task, device, precision(task))
    return base


def _options(task: TrainingTask) -> dict[str, object]:
    # Without a word about it transformers would ask on the terminal.
    options: dict[str, object] = {"dtype": stored_type(task), "trust_remote_code": False}
    if task.attn_implementation is not None:
        options["attn_implementation"] = task.attn_implementation
    return options


def with_adapter(task: TrainingTask, base: LanguageModel) -> LanguageModel:
    """Return the model with new adapters; only these, and ``lora_modules_to_save``, are trained."""
    if getattr(base, "is_loaded_in_4bit", False) or getattr(base, "is_loaded_in_8bit", False):
        return _adapted(task, base)
    with without_bitsandbytes():
        return _adapted(task, base)


@contextlib.contextmanager
def without_bitsandbytes() -> Iterator[None]:
    """Let PEFT believe inside the block that bitsandbytes is not installed. PEFT would import it,
    and with it torch's compiler, which takes a second or more, also where nothing is quantised.
    """
    if "bitsandbytes" in sys.modules:
        yield
        return
    sys.modules["bitsandbytes"] = None  # type: ignore[assignment] # how Python marks absent ones
    try:
        yield
    finally:
        del sys.modules["bitsandbytes"]
        if (asked := sys.modules.get("peft.import_utils")) is not None:
            asked.is_bnb_available.cache_clear()
            asked.is_bnb_4bit_available.cache_clear()


def _adapted(task: TrainingTask, base: LanguageModel) -> LanguageModel:
    import peft  # noqa: PLC0415 - full fine-tunes do not need it

    chosen = task.lora_target_modules
    try:
        config = peft.LoraConfig(
            task_type=peft.TaskType.CAUSAL_LM,
            revision=task.model_revision,
            r=task.lora_r,
            lora_alpha=task.lora_alpha,  # type: ignore[arg-type]
            lora_dropout=task.lora_dropout,
            target_modules=chosen if isinstance(chosen, str) else list(chosen),
            modules_to_save=list(task.lora_modules_to_save) or None,
            lora_bias=task.lora_bias,
            use_rslora=task.use_rslora,
            use_dora=task.use_dora,
            init_lora_weights=task.init_lora_weights,
        )
        with warnings.catch_warnings():
            # PEFT asks transformers by a name that transformers has renamed.
            warnings.filterwarnings("ignore", "`is_gradient_checkpointing`", FutureWarning)
            return cast("LanguageModel", peft.get_peft_model(base, config))
    except (ValueError, NotImplementedError) as error:
        unknown = "not found in the base model" in str(error)
        reason = "" if unknown else f" ({short_reason(error)})"
        allowed = f"names of layers of this model{reason}"
        raise InvalidInput("lora_target_modules", chosen, allowed) from None


def check_adapter(task: TrainingTask) -> None:
    """Refuse LoRA layers that the model does not have. No weights are loaded or made; plans call
    this where the names of the weights leave it open.
    """
    with_adapter(task, base_outline(task))


def base_outline(task: TrainingTask) -> LanguageModel:
    """Return the base model on the meta device: all its layers, but no weights."""
    try:
        config = transformers.AutoConfig.from_pretrained(
            task.model, revision=task.model_revision or "main", trust_remote_code=False
        )
        with torch.device("meta"):
            model = transformers.AutoModelForCausalLM.from_config(config, **_options(task))  # type: ignore[no-untyped-call]
    except _PROBLEMS as error:
        raise refused(task, "a causal language model", error) from None
    model.config.use_cache = False
    return cast("LanguageModel", model)


def order_layers(model: LanguageModel) -> None:
    """Sort the layers that an adapter's configuration names: a set would be written in an order
    that changes from process to process.
    """
    for config in getattr(model, "peft_config", {}).values():
        for field, value in vars(config).items():
            if isinstance(value, set):
                setattr(config, field, sorted(value))


def _quantisation(task: TrainingTask) -> transformers.BitsAndBytesConfig:
    for package in ("bitsandbytes", "accelerate"):
        if importlib.util.find_spec(package) is None:
            raise MissingExtra("method: qlora", "quantised")
    return transformers.BitsAndBytesConfig(  # type: ignore[no-untyped-call]
        load_in_4bit=True,
        bnb_4bit_quant_type=task.bnb_4bit_quant_type,
        bnb_4bit_use_double_quant=task.use_bnb_nested_quant,
        bnb_4bit_compute_dtype=stored_type(task),
    )


def quantise(task: TrainingTask, model: LanguageModel, device: torch.device) -> None:
    """Replace the linear layers by ones in 4 bits on ``device``, as transformers does while it
    reads weights: all but the output layer. Called for models with random weights.
    """
    bits = _quantisation(task)
    library = importlib.import_module("bitsandbytes.nn")
    kept = model.get_output_embeddings()
    for name, module in list(model.named_modules()):
        if type(module) is not torch.nn.Linear or module is kept:
            continue
        layer = library.Linear4bit(
            module.in_features,
            module.out_features,
            bias=module.bias is not None,
            compute_dtype=bits.bnb_4bit_compute_dtype,
            compress_statistics=bits.bnb_4bit_use_double_quant,
            quant_type=bits.bnb_4bit_quant_type,
            device="meta",
        )
        layer.weight = library.Params4bit(
            module.weight.data,
            requires_grad=False,
            quant_type=bits.bnb_4bit_quant_type,
            compress_statistics=bits.bnb_4bit_use_double_quant,
            module=layer,
        )
        layer.bias = module.bias
        model.set_submodule(name, layer.to(device))
    model.to(device)
    model.is_loaded_in_4bit = True  # type: ignore[assignment] # PEFT asks for it
    _leave_as_they_are(model)


def _leave_as_they_are(model: LanguageModel) -> None:
    """On some CPUs, 4-bit layers would rewrite their weights for inference, and not for all
    shapes.
    """
    for module in model.modules():
        module.support_avx512bf16_for_cpu = False  # type: ignore[assignment]
