"""The market as a job has observed it, rebuilt from its events."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from duetune.core.decision import Seen

if TYPE_CHECKING:
    from duetune.core.events import Submitted
    from duetune.core.market import Slot


class Watched(msgspec.Struct):
    """The market as a job observed it, with one entry per slot, counted from 1.

    A slot without an observation repeats the slot before it. Slots before the first observation, in
    slot ``first``, repeat that one. A later observation of the same slot replaces the earlier one.
    """

    prices: list[float] = msgspec.field(default_factory=list)
    counts: list[int] = msgspec.field(default_factory=list)
    first: int = 0

    def look(self, slot: int, market: Slot) -> None:
        """Add the market of ``slot``; called with every observation when it takes effect."""
        if not slot > self.first > 0:
            self.first = slot
            self.prices[:slot] = [market.spot_price] * slot
            self.counts[:slot] = [market.available] * slot
            return
        missed = slot - 1 - len(self.prices)
        self.prices += self.prices[-1:] * missed
        self.counts += self.counts[-1:] * missed
        self.prices[slot - 1 : slot] = [market.spot_price]
        self.counts[slot - 1 : slot] = [market.available]


def highest_price(submitted: Submitted) -> float:
    """Return the highest spot price that the job pays, in dollars per GPU and slot."""
    if submitted.max_price is None:
        return math.inf
    return submitted.max_price * submitted.slot_s / 3600


def seen_by(submitted: Submitted, watched: Watched, slot: int, market: Slot) -> Seen:
    """Return the market before the job and up to ``slot``, whose market is ``market``.

    Slots with a price above the job's highest price count as having no spot GPU.
    """
    past, before = submitted.past, slot - 1
    first = len(past.spot_price)
    prices, counts = np.empty(first + slot), np.empty(first + slot, dtype=np.int64)
    for column, old, seen, now in (
        (prices, past.prices, watched.prices, market.spot_price),
        (counts, past.counts, watched.counts, market.available),
    ):
        known = min(before, len(seen))
        column[:first] = old
        column[first : first + known] = seen[:known]
        column[first + known :] = seen[-1] if 0 < known < before else now
        column[-1] = now
    counts[prices > highest_price(submitted)] = 0
    return Seen(spot_price=prices, available=counts)
