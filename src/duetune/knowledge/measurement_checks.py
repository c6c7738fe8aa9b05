"""What cannot be true of a measurement, or cannot be said of one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from duetune.errors import InvalidInput
from duetune.knowledge.configurations.configuration import FIELDS, LORA_TARGETS, Configuration
from duetune.knowledge.configurations.space import field_value
from duetune.knowledge.facts.gpus import GPUS, MIB, gpu_name, gpu_named
from duetune.knowledge.facts.model_facts import model_facts
from duetune.knowledge.facts.model_registry import model_name
from duetune.knowledge.model.quality import CPU, EMULATED
from duetune.knowledge.observation import RunOutcome

if TYPE_CHECKING:
    from collections.abc import Mapping

    from duetune.knowledge.configurations.space import Value
    from duetune.knowledge.observation import Observation

BEYOND = 1.05
"""Of a card's memory: drivers and data sheets differ by a little, not by more."""

_COUNTS = ("num_gpus", "num_nodes", "batch_size", "tokens_per_sample", "grad_accum")
_NO_GPU = frozenset((CPU.casefold(), EMULATED))
_KINDS = {field.name: field.type for field in msgspec.structs.fields(Configuration)}


def check_memory(observation: Observation) -> None:
    """No run takes more than its card has."""
    gpu = gpu_named(observation.configuration.gpu_model)
    if gpu is None:
        return
    capacity_gb = gpu.memory_mib * MIB / 1e9
    for field in ("peak_memory_gb", "needed_memory_gb"):
        size = getattr(observation, field)
        if size is not None and size > BEYOND * capacity_gb:
            raise InvalidInput(field, size, f"at most the {capacity_gb:.1f} GB of the card")


def check_row(observation: Observation, *, own: bool) -> None:
    """Of a table of somebody else, the model must be known, too: of what was run here, a model's
    folder may be gone.
    """
    one = observation.configuration
    if gpu_name(one.gpu_model) is None and one.gpu_model.casefold() not in _NO_GPU:
        raise InvalidInput("gpu_model", one.gpu_model, f"a known GPU: {', '.join(GPUS)}")
    if not own and model_facts(one.model) is None:
        raise InvalidInput("model", one.model, "a known model, or a name with the size in it")
    for field in _COUNTS:
        if getattr(one, field) < 1:
            raise InvalidInput(field, getattr(one, field), "a whole number from 1 on")
    if observation.outcome is RunOutcome.OOM and observation.tokens_per_s is not None:
        raise InvalidInput(
            "tokens_per_s", observation.tokens_per_s, "nothing, since the run ran out of memory"
        )


def given_fields(given: Mapping[str, str]) -> dict[str, Value]:
    """Fields of a configuration from texts."""
    found: dict[str, Value] = {}
    for field, text in given.items():
        if field not in FIELDS:
            raise InvalidInput("given", field, f"one of {', '.join(FIELDS)}")
        try:
            value = msgspec.convert(text, _KINDS[field], strict=False)
        except msgspec.ValidationError:
            value = text  # Refused below, with what is allowed.
        found[field] = field_value(field, model_name(text) if field == "model" else value)
        if field == "gpu_model" and gpu_name(text) is None:
            raise InvalidInput("given", f"gpu_model={text}", f"one of {', '.join(GPUS)}")
        if field == "lora_targets" and text not in LORA_TARGETS:
            raise InvalidInput("given", f"{field}={text}", " or ".join(LORA_TARGETS))
    return found
