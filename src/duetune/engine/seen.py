"""What a job has seen of the market, from its journal."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from duetune.core.decision import Seen

if TYPE_CHECKING:
    from duetune.core.events import Submitted
    from duetune.core.market import Slot
    from duetune.engine.state import JobState


def highest_price(submitted: Submitted) -> float:
    """Spot above it is not there for the job; dollars per GPU and slot."""
    if submitted.max_price is None:
        return math.inf
    return submitted.max_price * submitted.slot_s / 3600


def seen_by(state: JobState, slot: int, market: Slot) -> Seen:
    """The past before the job, then every slot to ``slot``, whose market is ``market``.

    A slot in which nobody looked is like the one before.
    """
    past = state.submitted.past
    price, available = list(past.spot_price), list(past.available)
    last = state.watched[min(state.watched)] if state.watched else market
    for place in range(1, slot):
        last = state.watched.get(place, last)
        price.append(last.spot_price)
        available.append(last.available)
    prices = np.array([*price, market.spot_price], dtype=np.float64)
    counts = np.array([*available, market.available], dtype=np.int64)
    counts[prices > highest_price(state.submitted)] = 0
    return Seen(spot_price=prices, available=counts)
