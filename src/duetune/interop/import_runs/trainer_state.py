"""A run of the transformers Trainer: ``trainer_state.json`` and the settings beside it.

``training_args.bin`` is never opened: it is a pickle, which could run anything. Settings are those
of ``training_args.json`` (or ``.yaml``, ``args.json``) if somebody has written one, and of
``adapter_config.json`` and ``config.json``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from duetune.errors import InvalidInput
from duetune.interop.import_runs.run_documents import read_document
from duetune.interop.import_runs.tracked_run import Run, flattened

if TYPE_CHECKING:
    from pathlib import Path

STATE = "trainer_state.json"
_ARGUMENTS = ("training_args.json", "training_args.yaml", "training_args.yml", "args.json")
_OF_THE_MODEL = (
    *("_name_or_path", "name_or_path", "torch_dtype", "dtype", "quantization_config"),
    "_attn_implementation",
)


class _State(msgspec.Struct, frozen=True):
    global_step: int = 0
    max_steps: int = 0
    num_input_tokens_seen: float | None = None
    train_batch_size: int | None = None
    log_history: tuple[dict[str, object], ...] = ()


def trainer_run(place: Path) -> Run:
    """Of such a file, or of the folder it is in."""
    path = place / STATE if place.is_dir() else place
    try:
        state = msgspec.convert(read_document(path), _State, strict=False)
    except msgspec.ValidationError as error:
        raise InvalidInput("history", path.name, f"the state of a Trainer ({error})") from None
    folder = path.parent
    settings: dict[str, str] = {}
    model = folder / "config.json"
    if model.is_file():
        said = read_document(model)
        settings |= flattened({name: said[name] for name in _OF_THE_MODEL if name in said})
    for name in ("adapter_config.json", *_ARGUMENTS):
        if (folder / name).is_file():
            settings |= flattened(read_document(folder / name))
    if state.train_batch_size:
        settings.setdefault("per_device_train_batch_size", str(state.train_batch_size))
    numbers = {"global_step": float(state.global_step), "max_steps": float(state.max_steps)}
    for entry in state.log_history:
        numbers |= {
            name: float(value)
            for name, value in entry.items()
            if isinstance(value, int | float) and name != "step"
        }
    if state.num_input_tokens_seen:
        numbers["num_input_tokens_seen"] = state.num_input_tokens_seen
    return Run(settings=settings, numbers=numbers, provenance=f"{folder.name}/{path.name}")
