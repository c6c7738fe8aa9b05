"""The forecasters that have a name: which models they are made of, and how these are calibrated."""

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
from duetune.market.forecast.empirical import CountErrors, Last, Momentum, PriceErrors, Season
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


HOURLY_RATE = 0.01
"""For a combination, which is calibrated nearly by itself: half of the usual rate in half-hours."""
RECENT_SLOTS = 100.0


def slots_per_day(slot_hours: float) -> int:
    return max(1, round(24 / slot_hours))


def persistence_prices() -> SeriesModel:
    """The control."""
    return CalibratedPrices(PriceErrors(Last()))


def persistence_counts(slot_hours: float) -> SeriesModel:
    """The control."""
    return CalibratedCounts(CountErrors(Last()), slot_hours=slot_hours)


def persistence(slot_hours: float) -> SeriesForecaster:
    """``LastValue``, and how sure of it one may be."""
    return SeriesForecaster(persistence_prices(), persistence_counts(slot_hours), point=LastValue())


def seasonal(slot_hours: float, period_slots: int) -> SeriesForecaster:
    """``SeasonalNaive``, and how sure of it one may be."""
    return SeriesForecaster(
        CalibratedPrices(PriceErrors(Season(period_slots))),
        CalibratedCounts(CountErrors(Season(period_slots)), slot_hours=slot_hours),
        point=SeasonalNaive(period_slots),
    )


def arima(slot_hours: float) -> SeriesForecaster:
    return _with_errors(Arima, slot_hours)


def ets(slot_hours: float) -> SeriesForecaster:
    return _with_errors(Ets, slot_hours)


def markov(slot_hours: float) -> SeriesForecaster:
    """Counts by the semi-Markov model; prices, of which it knows nothing, by momentum."""
    return SeriesForecaster(
        momentum_prices(), CalibratedCounts(SemiMarkov(), slot_hours=slot_hours)
    )


def boosted(slot_hours: float) -> SeriesForecaster:
    day = slots_per_day(slot_hours)
    return SeriesForecaster(
        CalibratedPrices(BoostedPrices(BoostedQuantiles(day))),
        CalibratedCounts(BoostedCounts(BoostedQuantiles(day)), slot_hours=slot_hours),
    )


def combined(slot_hours: float) -> SeriesForecaster:
    return SeriesForecaster(combined_prices(), combined_counts(slot_hours))


def momentum_prices() -> SeriesModel:
    return CalibratedPrices(PriceErrors(Momentum(), scaled=True))


def combined_prices() -> SeriesModel:
    members: tuple[SeriesModel, ...] = (
        persistence_prices(),
        PriceErrors(Last(), scaled=True),
        PriceErrors(Momentum(), scaled=True),
    )
    return CalibratedPrices(CombinedPrices(members), rate=RATE / 2)


def combined_counts(slot_hours: float) -> SeriesModel:
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
    return SeriesForecaster(
        CalibratedPrices(PriceErrors(model())),
        CalibratedCounts(CountErrors(model()), slot_hours=slot_hours),
    )
