"""Measures some configurations again, in another process, to learn how much measurements vary."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import msgspec

from duetune.knowledge.measure.choice import fitting
from duetune.knowledge.observation import RunOutcome

if TYPE_CHECKING:
    from collections.abc import Sequence
    from collections.abc import Set as AbstractSet

    import numpy as np

    from duetune.knowledge.measure.choice import Chooser, RemainingBudget
    from duetune.knowledge.measure.trials import Batch
    from duetune.knowledge.observation import Observation


class Repeating:
    """Adds known configurations to the batches of another chooser.

    ``share`` of each batch are configurations that an earlier batch or campaign measured. Every
    batch has its own process, so a repeat shares nothing with the first run but the machine.
    """

    def __init__(self, chooser: Chooser, share: float, rng: np.random.Generator) -> None:
        self._chooser = chooser
        self._share = share
        self._rng = rng

    def choose(
        self, observations: Sequence[Observation], taken: AbstractSet[str], room: RemainingBudget
    ) -> Batch | None:
        """Return the other chooser's next batch with repeats, as far as time is left."""
        new_ones = 1.0 - self._share
        part = msgspec.structs.replace(
            room, seconds=new_ones * room.seconds, count=max(1, round(new_ones * room.count))
        )
        batch = self._chooser.choose(observations, taken, part)
        if batch is None:
            return None
        new = {each.key for each in batch.configurations}
        times = Counter(each.configuration.key for each in observations)
        known = {
            each.configuration.key: each
            for each in observations
            if each.outcome is RunOutcome.VALID
            and each.configuration.model == batch.model
            and each.configuration.key not in new
        }
        order = [list(known.values())[int(each)] for each in self._rng.permutation(len(known))]
        order.sort(key=lambda each: times[each.configuration.key])
        count = round(self._share / (1.0 - self._share) * len(batch.configurations))
        # Repeats come first: what does not fit into the rest of the time is cut from the end.
        first = order[:count]
        longer = msgspec.structs.replace(
            batch,
            configurations=(*(each.configuration for each in first), *batch.configurations),
            seconds=(*(each.runtime_s or 1.0 for each in first), *batch.seconds),
        )
        return fitting(longer, room)
