"""Replays a recorded market: when each slot begins, its prices, and the cost of holding a GPU.

The provider keeps the market that it replays as a CSV file in its folder (``save_market``).
"""

from __future__ import annotations

import math
import secrets
from datetime import UTC, datetime
from hashlib import sha256
from typing import TYPE_CHECKING

import numpy as np

from duetune.core.fleet import MarketReport, NodeKind
from duetune.core.market import MarketTrace
from duetune.errors import InvalidInput
from duetune.market.traces import save_trace

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from duetune.core.market import Slot


class MarketReplay:
    """The first pool of ``trace``, replayed from ``first_slot`` on, which begins at ``began``.

    - ``first_index``: the number of that first slot in the market feed.
    - ``wrap``: start the trace again after its end; otherwise its last slot repeats.

    Methods count slots from 0 at the first slot replayed. Times are market seconds.
    """

    def __init__(
        self,
        trace: MarketTrace,
        *,
        began: float,
        first_slot: int = 0,
        first_index: int | None = None,
        wrap: bool = False,
    ) -> None:
        if not 0 <= first_slot < trace.slots:
            allowed = f"from 0 to {trace.slots - 1}, the last slot of {trace.name!r}"
            raise InvalidInput("first_slot", first_slot, allowed)
        self.trace = trace.pool()
        self.slot_s = trace.slot_hours * 3600
        self.began = began
        self._first_slot = first_slot
        self._first_index = first_slot if first_index is None else first_index
        self._wrap = wrap
        self._price = {
            NodeKind.SPOT: self.trace.spot_price[0],
            NodeKind.ON_DEMAND: self.trace.on_demand_price[0],
        }
        # The cost of one GPU from the beginning of the trace to the beginning of each slot.
        self._paid = {kind: _running_sum(price) for kind, price in self._price.items()}

    def slots_since(self, moment: float) -> int:
        """Return the number of the slot at ``moment``."""
        return math.floor((moment - self.began) / self.slot_s)

    def begins(self, number: int) -> float:
        """Return when slot ``number`` begins."""
        return self.began + number * self.slot_s

    def slot(self, number: int) -> Slot:
        """Return the market in slot ``number``."""
        return self.trace.slot(self._column(number))

    def hourly(self, kind: NodeKind, number: int) -> float:
        """Return the price in slot ``number`` in dollars per GPU-hour."""
        return float(self._price[kind][self._column(number)]) / self.trace.slot_hours

    def cost(self, kind: NodeKind, start: float, stop: float) -> float:
        """Return the cost of one GPU from ``start`` to ``stop`` in dollars.

        The cost never falls when ``stop`` grows.
        """
        return max(0.0, self._cost_until(kind, stop) - self._cost_until(kind, start))

    def report(self, moment: float) -> MarketReport:
        """Return the market at ``moment`` as a feed reports it."""
        number = self.slots_since(moment)
        return MarketReport(
            at=moment,
            index=self._first_index + number,
            slot_began=self.begins(number),
            slot_s=self.slot_s,
            slot=self.slot(number),
        )

    def history(self, moment: float, slots: int) -> MarketTrace | None:
        """Return at most ``slots`` slots that ended by ``moment``, oldest first; None if none."""
        number = self.slots_since(moment)
        count = min(slots, number + self._first_slot)
        if count <= 0:
            return None
        columns = [self._column(past) for past in range(number - count, number)]
        return MarketTrace(
            spot_price=self.trace.spot_price[:, columns],
            available=self.trace.available[:, columns],
            on_demand_price=self.trace.on_demand_price[:, columns],
            slot_hours=self.trace.slot_hours,
            pools=self.trace.pools,
            start=datetime.fromtimestamp(self.begins(number - count), tz=UTC),
            name=self.trace.name,
        )

    def _column(self, number: int) -> int:
        place = self._first_slot + number
        last = self.trace.slots - 1
        return place % self.trace.slots if self._wrap else min(place, last)

    def _cost_until(self, kind: NodeKind, moment: float) -> float:
        elapsed = (moment - self.began) / self.slot_s
        number = math.floor(elapsed)
        share = elapsed - number
        place = self._first_slot + number
        paid, price, slots = self._paid[kind], self._price[kind], self.trace.slots
        if place < slots:
            return float(paid[place] + share * price[place])
        if self._wrap:
            rounds, rest = divmod(place, slots)
            return float(rounds * paid[slots] + paid[rest] + share * price[rest])
        return float(paid[slots] + (place - slots + share) * price[slots - 1])


def save_market(folder: Path, market: MarketTrace) -> str:
    """Save the first pool of a market in ``folder`` and return the digest of the file."""
    draft = folder / f"draft-{secrets.token_hex(8)}.csv"
    save_trace(market.pool(), draft)
    digest = sha256(draft.read_bytes()).hexdigest()[:16]
    draft.rename(market_file(folder, digest))
    return digest


def market_file(folder: Path, digest: str) -> Path:
    """Return the file in which ``save_market`` has saved the market with this digest."""
    return folder / f"market-{digest}.csv"


def _running_sum(price: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.concatenate(([0.0], np.cumsum(price)))
