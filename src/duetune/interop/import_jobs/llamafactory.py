"""Import configuration files of LLaMA-Factory."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from duetune.errors import InvalidInput
from duetune.interop.import_jobs.hyperparameters import REASONS, ROWS, Hyperparameters
from duetune.interop.import_jobs.renamed_columns import RenamedColumns

if TYPE_CHECKING:
    from duetune.interop.import_jobs.foreign_file import ForeignFile

_NAMES = {
    "max_length": "cutoff_len",
    "lora_r": "lora_rank",
    "lora_modules_to_save": "additional_target",
    "use_liger_kernel": "enable_liger_kernel",
    "bnb_4bit_quant_type": "quantization_type",
    "use_bnb_nested_quant": "double_quantization",
}
_DEFAULTS: dict[str, object] = {
    "num_train_epochs": 3.0,
    "per_device_train_batch_size": 8,
    "gradient_accumulation_steps": 1,
    "learning_rate": 5e-5,
    "lr_scheduler_type": "linear",
    "max_length": 2048,
    "lora_r": 8,
}
_REASONS = REASONS | {
    "template": "the model's own chat template is used",
    "neat_packing": "rows are always laid end to end, and never see each other",
    "flash_attn": "the trainer chooses the attention",
    "max_samples": "duetune trains on the whole dataset",
    "overwrite_cache": "the data is prepared in the job's own folder",
    "preprocessing_num_workers": "the trainer prepares the data",
}
_INFO = "dataset_info.json"
_LEVELS_UP = 4


class _Dataset(RenamedColumns, frozen=True):
    """An entry of ``dataset_info.json``: where the data is, and the names of its columns."""

    hf_hub_url: str = ""
    file_name: str = ""
    subset: str = ""
    split: str = ""


def from_llamafactory(source: ForeignFile) -> dict[str, object]:
    """Return the spec fields of a LLaMA-Factory file; refuses stages other than sft."""
    stage = source.text("stage") or "sft"
    if stage != "sft":
        raise source.wrong("stage", stage, _only("sft"))
    if source.flag("do_train") is False:
        source.note("do_train", "false is not imported: a job always trains")
    model = source.text("model_name_or_path")
    if model is None:
        raise source.wrong("model_name_or_path", None, "the model to fine-tune")
    kind = source.text("finetuning_type") or "lora"
    if kind not in {"lora", "full"}:
        raise source.wrong("finetuning_type", kind, _only("lora or full"))
    bits = source.number("quantization_bit")
    method = "qlora" if kind == "lora" and bits == 4 else kind
    if bits and bits != 4:
        source.note(
            "quantization_bit",
            f"{bits:g}: the base model is not quantised here, so it needs more memory",
        )
    training = Hyperparameters(source, _NAMES, _DEFAULTS)
    training.precision()
    if source.flag("pure_bf16"):
        training.values |= {"precision": "bf16", "bf16": None, "fp16": None}
    if source.flag("train_on_prompt"):
        training.values |= {"assistant_only_loss": False, "completion_only_loss": False}
    training.values["gradient_checkpointing"] = not source.flag("disable_gradient_checkpointing")
    training.modules("lora_target", frozenset(("all",)))
    training.values.setdefault("lora_target_modules", "all-linear" if kind == "lora" else None)
    folder = source.text("dataset_dir") or "data"
    datasets = _places(source, "dataset", folder)
    if not datasets:
        raise source.wrong("dataset", None, f"a name that {_INFO} explains")
    held_out = _places(source, "eval_dataset", folder)
    if held_out:
        training.values["eval_dataset"] = held_out[0]
    else:
        training.held_out("val_size")
    keep = source.whole("save_total_limit")
    collected = training.collect(method)
    if kind == "lora" and "lora_alpha" not in collected:
        collected["lora_alpha"] = 2.0 * float(str(collected["lora_r"]))
    fields: dict[str, object] = {
        "model": model,
        "dataset": datasets[0],
        "method": method,
        "training": collected,
    }
    if keep:
        fields["checkpoint"] = {"keep": keep}
    source.leftover(_REASONS)
    return fields


def _only(what: str) -> str:
    command = "run: llamafactory-cli train FILE"
    return f"{what}; otherwise keep LLaMA-Factory, with a spec that has '{command}'"


def _places(source: ForeignFile, field: str, folder: str) -> list[str]:
    """Return the place of the first dataset, and note the others."""
    value = source.take(field)
    names = value.split(",") if isinstance(value, str) else value
    if names is None:
        return []
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise source.wrong(field, value, "names of datasets")
    names = [name.strip() for name in names if name.strip()]
    known = _known(source, folder, names[:1])
    for name in names[1:]:
        source.note(field, f"{name} is not imported: a job has one dataset; join the files")
    return [_place(source, field, name, folder, known) for name in names[:1]]


def _place(
    source: ForeignFile, field: str, name: str, folder: str, known: tuple[Path, dict[str, _Dataset]]
) -> str:
    """Return the place of one dataset; a guess, with a note, if it is not in the list."""
    home, datasets = known
    if name not in datasets:
        guess = name if "/" in name or "." in name else f"{folder}/{name}.json"
        source.note(field, f"{name} is not in a {_INFO} nearby; {guess} is a guess")
        return guess
    entry = datasets[name]
    for detail in ("subset", "split"):
        if getattr(entry, detail):
            source.note(f"{field} {name}", f"{detail} {getattr(entry, detail)} is not imported")
    if not entry.usual:
        given = (entry.columns | entry.tags).items()
        names = ", ".join(f"{role} {column}" for role, column in given)
        words = f"formatting {entry.formatting}" + (f", names {names}" if names else "")
        if entry.convertible and entry.file_name:
            source.renamed[field] = entry
            says = "with -o the rows are written as messages to a file beside the spec"
        else:
            says = f"{ROWS}; convert others first"
        source.note(f"{field} {name}", f"{words}: {says}")
    if entry.hf_hub_url:
        return entry.hf_hub_url
    if not entry.file_name:
        raise InvalidInput(f"{_INFO} {name}", None, "hf_hub_url or file_name")
    return str(home / entry.file_name)


def _note_rest(source: ForeignFile, path: Path, names: list[str]) -> None:
    """Note the keys of the entries in use that have no meaning here."""
    entries = msgspec.json.decode(path.read_bytes(), type=dict[str, dict[str, object]])
    for name in names:
        for key in entries.get(name, {}).keys() - set(_Dataset.__struct_fields__):
            source.note(f"{_INFO} {name}", f"{key} is not imported")


def _known(source: ForeignFile, folder: str, names: list[str]) -> tuple[Path, dict[str, _Dataset]]:
    """Return the nearest ``dataset_info.json``, beside the file or above it, and its folder."""
    above = [up / folder / _INFO for up in source.folder.parents[:_LEVELS_UP]]
    for path in (source.folder / folder / _INFO, source.folder / _INFO, *above):
        if not path.is_file():
            continue
        try:
            known = msgspec.json.decode(path.read_bytes(), type=dict[str, _Dataset])
            _note_rest(source, path, names)
        except (OSError, msgspec.MsgspecError) as error:
            raise InvalidInput(_INFO, str(path), f"readable JSON of datasets ({error})") from None
        return Path(os.path.relpath(path.parent, source.folder)), known
    return Path(folder), {}
