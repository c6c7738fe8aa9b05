"""How different configurations are, and which few of many cover them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from duetune.knowledge.configurations.configuration_table import Described
from duetune.knowledge.measure.surrogate import WORDS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from duetune.knowledge.configurations.configuration import Configurations

    Column = NDArray[np.float64]

_CAP_STEP = 0.5
_FAR = 1e3


def positions(
    configurations: Configurations, words: Mapping[str, Sequence[str]]
) -> NDArray[np.float64]:
    """Where each configuration lies: doublings of sizes, one apart where ``words`` differ."""
    it = Described(configurations)
    columns = [
        np.log2(it.batch),
        np.log2(it.sequence),
        np.log2(it.parameters),
        np.where(it.full, 0.0, 0.5 * np.log2(np.maximum(configurations.number("lora_rank"), 1.0))),
        it.checkpointing,
        _CAP_STEP * (configurations.number("memory_cap_gb") > 0),
    ]
    for field in WORDS:
        # Half of the root of two for each of the two labels that differ makes them one apart.
        columns += [np.sqrt(0.5) * configurations.is_(field, word) for word in words[field]]
    return np.column_stack(columns)


def spread_out(
    places: NDArray[np.float64],
    worth: Column,
    count: int,
    taken: NDArray[np.float64] | None = None,
) -> list[int]:
    """Greedy k-centre: always the one whose worth times the distance to the nearest that is chosen,
    or ``taken`` before, is greatest.
    """
    nearest = np.full(len(places), _FAR)
    for place in () if taken is None else taken:
        nearest = np.minimum(nearest, np.linalg.norm(places - place, axis=1))
    chosen: list[int] = []
    for _ in range(min(count, len(places))):
        gain = worth * nearest
        gain[chosen] = -1.0
        best = int(np.argmax(gain))
        chosen.append(best)
        nearest = np.minimum(nearest, np.linalg.norm(places - places[best], axis=1))
    return chosen
