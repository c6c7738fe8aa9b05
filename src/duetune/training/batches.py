"""Decides which examples belong to which step: a pure function of seed and step.

Each pass over the data (epoch) has its own random order. All passes together form one sequence, and
each step takes the next ``batch_rows`` examples of it. The number of members has no influence, so a
run that grew, shrank or restarted sees the same data in the same order.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

import msgspec
import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

# Mixed into the seed, so that order, held-out rows and dropout are drawn independently.
_ORDER, _HELD_OUT, _DROPOUT = 1, 2, 3


class BatchPlan(msgspec.Struct, frozen=True):
    """The split of ``rows`` examples into steps of ``batch_rows``."""

    rows: int
    batch_rows: int
    seed: int

    def rows_of(self, step: int) -> NDArray[np.int64]:
        """Return the examples of a step, in the order in which they are used."""
        places = np.arange(step * self.batch_rows, (step + 1) * self.batch_rows, dtype=np.int64)
        passes, offsets = np.divmod(places, self.rows)
        chosen = np.empty(self.batch_rows, dtype=np.int64)
        for number in np.unique(passes):
            here = passes == number
            chosen[here] = _order(self.seed, int(number), self.rows)[offsets[here]]
        return chosen


def held_out(rows: int, fraction: float, most: int, seed: int) -> NDArray[np.int64]:
    """Return the examples for evaluation, which are never trained on: at most half of all."""
    count = min(int(rows * fraction), most, rows // 2)
    random = np.random.default_rng([seed, _HELD_OUT])
    return np.sort(random.permutation(rows)[:count])


def dropout_seed(seed: int, step: int, place: int) -> int:
    """Return the dropout seed of a microbatch by its first place in the step, on any member."""
    state = np.random.SeedSequence([seed, _DROPOUT, step, place]).generate_state(2, np.uint32)
    return int(state[0]) << 31 ^ int(state[1])


@lru_cache(maxsize=4)
def _order(seed: int, number: int, rows: int) -> NDArray[np.int64]:
    return np.random.default_rng([seed, _ORDER, number]).permutation(rows).astype(np.int64)
