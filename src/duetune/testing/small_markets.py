"""Small inputs for tests: constant, written or random markets, and the view of one slot."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from duetune.core.decision import Allocation, Forecast, Outlook, View
from duetune.core.market import MarketTrace, Slot

if TYPE_CHECKING:
    from collections.abc import Sequence

    from duetune.core.job import Job


def constant_market(
    slots: int = 96,
    *,
    spot_price: float = 0.4,
    available: int = 8,
    on_demand_price: float = 1.0,
) -> MarketTrace:
    """Return a market in which every slot is the same."""
    return MarketTrace.single(
        np.full(slots, spot_price), np.full(slots, available), on_demand_price, name="constant"
    )


def market_of(
    spot_price: Sequence[float],
    available: Sequence[int],
    on_demand_price: Sequence[float] | float = 1.0,
) -> MarketTrace:
    """Return a market with one slot per number; prices are in dollars per GPU and slot."""
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
    """Return a market with independent prices and counts in every slot.

    It is rougher than any real market.
    """
    random = np.random.default_rng(seed)
    return MarketTrace.single(
        np.round(on_demand_price * random.uniform(0.05, 1.2, slots), 3),
        random.integers(0, most + 1, slots),
        on_demand_price,
        name=f"random-{seed}",
    )


def view_of(
    job: Job,
    *,
    slot: int = 1,
    progress: float = 0.0,
    held: tuple[int, int] = (0, 0),
    spot_price: float = 0.4,
    available: int = 8,
    on_demand_price: float = 1.0,
    ahead: Sequence[tuple[float, int]] = (),
    outlook: Outlook | None = None,
    spent: float = 0.0,
    memo: tuple[float, ...] = (),
) -> View:
    """Return what a policy sees in one slot, without a simulation around it.

    ``held`` is (spot, on-demand). ``ahead`` is the forecast: (spot price, available) per slot.
    """
    return View(
        job=job,
        slot=slot,
        progress=progress,
        held=Allocation(spot=held[0], on_demand=held[1]),
        market=Slot(spot_price=spot_price, available=available, on_demand_price=on_demand_price),
        forecast=Forecast(
            spot_price=np.array([price for price, _ in ahead], dtype=np.float64),
            available=np.array([count for _, count in ahead], dtype=np.int64),
        ),
        outlook=Outlook() if outlook is None else outlook,
        spent=spent,
        memo=memo,
    )
