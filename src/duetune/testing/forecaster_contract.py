"""What every forecaster must do, built in or your own."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from duetune.core.ports import Forecaster
from duetune.testing.markets import constant_market, random_market

if TYPE_CHECKING:
    from collections.abc import Iterator

    from duetune.core.decision import Forecast
    from duetune.core.market import MarketTrace


class ForecasterContract:
    """Subclass it and give ``make``. For forecasters that cannot know the future, subclass
    ``CausalForecasterContract`` instead, which asks for that too.
    """

    def make(self, trace: MarketTrace) -> Forecaster:
        """A fresh forecaster whose first observed slot will be slot 0 of ``trace``."""
        raise NotImplementedError

    def markets(self) -> Iterator[MarketTrace]:
        yield random_market(1, 60)
        yield constant_market(60)
        yield constant_market(60, available=0, spot_price=0.0)

    def after(self, trace: MarketTrace, slots: int) -> Forecaster:
        """A forecaster that has observed the first ``slots`` slots."""
        forecaster = self.make(trace)
        for index in range(slots):
            forecaster.observe(trace.slot(index))
        return forecaster

    def test_it_is_a_forecaster(self) -> None:
        assert isinstance(self.make(next(self.markets())), Forecaster)

    def test_a_forecast_has_an_entry_for_every_slot_of_the_horizon(self) -> None:
        for trace in self.markets():
            for seen in (1, 2, 30, 59):
                forecaster = self.after(trace, seen)
                for horizon in (0, 1, 5, 24):
                    forecast = forecaster.forecast(horizon)
                    assert forecast.spot_price.shape == (horizon,)
                    assert forecast.available.shape == (horizon,)
                    assert forecast.spot_price.dtype == np.float64
                    assert forecast.available.dtype == np.int64

    def test_prices_are_finite_and_nothing_is_negative(self) -> None:
        for trace in self.markets():
            for seen in (1, 2, 30, 59):
                forecast = self.after(trace, seen).forecast(24)
                assert np.isfinite(forecast.spot_price).all()
                assert (forecast.spot_price >= 0).all()
                assert (forecast.available >= 0).all()

    def test_asking_twice_changes_nothing(self) -> None:
        for trace in self.markets():
            forecaster = self.after(trace, 10)
            assert _same(forecaster.forecast(8), forecaster.forecast(8))

    def test_a_longer_horizon_only_adds_slots(self) -> None:
        for trace in self.markets():
            forecaster = self.after(trace, 10)
            longer, shorter = forecaster.forecast(12), forecaster.forecast(4)
            assert longer.spot_price[:4].tolist() == shorter.spot_price.tolist()
            assert longer.available[:4].tolist() == shorter.available.tolist()

    def test_the_same_observations_give_the_same_forecast(self) -> None:
        for trace in self.markets():
            assert _same(self.after(trace, 20).forecast(8), self.after(trace, 20).forecast(8))

    def test_a_forecast_stays_what_it_was_when_time_goes_on(self) -> None:
        for trace in self.markets():
            forecaster = self.after(trace, 20)
            forecast = forecaster.forecast(8)
            price, available = forecast.spot_price.tolist(), forecast.available.tolist()
            for index in range(20, 50):
                forecaster.observe(trace.slot(index))
                forecaster.forecast(8)
            assert forecast.spot_price.tolist() == price
            assert forecast.available.tolist() == available


class CausalForecasterContract(ForecasterContract):
    """For every forecaster but the oracles."""

    def test_the_future_does_not_change_the_forecast(self) -> None:
        trace, other = random_market(1, 60), random_market(2, 60)
        for seen in (1, 10, 30):
            forecast = self.after(trace, seen).forecast(8)
            elsewhere = self.make(other)
            for index in range(seen):
                elsewhere.observe(trace.slot(index))
            assert _same(forecast, elsewhere.forecast(8))


def _same(left: Forecast, right: Forecast) -> bool:
    return bool(
        np.array_equal(left.spot_price, right.spot_price)
        and np.array_equal(left.available, right.available)
    )
