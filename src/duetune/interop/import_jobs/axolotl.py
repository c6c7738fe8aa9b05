"""Import configuration files of axolotl."""

from __future__ import annotations

from typing import TYPE_CHECKING

from duetune.interop.import_jobs.carried_fields import template
from duetune.interop.import_jobs.hyperparameters import REASONS, ROWS, Hyperparameters

if TYPE_CHECKING:
    from duetune.interop.import_jobs.foreign_file import ForeignFile

_NAMES = {
    "num_train_epochs": "num_epochs",
    "per_device_train_batch_size": "micro_batch_size",
    "lr_scheduler_type": "lr_scheduler",
    "max_length": "sequence_len",
    "optim": "optimizer",
    "use_rslora": "peft_use_rslora",
    "use_dora": "peft_use_dora",
    "run_name": "wandb_name",
    "project": "wandb_project",
    "packing": "sample_packing",
}
_DEFAULTS: dict[str, object] = {
    "num_train_epochs": 1.0,
    "per_device_train_batch_size": 1,
    "gradient_accumulation_steps": 1,
    "lr_scheduler_type": "cosine",
    "max_length": 512,
}
_REASONS = REASONS | {
    "eval_sample_packing": "rows are always laid end to end, and never see each other",
    "pad_to_sequence_len": "rows are never padded",
    "flash_attention": "the trainer chooses the attention",
    "dataset_prepared_path": "the data is prepared in the job's own folder",
}


def from_axolotl(source: ForeignFile) -> dict[str, object]:
    """Return the spec fields of an axolotl file; refuses what is not supervised fine-tuning."""
    goal = source.take("rl")
    if goal:
        raise source.wrong("rl", goal, _only("supervised fine-tuning, without rl"))
    model = source.text("base_model")
    if model is None:
        raise source.wrong("base_model", None, "the model to fine-tune")
    adapter = source.text("adapter")
    if adapter not in {None, "lora", "qlora"}:
        raise source.wrong("adapter", adapter, _only("lora, qlora or none"))
    bits = source.flag("load_in_4bit")
    method = "full" if adapter is None else "qlora" if bits or adapter == "qlora" else "lora"
    datasets = _datasets(source, "datasets")
    if not datasets:
        raise source.wrong("datasets", None, "a list of datasets, each with its path")
    training = Hyperparameters(source, _NAMES, _DEFAULTS)
    training.precision()
    _checkpointing(source, training)
    if source.flag("train_on_inputs"):
        training.values |= {"assistant_only_loss": False, "completion_only_loss": False}
    training.values |= template(source, "chat_template")
    tokens = source.mapping("special_tokens")
    for field in ("eos_token", "pad_token"):
        training.values[field] = tokens.pop(field, None)
    for field, token in tokens.items():
        source.note(f"special_tokens.{field}", f"{token} is not imported")
    if "hub_model_id" in source:
        training.values["push_to_hub"] = True
    if "wandb_project" in source:
        training.values["report_to"] = ["wandb"]
    training.modules("lora_target_modules", frozenset(("all-linear",)))
    if source.flag("lora_target_linear"):
        training.values["lora_target_modules"] = "all-linear"
    held_out = _datasets(source, "test_datasets")
    if held_out:
        training.values["eval_dataset"] = held_out[0]
        if source.take("val_set_size"):
            source.note("val_set_size", "is not imported: test_datasets are used for evaluation")
    else:
        training.held_out("val_set_size")
    keep = source.whole("save_total_limit")
    fields: dict[str, object] = {
        "model": model,
        "dataset": datasets[0],
        "method": method,
        "training": training.collect(method),
    }
    if keep:
        fields["checkpoint"] = {"keep": keep}
    source.leftover(_REASONS)
    return fields


def is_file_format(place: object) -> bool:
    """Return whether ``place`` is a format name of the datasets library, not a place."""
    return isinstance(place, str) and place in {"json", "csv", "parquet", "text", "arrow"}


def _only(what: str) -> str:
    return f"{what}; otherwise keep axolotl, with a spec that has 'run: axolotl train FILE'"


def _datasets(source: ForeignFile, name: str) -> list[str]:
    """Return the places of the datasets: the file in data_files, or the path."""
    value = source.take(name)
    if value is None:
        return []
    if not isinstance(value, list) or not all(isinstance(each, dict) for each in value):
        raise source.wrong(name, value, "a list of datasets, each with its path")
    places = []
    for number, dataset in enumerate(value):
        place = dataset.pop("path", None)
        files = dataset.pop("data_files", None)
        if isinstance(files, list) and len(files) == 1:
            files = files[0]
        if isinstance(files, str) and (place is None or is_file_format(place)):
            place = files
        elif files is not None:
            source.note(f"{name}.{number}.data_files", f"{files} is not imported")
        if not isinstance(place, str):
            raise source.wrong(f"{name}.{number}.path", place, "a file, folder or name on the hub")
        places.append(place)
        details = {key: each for key, each in dataset.items() if each is not None}
        if details:
            words = ", ".join(f"{key} {each}" for key, each in details.items())
            source.note(f"{name}.{number}", f"{words}: {ROWS}; convert others first")
    for place in places[1:]:
        source.note(name, f"{place} is not imported: a job has one dataset; join the files")
    return places


def _checkpointing(source: ForeignFile, training: Hyperparameters) -> None:
    """Take gradient checkpointing; a word such as ``offload`` is read as true."""
    value = source.mode("gradient_checkpointing")
    if isinstance(value, str):
        source.note("gradient_checkpointing", f"{value} is read as true")
        value = True
    training.values["gradient_checkpointing"] = value
