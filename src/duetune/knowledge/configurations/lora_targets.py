"""Which layers LoRA adapts, in the spellings of configurations and of PEFT."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

LORA_TARGETS = ("attention", "all-linear")
"""Words for the usual LoRA layers; other layers are named one by one, such as q_proj+v_proj."""

JOINED = "+"

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.]*")
_ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")


def is_lora_targets(text: str) -> bool:
    """Return whether a text names LoRA layers: a usual word, or sorted names joined by "+"."""
    names = text.split(JOINED)
    return text in LORA_TARGETS or (
        all(_NAME.fullmatch(name) for name in names) and names == sorted(set(names))
    )


def lora_targets_of(modules: str | Iterable[str]) -> str:
    """Return the layers of a LoRA setting in one spelling: a usual word, or the sorted names."""
    if isinstance(modules, str):
        return modules
    names = sorted(set(modules))
    return "attention" if names == sorted(_ATTENTION) else JOINED.join(names)


def reaches_feed_forward(targets: str) -> bool:
    """Return whether some of the LoRA layers are outside of attention."""
    layers = lora_layers(targets)
    return isinstance(layers, str) or not set(layers) <= set(_ATTENTION)


def lora_layers(targets: str) -> str | tuple[str, ...]:
    """Return LoRA layers as PEFT expects them: "all-linear", or names of layers."""
    if targets == "all-linear":
        return targets
    return _ATTENTION if targets == "attention" else tuple(targets.split(JOINED))
