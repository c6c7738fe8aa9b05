"""Smaller cards: which runs are worth repeating under a cap."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import numpy as np

from duetune.knowledge.configurations.configuration_table import card_bytes
from duetune.knowledge.measure.worker_messages import GB

if TYPE_CHECKING:
    from collections.abc import Sequence

    from duetune.knowledge.configurations.configuration import Configuration
    from duetune.knowledge.configurations.space import Space
    from duetune.knowledge.observation import Observation

_NEAR = 0.12
"""Of logarithms: memory this close to what a card has may fit or not, only a run can tell."""


def near_caps(observations: Sequence[Observation], space: Space) -> list[Configuration]:
    """Runs without a cap whose peak was close to what a smaller card has, on that card. A card is
    large enough somewhere between what a run needed and what it took.
    """
    caps = [
        float(cap)
        for cap in space.values["memory_cap_gb"]
        if isinstance(cap, int | float) and cap > 0
    ]
    found = []
    for each in observations:
        if each.peak_memory_gb is None or each.configuration.memory_cap_gb:
            continue
        needed = np.log((each.needed_memory_gb or each.peak_memory_gb) * GB)
        taken = np.log(each.peak_memory_gb * GB)
        for cap in caps:
            if needed - _NEAR < np.log(card_bytes(cap)) < taken + _NEAR:
                variant = msgspec.structs.replace(each.configuration, memory_cap_gb=cap)
                if space.contains(variant):
                    found.append(variant)
    return found
