"""A forecaster of the market, made of a model of its prices and one of its counts."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from duetune.core.decision import Forecast, Spread
from duetune.errors import InvalidInput
from duetune.market.forecast.distribution import (
    LEVELS,
    PLACES,
    Distribution,
    count_means,
    count_quantiles,
)
from duetune.market.forecast.noisy_oracle import PRICE_CEILING
from duetune.market.forecast.sample_paths import PastSeries, draw_paths
from duetune.market.forecast.simple import checked_horizon, observed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from duetune.core.decision import Paths
    from duetune.core.market import Slot
    from duetune.core.ports import Forecaster
    from duetune.market.forecast.distribution import SeriesModel


MOST_COUNTED = 512
"""More GPUs than this count as this many: memory and time grow with the square of the count."""


class SeriesForecaster:
    """The plan is the medians, or what ``point`` says. Causal if the models are.

    ``observe`` may be told what sister pools (other zones of the same GPU, say) have now: always
    the same ones in the same order, or none.
    """

    def __init__(
        self, prices: SeriesModel, counts: SeriesModel, *, point: Forecaster | None = None
    ) -> None:
        self._prices, self._counts, self._point = prices, counts, point
        self._past = PastSeries()
        self._last: Slot | None = None
        self._lowest = np.inf

    def observe(self, slot: Slot, sisters: Sequence[Slot] = ()) -> None:
        self._last = slot
        self._lowest = min(self._lowest, slot.spot_price)
        self._past.observe(slot)
        self._prices.observe(slot.spot_price, [sister.spot_price for sister in sisters])
        self._counts.observe(_counted(slot), [_counted(sister) for sister in sisters])
        if self._point is not None:
            self._point.observe(slot)

    def forecast(self, horizon: int) -> Forecast:
        known = self.distribution(horizon)
        prices = known.prices[:, PLACES].T
        counts = count_quantiles(known.counts, LEVELS)
        middle = LEVELS.index(0.5)
        plan = (
            Forecast(
                spot_price=np.maximum(prices[middle], min(self._lowest, self._ceiling())),
                available=counts[middle].astype(np.int64),
            )
            if self._point is None
            else self._point.forecast(horizon)
        )
        return Forecast(
            spot_price=plan.spot_price,
            available=plan.available,
            mean_available=count_means(known.counts),
            spread=Spread(levels=LEVELS, spot_price=np.ascontiguousarray(prices), available=counts),
        )

    def distribution(self, horizon: int) -> Distribution:
        """Prices from zero to 1.5 times on-demand, counts from none to the most seen."""
        checked_horizon(horizon)
        observed(self._last)
        prices = np.clip(self._prices.predict(horizon), 0.0, self._ceiling())
        return Distribution(
            prices=np.maximum.accumulate(prices, axis=1), counts=self._counts.predict(horizon)
        )

    def draw(self, horizon: int, count: int, random: np.random.Generator) -> Paths:
        """``count`` futures; the same generator, the same futures."""
        if count < 0:
            raise InvalidInput("count", count, "a number of futures, zero or more")
        return draw_paths(self.distribution(horizon), self._past, count, random)

    def _ceiling(self) -> float:
        last = observed(self._last)
        return max(PRICE_CEILING * last.on_demand_price, last.spot_price)


def _counted(slot: Slot) -> float:
    return float(min(slot.available, MOST_COUNTED))
