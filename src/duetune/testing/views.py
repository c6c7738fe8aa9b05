"""One slot by hand: what a policy sees, without a simulation around it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from duetune.core.decision import Allocation, Forecast, Outlook, View
from duetune.core.market import Slot

if TYPE_CHECKING:
    from collections.abc import Sequence

    from duetune.core.job import Job


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
    """``held`` is (spot, on-demand); ``ahead`` the forecast, (spot price, available) per slot."""
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
