"""Import configuration files of TRL's command line: ``trl sft --config FILE``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from duetune.interop.import_jobs.axolotl import is_file_format
from duetune.interop.import_jobs.foreign_file import variables
from duetune.interop.import_jobs.hyperparameters import REASONS, Hyperparameters

if TYPE_CHECKING:
    from duetune.interop.import_jobs.foreign_file import ForeignFile

_DEFAULTS: dict[str, object] = {
    "num_train_epochs": 3.0,
    "per_device_train_batch_size": 8,
    "gradient_accumulation_steps": 1,
    "learning_rate": 2e-5,
    "lr_scheduler_type": "linear",
    "max_length": 1024,
    "lora_r": 16,
    "lora_alpha": 32.0,
    "lora_dropout": 0.05,
    "assistant_only_loss": False,
}
_REASONS = REASONS | {
    "packing_strategy": "rows are always laid end to end, and never see each other",
    "padding_free": "rows are always laid end to end, and never see each other",
}
# What tells the other trainers of TRL apart from sft.
_OTHER_TRAINERS = {
    "beta": "dpo",
    "reward_funcs": "grpo",
    "reward_model_name_or_path": "grpo",
    "num_generations": "grpo",
    "max_completion_length": "grpo",
    "desirable_weight": "kto",
}


def from_trl(source: ForeignFile) -> dict[str, object]:
    """Return the spec fields of a TRL file; refuses files for trainers other than sft."""
    for name, trainer in _OTHER_TRAINERS.items():
        if name in source:
            command = f"run: trl {trainer} --config FILE"
            allowed = f"a file for trl sft; otherwise keep TRL, with a spec that has '{command}'"
            raise source.wrong(name, f"an option of trl {trainer}", allowed)
    model = source.text("model_name_or_path")
    if model is None:
        raise source.wrong("model_name_or_path", None, "the model to fine-tune")
    lora = bool(source.flag("use_peft"))
    method = "full" if not lora else "qlora" if source.flag("load_in_4bit") else "lora"
    names = {"max_length": "max_seq_length"} if "max_seq_length" in source else {}
    training = Hyperparameters(source, names, _DEFAULTS)
    bf16_said = "bf16" in source or "fp16" in source
    training.precision()
    if not bf16_said:
        training.values["bf16"] = True  # TRL computes in bfloat16 unless told otherwise.
    _weights(source, training, method)
    checkpointing = source.flag("gradient_checkpointing")
    training.values["gradient_checkpointing"] = True if checkpointing is None else checkpointing
    training.modules("lora_target_modules", frozenset(("all-linear",)))
    training.values["eval_fraction"] = source.number("test_split_size") or 0.0
    dataset = _dataset(source)
    keep = source.whole("save_total_limit")
    fields: dict[str, object] = {
        "model": model,
        "dataset": dataset,
        "method": method,
        "training": training.collect(method),
    }
    if keep:
        fields["checkpoint"] = {"keep": keep}
    fields |= variables(source, source.mapping("env"), [], "env")
    source.leftover(_REASONS)
    return fields


def _weights(source: ForeignFile, training: Hyperparameters, method: str) -> None:
    """Take the number format of the weights, which matters where all of them are trained."""
    stored = source.text("dtype") or source.text("torch_dtype")
    if stored == "bfloat16" and method == "full" and training.values["bf16"]:
        training.values |= {"precision": "bf16", "bf16": None, "fp16": None}
    elif stored is not None:
        source.note("dtype", f"{stored} is not imported: weights are stored as bf16 and fp16 say")


def _dataset(source: ForeignFile) -> str:
    """Return the place of the dataset; of a mixture the first, with notes on the others."""
    mixture = source.take("datasets")
    if mixture is None:
        name = source.text("dataset_name")
        if name is None:
            raise source.wrong("dataset_name", None, "the dataset to train on")
        if (source.text("dataset_train_split") or "train") != "train":
            source.note("dataset_train_split", "the split 'train' is trained on")
        return name
    if not isinstance(mixture, list) or not mixture or not isinstance(mixture[0], dict):
        raise source.wrong("datasets", mixture, "a list of datasets, each with its path")
    first = {key: value for key, value in mixture[0].items() if value is not None}
    place = first.pop("path", None)
    files = first.get("data_files")
    if is_file_format(place) and isinstance(files, str):
        place = first.pop("data_files")
    if not isinstance(place, str):
        raise source.wrong("datasets.0.path", place, "a file, folder or name on the hub")
    if first:
        words = ", ".join(f"{key} {value}" for key, value in first.items())
        source.note("datasets.0", f"{words} is not imported")
    for other in mixture[1:]:
        name = other.get("path") if isinstance(other, dict) else other
        source.note("datasets", f"{name} is not imported: a job has one dataset")
    return place
