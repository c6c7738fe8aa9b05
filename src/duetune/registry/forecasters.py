"""Forecasters by name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from duetune.errors import InvalidInput
from duetune.registry.plugins import Kind, Listed

if TYPE_CHECKING:
    from duetune.core.ports import Forecaster
    from duetune.market.forecast.forecast_source import ForecastSource

FORECASTER_GROUP = "duetune.forecasters"
"""The entry point group in which others register forecasters: a name for a factory that takes the
hours of a slot and the texts behind the name, and returns a forecaster that has seen nothing yet.
"""

FORECASTERS = (
    Listed("last", "what is now stays"),
    Listed("seasonal:SLOTS", "what was so many slots ago comes again"),
    Listed("markov", "counts by a semi-Markov model, prices by momentum"),
    Listed("combined", "several forecasters, each with the weight that it has earned"),
    Listed("ets", "exponential smoothing; needs duetune[forecast]"),
    Listed("arima", "autoregression; needs duetune[forecast]"),
    Listed("boosted", "boosted trees; needs duetune[forecast]"),
    Listed("perfect", "what will be: simulations only"),
    Listed("noisy:REGIME:LEVEL", "what will be, with errors: simulations only"),
)


def forecast_named(text: str, *, seed: int) -> ForecastSource:
    """Return where forecasts come from; the seed is for sources that draw their errors."""
    from duetune.market.forecast.forecast_source import ALLOWED, ForecastSource, SteppedForecast

    name = text.strip()
    head = name.partition(":")[0]
    if head in {each.name.partition(":")[0] for each in FORECASTERS}:
        return ForecastSource.parse(text, seed=seed)
    others = [each.name for each in KIND.listed()[len(FORECASTERS) :]]
    if head not in others:
        raise InvalidInput("forecast", text, ", ".join([ALLOWED, *others]))
    # One that cannot be made is refused now, not in the middle of a simulation.
    KIND.plugged(name, (1.0,))
    return SteppedForecast(
        seed=seed, text=name, make=lambda slot_hours: KIND.plugged(name, (slot_hours,))
    )


def forecasters_listed() -> tuple[Listed, ...]:
    """Return every forecaster that can be named, those registered by others included."""
    return KIND.listed()


def _checked(found: object) -> Forecaster | None:
    from duetune.core.ports import Forecaster

    return found if isinstance(found, Forecaster) else None


KIND: Kind[Forecaster] = Kind(
    "forecast",
    FORECASTER_GROUP,
    FORECASTERS,
    _checked,
    "a forecaster: observe() and forecast()",
)
