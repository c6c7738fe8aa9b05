"""The forecasters with a name: which models they are made of, and how these are calibrated.

``SeriesForecaster`` makes a forecaster of the market from a model of its prices and one of its
counts. ``forecast_source`` chooses by name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from duetune.core.decision import Forecast, Spread
from duetune.errors import InvalidInput
from duetune.market.forecast.boosted import BoostedCounts, BoostedPrices, BoostedQuantiles
from duetune.market.forecast.calibration import RATE, CalibratedCounts, CalibratedPrices
from duetune.market.forecast.combination import CombinedCounts, CombinedPrices
from duetune.market.forecast.distribution import (
    LEVELS,
    PLACES,
    Distribution,
    PastSeries,
    count_means,
    count_quantiles,
    draw_paths,
)
from duetune.market.forecast.empirical import (
    CountErrors,
    Last,
    Momentum,
    PriceErrors,
    Season,
    SeasonStep,
)
from duetune.market.forecast.markov import SemiMarkov, UsualCounts
from duetune.market.forecast.noisy_oracle import PRICE_CEILING
from duetune.market.forecast.simple import LastValue, SeasonalNaive, checked_horizon, observed
from duetune.market.forecast.statistical import Arima, Ets

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from duetune.core.decision import Paths
    from duetune.core.market import Slot
    from duetune.core.ports import Forecaster
    from duetune.market.forecast.distribution import PointModel, SeriesModel


MOST_COUNTED = 512
"""Larger counts are cut to this one: memory and time grow with the square of the count."""


class SeriesForecaster:
    """A forecaster of the market, causal if its models are.

    Its plan is the medians, or the forecast of ``point`` if given. ``observe`` also takes what
    sister pools (for example other zones of the same GPU) have now: always the same pools in the
    same order, or none.
    """

    def __init__(
        self, prices: SeriesModel, counts: SeriesModel, *, point: Forecaster | None = None
    ) -> None:
        self._prices, self._counts, self._point = prices, counts, point
        self._past = PastSeries()
        self._last: Slot | None = None
        self._lowest = np.inf

    def observe(self, slot: Slot, sisters: Sequence[Slot] = ()) -> None:
        """Learn from a slot and from sister pools at the same time; called once per slot."""
        self._last = slot
        self._lowest = min(self._lowest, slot.spot_price)
        self._past.observe(slot)
        self._prices.observe(slot.spot_price, [sister.spot_price for sister in sisters])
        self._counts.observe(_counted(slot), [_counted(sister) for sister in sisters])
        if self._point is not None:
            self._point.observe(slot)

    def forecast(self, horizon: int) -> Forecast:
        """Return the next ``horizon`` slots with mean counts and quantiles."""
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
        """Return prices up to 1.5 times on-demand, and counts up to the most observed."""
        checked_horizon(horizon)
        observed(self._last)
        prices = np.clip(self._prices.predict(horizon), 0.0, self._ceiling())
        return Distribution(
            prices=np.maximum.accumulate(prices, axis=1), counts=self._counts.predict(horizon)
        )

    def draw(self, horizon: int, count: int, random: np.random.Generator) -> Paths:
        """Return ``count`` futures; the same generator gives the same futures."""
        if count < 0:
            raise InvalidInput("count", count, "a number of futures, zero or more")
        return draw_paths(self.distribution(horizon), self._past, count, random)

    def _ceiling(self) -> float:
        last = observed(self._last)
        return max(PRICE_CEILING * last.on_demand_price, last.spot_price)


def _counted(slot: Slot) -> float:
    return float(min(slot.available, MOST_COUNTED))


HOURLY_RATE = 0.01
"""Calibration rate of a combination, which needs little: half of the usual rate in half-hours."""
RECENT_SLOTS = 100.0


def slots_per_day(slot_hours: float) -> int:
    """Return the number of slots in a day, at least 1."""
    return max(1, round(24 / slot_hours))


def persistence_prices() -> SeriesModel:
    """Return the control for prices: the last value with its past errors."""
    return CalibratedPrices(PriceErrors(Last()))


def persistence_counts(slot_hours: float) -> SeriesModel:
    """Return the control for counts: the last value with its past errors."""
    return CalibratedCounts(CountErrors(Last()), slot_hours=slot_hours)


def persistence(slot_hours: float) -> SeriesForecaster:
    """Return ``LastValue`` with quantiles."""
    return SeriesForecaster(persistence_prices(), persistence_counts(slot_hours), point=LastValue())


def seasonal(slot_hours: float, period_slots: int) -> SeriesForecaster:
    """Return ``SeasonalNaive`` with quantiles."""
    return SeriesForecaster(
        CalibratedPrices(PriceErrors(Season(period_slots))),
        CalibratedCounts(CountErrors(Season(period_slots)), slot_hours=slot_hours),
        point=SeasonalNaive(period_slots),
    )


def arima(slot_hours: float) -> SeriesForecaster:
    """Return ARIMA for both series, with the quantiles of its past errors."""
    return _with_errors(Arima, slot_hours)


def ets(slot_hours: float) -> SeriesForecaster:
    """Return exponential smoothing for both series, with the quantiles of its past errors."""
    return _with_errors(Ets, slot_hours)


def markov(slot_hours: float) -> SeriesForecaster:
    """Return the semi-Markov model for counts, and momentum for prices."""
    return SeriesForecaster(
        momentum_prices(), CalibratedCounts(SemiMarkov(), slot_hours=slot_hours)
    )


def boosted(slot_hours: float) -> SeriesForecaster:
    """Return gradient-boosted quantiles for both series."""
    day = slots_per_day(slot_hours)
    return SeriesForecaster(
        CalibratedPrices(BoostedPrices(BoostedQuantiles(day))),
        CalibratedCounts(BoostedCounts(BoostedQuantiles(day)), slot_hours=slot_hours),
    )


def combined(slot_hours: float) -> SeriesForecaster:
    """Return several models for each series, weighted by how well each did lately."""
    return SeriesForecaster(combined_prices(slot_hours), combined_counts(slot_hours))


def momentum_prices() -> SeriesModel:
    """Return the last price plus the rest of its last step, with scaled past errors."""
    return CalibratedPrices(PriceErrors(Momentum(), scaled=True))


def combined_prices(slot_hours: float) -> SeriesModel:
    """Return the weighted models of prices; persistence is the first."""
    day = slots_per_day(slot_hours)
    members: tuple[SeriesModel, ...] = (
        persistence_prices(),
        PriceErrors(Last(), scaled=True),
        PriceErrors(Momentum(), scaled=True),
        PriceErrors(Season(day)),
        PriceErrors(SeasonStep(day), scaled=True),
    )
    return CalibratedPrices(CombinedPrices(members), rate=RATE / 2)


def combined_counts(slot_hours: float) -> SeriesModel:
    """Return the weighted models of counts; persistence is the first."""
    day = slots_per_day(slot_hours)
    members: tuple[SeriesModel, ...] = (
        CalibratedCounts(CountErrors(Last()), doubt=0.0),
        SemiMarkov(),
        UsualCounts(day),
        UsualCounts(0, memory=RECENT_SLOTS),
        CountErrors(Season(day)),
    )
    rate = min(RATE, HOURLY_RATE * slot_hours)
    return CalibratedCounts(CombinedCounts(members), rate=rate, slot_hours=slot_hours)


def _with_errors(model: Callable[[], PointModel], slot_hours: float) -> SeriesForecaster:
    """Return a point model for both series, with the quantiles of its past errors."""
    return SeriesForecaster(
        CalibratedPrices(PriceErrors(model())),
        CalibratedCounts(CountErrors(model()), slot_hours=slot_hours),
    )
