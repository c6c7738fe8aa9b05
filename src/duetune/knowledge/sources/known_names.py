"""One name for each model and GPU, whatever users, clusters and tables call it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from duetune.knowledge.configurations.configuration import Configurations
from duetune.knowledge.facts.gpus import gpu_name
from duetune.knowledge.facts.model_registry import model_name
from duetune.knowledge.history import History

if TYPE_CHECKING:
    from duetune.knowledge.observation import Observation


def known_model(text: str) -> str:
    """A folder stays what it is."""
    return text if Path(text).is_dir() else model_name(text)


def known_gpu(text: str) -> str:
    return gpu_name(text) or text


_KNOWN = {"model": known_model, "gpu_model": known_gpu}


def by_known_names(configurations: Configurations) -> Configurations:
    """The same rows; only labels are looked at, so it takes no time."""
    labels = {
        field: tuple(known(word) for word in configurations.labels[field])
        for field, known in _KNOWN.items()
    }
    if all(labels[field] == configurations.labels[field] for field in labels):
        return configurations
    return Configurations(configurations.columns, {**configurations.labels, **labels})


def observed_by_known_names(observation: Observation) -> Observation:
    each = observation.configuration
    names = {field: known(getattr(each, field)) for field, known in _KNOWN.items()}
    if all(getattr(each, field) == name for field, name in names.items()):
        return observation
    return msgspec.structs.replace(observation, configuration=each.replace(**names))


def history_by_known_names(history: History) -> History:
    rows = history.configurations
    if by_known_names(rows) is rows:
        return history
    return History(observed_by_known_names(each) for each in history)
