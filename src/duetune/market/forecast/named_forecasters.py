"""The forecasters that have a name: which models they are made of, and how these are calibrated."""

from __future__ import annotations

from typing import TYPE_CHECKING

from duetune.market.forecast.boosted import BoostedCounts, BoostedPrices, BoostedQuantiles
from duetune.market.forecast.calibration import RATE, CalibratedCounts, CalibratedPrices
from duetune.market.forecast.combination import CombinedCounts, CombinedPrices
from duetune.market.forecast.empirical import CountErrors, Last, Momentum, PriceErrors, Season
from duetune.market.forecast.markov import SemiMarkov
from duetune.market.forecast.series import SeriesForecaster
from duetune.market.forecast.simple import LastValue, SeasonalNaive
from duetune.market.forecast.statistical import Arima, Ets
from duetune.market.forecast.typical_availability import UsualCounts

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from duetune.market.forecast.distribution import PointModel, SeriesModel

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


def combined_prices(more: Sequence[SeriesModel] = ()) -> SeriesModel:
    members: tuple[SeriesModel, ...] = (
        persistence_prices(),
        PriceErrors(Last(), scaled=True),
        PriceErrors(Momentum(), scaled=True),
        *more,
    )
    return CalibratedPrices(CombinedPrices(members), rate=RATE / 2)


def combined_counts(slot_hours: float, more: Sequence[SeriesModel] = ()) -> SeriesModel:
    day = slots_per_day(slot_hours)
    members: tuple[SeriesModel, ...] = (
        CalibratedCounts(CountErrors(Last()), doubt=0.0),
        SemiMarkov(),
        UsualCounts(day),
        UsualCounts(0, memory=RECENT_SLOTS),
        CountErrors(Season(day)),
        *more,
    )
    rate = min(RATE, HOURLY_RATE * slot_hours)
    return CalibratedCounts(CombinedCounts(members), rate=rate, slot_hours=slot_hours)


def _with_errors(model: Callable[[], PointModel], slot_hours: float) -> SeriesForecaster:
    return SeriesForecaster(
        CalibratedPrices(PriceErrors(model())),
        CalibratedCounts(CountErrors(model()), slot_hours=slot_hours),
    )
