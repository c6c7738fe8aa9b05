"""Forecasts of many slots in one table; batches of simulated jobs read it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import numpy as np
from numpy.typing import NDArray

from duetune.core.decision import Forecast
from duetune.errors import InvalidInput

if TYPE_CHECKING:
    from duetune.core.market import MarketTrace
    from duetune.core.ports import Forecaster


class ForecastTable(msgspec.Struct, frozen=True, eq=False):
    """Row t is the forecast made in trace slot t; column k is about slot t + 1 + k."""

    spot_price: NDArray[np.float64]
    available: NDArray[np.int64]

    def __post_init__(self) -> None:
        if self.spot_price.ndim != 2 or self.spot_price.shape != self.available.shape:
            shapes = (self.spot_price.shape, self.available.shape)
            raise InvalidInput("forecast table", shapes, "two arrays of one shape (slots, horizon)")
        self.spot_price.setflags(write=False)
        self.available.setflags(write=False)

    @property
    def slots(self) -> int:
        """Return the number of rows."""
        return int(self.spot_price.shape[0])

    @property
    def horizon(self) -> int:
        """Return the number of slots ahead."""
        return int(self.spot_price.shape[1])

    def row(self, slot: int, horizon: int) -> Forecast:
        """Return the forecast made in trace slot ``slot``."""
        return Forecast(
            spot_price=self.spot_price[slot, :horizon], available=self.available[slot, :horizon]
        )

    def rows(
        self, start: int, slots: int, horizon: int | None = None
    ) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """Return ``slots`` rows from ``start`` on, C-contiguous; no copy at the full horizon."""
        columns = self.horizon if horizon is None else horizon
        if not 0 <= columns <= self.horizon:
            raise InvalidInput("horizon", horizon, f"at most the {self.horizon} slots drawn")
        if start < 0 or slots < 0 or start + slots > self.slots:
            raise InvalidInput(
                "start, slots", (start, slots), f"rows within the {self.slots} slots of the trace"
            )
        price = self.spot_price[start : start + slots, :columns]
        available = self.available[start : start + slots, :columns]
        return np.ascontiguousarray(price), np.ascontiguousarray(available)


def table_by_steps(
    forecaster: Forecaster, trace: MarketTrace, start: int, slots: int, horizon: int
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Return the forecasts of any forecaster, slowly: observe a slot, forecast, and so on.

    The forecaster must already have seen the slots before ``start`` that it should know. Past its
    end the trace repeats its last slot.
    """
    price = np.empty((slots, horizon), dtype=np.float64)
    available = np.empty((slots, horizon), dtype=np.int64)
    for row in range(slots):
        forecaster.observe(trace.slot(min(start + row, trace.slots - 1)))
        forecast = forecaster.forecast(horizon)
        price[row] = forecast.spot_price
        available[row] = forecast.available
    return price, available
