"""A recorded market over time: which slot is when, and what holding a GPU costs in between."""

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
    """Slot ``first_slot`` of ``trace`` begins at ``began``, the next one ``slot_s`` later.

    ``first_index`` is what the feed calls that first slot; its count goes on where the trace ends,
    and the trace repeats its last slot, or itself (``wrap``). Only the first pool is replayed.
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
        # What one GPU held from the beginning of the trace to the beginning of a slot costs.
        self._paid = {kind: _running_sum(price) for kind, price in self._price.items()}

    def slots_since(self, moment: float) -> int:
        """How many slots have begun after the first one by ``moment``."""
        return math.floor((moment - self.began) / self.slot_s)

    def begins(self, number: int) -> float:
        """When slot ``number`` begins, counted from 0 at the first one replayed."""
        return self.began + number * self.slot_s

    def slot(self, number: int) -> Slot:
        return self.trace.slot(self._column(number))

    def hourly(self, kind: NodeKind, number: int) -> float:
        """Dollars per GPU and hour in slot ``number``."""
        return float(self._price[kind][self._column(number)]) / self.trace.slot_hours

    def cost(self, kind: NodeKind, start: float, stop: float) -> float:
        """Dollars for one GPU held from ``start`` to ``stop``; never falls as ``stop`` grows."""
        return max(0.0, self._cost_until(kind, stop) - self._cost_until(kind, start))

    def report(self, moment: float) -> MarketReport:
        number = self.slots_since(moment)
        return MarketReport(
            at=moment,
            index=self._first_index + number,
            slot_began=self.begins(number),
            slot_s=self.slot_s,
            slot=self.slot(number),
        )

    def history(self, moment: float, slots: int) -> MarketTrace | None:
        """At most ``slots`` slots that ended by ``moment``, oldest first."""
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
    """Keeps the first pool of a market in the folder; its digest."""
    draft = folder / f"draft-{secrets.token_hex(8)}.csv"
    save_trace(market.pool(), draft)
    digest = sha256(draft.read_bytes()).hexdigest()[:16]
    draft.rename(market_file(folder, digest))
    return digest


def market_file(folder: Path, digest: str) -> Path:
    return folder / f"market-{digest}.csv"


def _running_sum(price: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.concatenate(([0.0], np.cumsum(price)))
