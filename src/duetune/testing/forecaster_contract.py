"""The conformance suites of forecasters, built in or your own."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from duetune.core.ports import Forecaster
from duetune.market.forecast.distribution import DistributionForecaster
from duetune.testing.small_markets import constant_market, random_market

if TYPE_CHECKING:
    from collections.abc import Iterator

    from duetune.core.decision import Forecast
    from duetune.core.market import MarketTrace


class ForecasterContract:
    """Subclass it and implement ``make``.

    For forecasters that cannot know the future, subclass ``CausalForecasterContract`` instead,
    which also tests for that.
    """

    def make(self, trace: MarketTrace) -> Forecaster:
        """Return a fresh forecaster that will first observe slot 0 of ``trace``."""
        raise NotImplementedError

    def markets(self) -> Iterator[MarketTrace]:
        """Yield ordinary and extreme markets of 60 slots."""
        yield random_market(1, 60)
        yield constant_market(60)
        yield constant_market(60, available=0, spot_price=0.0)

    def after(self, trace: MarketTrace, slots: int) -> Forecaster:
        """Return a forecaster that has observed the first ``slots`` slots."""
        forecaster = self.make(trace)
        for index in range(slots):
            forecaster.observe(trace.slot(index))
        return forecaster

    def stages(self, trace: MarketTrace) -> Iterator[Forecaster]:
        """Yield one forecaster after 1, 2, 30 and 59 slots."""
        forecaster = self.make(trace)
        for index in range(59):
            forecaster.observe(trace.slot(index))
            if index + 1 in {1, 2, 30, 59}:
                yield forecaster

    def test_it_is_a_forecaster(self) -> None:
        """The object implements the ``Forecaster`` port."""
        assert isinstance(self.make(next(self.markets())), Forecaster)

    def test_a_forecast_has_an_entry_for_every_slot_of_the_horizon(self) -> None:
        """Shapes follow the horizon, including 0; types are float64 and int64."""
        for trace in self.markets():
            for forecaster in self.stages(trace):
                for horizon in (0, 1, 5, 24):
                    forecast = forecaster.forecast(horizon)
                    assert forecast.spot_price.shape == (horizon,)
                    assert forecast.available.shape == (horizon,)
                    assert forecast.spot_price.dtype == np.float64
                    assert forecast.available.dtype == np.int64

    def test_prices_are_finite_and_nothing_is_negative(self) -> None:
        """Prices are finite; prices and counts are at least 0."""
        for trace in self.markets():
            for forecaster in self.stages(trace):
                forecast = forecaster.forecast(24)
                assert np.isfinite(forecast.spot_price).all()
                assert (forecast.spot_price >= 0).all()
                assert (forecast.available >= 0).all()

    def test_asking_twice_changes_nothing(self) -> None:
        """``forecast`` does not change the forecaster."""
        for trace in self.markets():
            forecaster = self.after(trace, 10)
            assert _same(forecaster.forecast(8), forecaster.forecast(8))

    def test_a_longer_horizon_only_adds_slots(self) -> None:
        """The first slots do not depend on the horizon."""
        for trace in self.markets():
            forecaster = self.after(trace, 10)
            longer, shorter = forecaster.forecast(12), forecaster.forecast(4)
            assert longer.spot_price[:4].tolist() == shorter.spot_price.tolist()
            assert longer.available[:4].tolist() == shorter.available.tolist()

    def test_the_same_observations_give_the_same_forecast(self) -> None:
        """Forecasts are deterministic."""
        for trace in self.markets():
            assert _same(self.after(trace, 20).forecast(8), self.after(trace, 20).forecast(8))

    def test_a_forecast_stays_what_it_was_when_time_goes_on(self) -> None:
        """Later observations do not change a forecast that was returned."""
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
    """Subclass it for every forecaster that does not know the future."""

    def test_the_future_does_not_change_the_forecast(self) -> None:
        """Forecasts depend on observed slots only."""
        trace, other = random_market(1, 60), random_market(2, 60)
        for seen in (1, 10, 30):
            forecast = self.after(trace, seen).forecast(8)
            elsewhere = self.make(other)
            for index in range(seen):
                elsewhere.observe(trace.slot(index))
            assert _same(forecast, elsewhere.forecast(8))


class DistributionForecasterContract(CausalForecasterContract):
    """Subclass it for forecasters that also give distributions and draw futures."""

    def make(self, trace: MarketTrace) -> DistributionForecaster:
        """Return a fresh forecaster that will first observe slot 0 of ``trace``."""
        raise NotImplementedError

    def seen(self, trace: MarketTrace, slots: int) -> DistributionForecaster:
        """Return a forecaster that has observed the first ``slots`` slots."""
        forecaster = self.after(trace, slots)
        assert isinstance(forecaster, DistributionForecaster)
        return forecaster

    def test_it_tells_distributions(self) -> None:
        """The object is a ``DistributionForecaster``."""
        assert isinstance(self.make(next(self.markets())), DistributionForecaster)

    def test_quantiles_rise_with_the_level_and_stay_within_what_can_be(self) -> None:
        """Quantiles are ordered, counts are whole, and all are within possible values."""
        for trace in self.markets():
            for forecaster in self.stages(trace):
                forecast = forecaster.forecast(24)
                spread = forecast.spread
                assert spread is not None
                assert spread.spot_price.shape == spread.available.shape == (7, 24)
                assert (np.diff(spread.spot_price, axis=0) >= 0).all()
                assert (np.diff(spread.available, axis=0) >= 0).all()
                assert (spread.available == np.rint(spread.available)).all()
                most = max(1, int(trace.available.max()))
                assert spread.available.max() <= most
                assert spread.available.min() >= 0
                ceiling = max(1.5 * trace.on_demand_price.max(), trace.spot_price.max())
                assert (spread.spot_price >= 0).all()
                assert (spread.spot_price <= ceiling).all()
                mean = forecast.mean_available
                assert mean is not None
                assert ((mean >= 0) & (mean <= most)).all()

    def test_distributions_of_counts_end_in_certainty(self) -> None:
        """Cumulative probabilities of counts rise to exactly 1."""
        for trace in self.markets():
            counts = self.seen(trace, 12).distribution(12).counts
            assert (np.diff(counts, axis=1) >= -1e-12).all()
            assert (counts >= 0).all()
            assert (counts[:, -1] == 1).all()

    def test_a_longer_horizon_only_adds_slots_to_the_distribution(self) -> None:
        """The first slots do not depend on the horizon."""
        for trace in self.markets():
            forecaster = self.seen(trace, 12)
            longer, shorter = forecaster.distribution(30), forecaster.distribution(4)
            assert np.allclose(longer.prices[:4], shorter.prices, rtol=0, atol=1e-12)
            assert np.allclose(longer.counts[:4], shorter.counts, rtol=0, atol=1e-12)

    def test_futures_are_those_of_the_generator_and_within_the_distribution(self) -> None:
        """Draws depend on the generator only and stay within the distribution."""
        for trace in self.markets():
            forecaster = self.seen(trace, 25)
            paths = forecaster.draw(10, 20, np.random.default_rng(1))
            again = forecaster.draw(10, 20, np.random.default_rng(1))
            assert paths.spot_price.shape == paths.available.shape == (20, 10)
            assert paths.available.dtype == np.int64
            assert paths.spot_price.tobytes() == again.spot_price.tobytes()
            assert paths.available.tobytes() == again.available.tobytes()
            known = forecaster.distribution(10)
            assert (paths.spot_price >= known.prices[:, 0] - 1e-12).all()
            assert (paths.spot_price <= known.prices[:, -1] + 1e-12).all()
            assert ((paths.available >= 0) & (paths.available < known.counts.shape[1])).all()


def _same(left: Forecast, right: Forecast) -> bool:
    return bool(
        np.array_equal(left.spot_price, right.spot_price)
        and np.array_equal(left.available, right.available)
    )
