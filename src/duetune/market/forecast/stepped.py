"""Forecasts of any forecaster that only knows what it is shown, made by stepping it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from duetune.market.forecast.forecast_source import ForecastSource
from duetune.market.forecast.forecast_table import table_by_steps
from duetune.market.forecast.simple import checked_start

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np
    from numpy.typing import NDArray

    from duetune.core.market import MarketTrace
    from duetune.core.ports import Forecaster


class SteppedForecast(ForecastSource, frozen=True, kw_only=True):
    """A source whose forecaster is made by ``make``, given the hours of a slot.

    ``text`` is its name. Used for forecasters that other packages register.
    """

    text: str
    make: Callable[[float], Forecaster]

    def __str__(self) -> str:
        """Return the name by which the registry makes it again."""
        return self.text

    def forecaster(
        self,
        trace: MarketTrace,
        start: int = 0,
        *,
        spread: bool = False,
    ) -> Forecaster:
        """Return one that has seen the slots before ``start`` of the trace."""
        made = self.causal(trace.slot_hours, spread=spread)
        for slot in range(checked_start(start)):
            made.observe(trace.slot(min(slot, trace.slots - 1)))
        return made

    def causal(self, slot_hours: float, *, spread: bool = False) -> Forecaster:  # noqa: ARG002
        """Return one that has seen nothing yet; it alone decides how sure it says it is."""
        return self.make(slot_hours)

    def forecasts_made(
        self, trace: MarketTrace, now: NDArray[np.int64], horizon: int
    ) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """Return the forecasts made in slots ``now``: the forecaster is shown all before them."""
        rows = int(now.max(initial=-1)) + 1
        price, available = table_by_steps(self.forecaster(trace), trace, 0, rows, horizon)
        return price[now], available[now]
