"""Forecasters by name: the values of ``--forecast`` and of ``forecast`` in ``config.toml``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from duetune.core.ports import Forecaster
from duetune.errors import InvalidInput
from duetune.registry.plugins import Kind, Listed

if TYPE_CHECKING:
    from duetune.market.forecast.forecast_source import ForecastSource

FORECASTER_GROUP = "duetune.forecasters"
"""The entry point group of forecasters. An entry names a factory that takes the hours of a slot and
the texts behind the name, and returns a forecaster that has observed nothing yet.
"""

FORECASTERS = (
    Listed("last", "the present price and availability stay"),
    Listed("seasonal:SLOTS", "the market of SLOTS slots ago repeats"),
    Listed("markov", "availability by a semi-Markov model, prices by momentum"),
    Listed("combined", "several forecasters, weighted by their past errors"),
    Listed("ets", "exponential smoothing; needs duetune[forecast]"),
    Listed("arima", "autoregression; needs duetune[forecast]"),
    Listed("boosted", "boosted trees; needs duetune[forecast]"),
    Listed("perfect", "the true future; simulations only"),
    Listed("noisy:REGIME:LEVEL", "the true future with errors; simulations only"),
)


def forecast_named(text: str, *, seed: int) -> ForecastSource:
    """Return the source of forecasts of that name; ``seed`` is for forecasts with random errors."""
    from duetune.market.forecast.forecast_source import ALLOWED, ForecastSource, SteppedForecast

    name = text.strip()
    head = name.partition(":")[0]
    if head in {each.name.partition(":")[0] for each in FORECASTERS}:
        return ForecastSource.parse(text, seed=seed)
    others = [each.name for each in KIND.listed()[len(FORECASTERS) :]]
    if head not in others:
        raise InvalidInput("forecast", text, ", ".join([ALLOWED, *others]))
    # A plug-in that fails is refused now, not in the middle of a simulation.
    KIND.plugged(name, (1.0,))
    return SteppedForecast(
        seed=seed, text=name, make=lambda slot_hours: KIND.plugged(name, (slot_hours,))
    )


def forecasters_listed() -> tuple[Listed, ...]:
    """Return every forecaster that can be named, plug-ins included."""
    return KIND.listed()


KIND: Kind[Forecaster] = Kind(
    "forecast",
    FORECASTER_GROUP,
    FORECASTERS,
    lambda found: found if isinstance(found, Forecaster) else None,
    "a forecaster: observe() and forecast()",
)
