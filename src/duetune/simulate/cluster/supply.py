"""The stock of a cluster over time: what is ours stays, what the market sells comes and goes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from duetune.core.planning import Stock, Tenure
from duetune.errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Mapping

    from duetune.core.market import MarketTrace

_HOUR_S = 3600.0


class Supply:
    """``markets`` say, by name of a partition, how many of its nodes there are and what a GPU
    costs: of a spot partition both, of one on demand the price. A market that ends begins anew.
    """

    def __init__(self, stock: Stock, markets: Mapping[str, MarketTrace] | None = None) -> None:
        self.markets = dict(markets or {})
        known = {each.name: each for each in stock.partitions}
        for name in self.markets:
            if name not in known:
                raise InvalidInput("market", name, f"a partition: {', '.join(known)}")
            if known[name].tenure is Tenure.FIXED:
                raise InvalidInput("market", name, "a partition of spot or on-demand nodes")
        # The shapes are those of all that there ever is.
        self.stock = Stock(
            tuple(msgspec.structs.replace(each, most=each.most_nodes) for each in stock.partitions),
            stock.quotas,
        )
        self._at: dict[tuple[int, ...], Stock] = {}

    def at(self, seconds: float) -> Stock:
        if not self.markets:
            return self.stock
        slots = tuple(
            int(seconds / (trace.slot_hours * _HOUR_S) + 1e-9) % trace.slots
            for trace in self.markets.values()
        )
        if slots not in self._at:
            self._at[slots] = self._stock(dict(zip(self.markets, slots, strict=True)))
        return self._at[slots]

    def _stock(self, slots: Mapping[str, int]) -> Stock:
        partitions = []
        for each in self.stock.partitions:
            if each.name not in slots:
                partitions.append(each)
                continue
            trace = self.markets[each.name]
            slot = trace.slot(slots[each.name])
            spot = each.tenure is Tenure.SPOT
            price = slot.spot_price if spot else slot.on_demand_price
            partitions.append(
                msgspec.structs.replace(
                    each,
                    nodes=min(each.most, slot.available) if spot else each.most,
                    price=price / trace.slot_hours,
                )
            )
        return Stock(tuple(partitions), self.stock.quotas)
