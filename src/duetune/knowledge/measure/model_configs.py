"""The ``config.json`` of a model: from a folder or a file, else from what its name is known for."""

from __future__ import annotations

from pathlib import Path

import msgspec

from duetune.errors import InvalidInput
from duetune.knowledge.facts.model_registry import registered

_NOT_OF_A_CONFIG = frozenset(("aliases", "parameters", "active_parameters"))


def model_config(model: str) -> dict[str, object]:
    path = Path(model)
    if path.is_dir():
        path /= "config.json"
    if path.is_file():
        return _of_file(path)
    found = registered(model)
    if found is None:
        raise InvalidInput("model", model, "a model of the registry, or a folder with config.json")
    values = msgspec.json.decode(found[1], type=dict[str, object])
    config = {name: value for name, value in values.items() if name not in _NOT_OF_A_CONFIG}
    if config.get("model_type") == "mistral":
        # What the registry does not mention is not there; transformers' default is a window.
        config.setdefault("sliding_window", None)
    return config


def _of_file(path: Path) -> dict[str, object]:
    try:
        config = msgspec.json.decode(path.read_bytes(), type=dict[str, object])
    except OSError as error:
        raise InvalidInput("model", str(path), f"a readable file ({error.strerror})") from None
    except msgspec.MsgspecError as error:
        raise InvalidInput("model", str(path), f"the configuration of a model ({error})") from None
    if "model_type" not in config:
        raise InvalidInput("model", str(path), "a configuration with a model_type")
    return config
