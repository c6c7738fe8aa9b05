"""Small markets: constant, written out by hand, or drawn at random."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from duetune.core.market import MarketTrace

if TYPE_CHECKING:
    from collections.abc import Sequence


def constant_market(
    slots: int = 96,
    *,
    spot_price: float = 0.4,
    available: int = 8,
    on_demand_price: float = 1.0,
) -> MarketTrace:
    """Every slot is the same."""
    return MarketTrace.single(
        np.full(slots, spot_price), np.full(slots, available), on_demand_price, name="constant"
    )


def market_of(
    spot_price: Sequence[float],
    available: Sequence[int],
    on_demand_price: Sequence[float] | float = 1.0,
) -> MarketTrace:
    """One slot per number."""
    return MarketTrace.single(
        np.array(spot_price, dtype=np.float64),
        np.array(available, dtype=np.int64),
        np.array(on_demand_price, dtype=np.float64),
        name="by hand",
    )


def random_market(
    seed: int,
    slots: int = 96,
    *,
    most: int = 8,
    on_demand_price: float = 1.0,
) -> MarketTrace:
    """Unrelated prices and counts in every slot: rougher than any market there is."""
    random = np.random.default_rng(seed)
    return MarketTrace.single(
        np.round(on_demand_price * random.uniform(0.05, 1.2, slots), 3),
        random.integers(0, most + 1, slots),
        on_demand_price,
        name=f"random-{seed}",
    )
