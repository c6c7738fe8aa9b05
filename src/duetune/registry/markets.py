"""Markets to simulate, synthetic or from a file, and forecasters of markets, by name.

The names of forecasters are the values of ``--forecast`` and of ``forecast`` in ``config.toml``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from duetune.core.ports import Forecaster
from duetune.errors import InvalidInput
from duetune.registry.plugins import Kind, Listed

if TYPE_CHECKING:
    from pathlib import Path

    from duetune.core.market import MarketTrace
    from duetune.market.forecast.forecast_source import ForecastSource

SYNTHETIC_SLOTS = 480
"""The usual length of a synthetic market."""


def market_named(
    kind: str, *, seed: int, slot_hours: float | None = None, slots: int = SYNTHETIC_SLOTS
) -> MarketTrace:
    """Return a synthetic market of ``slots`` slots, but at least of the usual length."""
    from duetune.market.synthetic import MarketKind, synthetic_market

    if kind not in set(MarketKind):
        raise InvalidInput("market", kind, f"one of {', '.join(MarketKind)}")
    if seed < 0:
        raise InvalidInput("seed", seed, "a whole number, zero or more")
    return synthetic_market(
        kind,
        seed=seed,
        slots=max(SYNTHETIC_SLOTS, slots),
        slot_hours=0.5 if slot_hours is None else slot_hours,
    )


def markets_listed() -> tuple[Listed, ...]:
    """Return the synthetic markets, each with the first line of its docstring."""
    from duetune.market.synthetic import SYNTHETIC_MARKETS

    return tuple(
        Listed(kind.value, (recipe.__doc__ or "").strip().splitlines()[0])
        for kind, recipe in SYNTHETIC_MARKETS.items()
    )


def markets_from_file(
    path: Path | str,
    *,
    pool: str | None = None,
    slot_hours: float | None = None,
    gaps: str = "error",
    spot_price: float | None = None,
    on_demand_price: float | None = None,
    available: int | None = None,
    gpus_per_instance: int | None = None,
) -> tuple[MarketTrace, ...]:
    """Return one trace for each pool of a file, or only for the named ``pool``.

    Prices are dollars per GPU-hour.
    """
    from duetune.market.traces import load_trace

    trace = load_trace(
        path,
        pool=pool,
        slot_hours=slot_hours,
        gaps=gaps,
        spot_usd_gpu_h=spot_price,
        on_demand_usd_gpu_h=on_demand_price,
        available=available,
        gpus_per_instance=gpus_per_instance,
    )
    return tuple(trace.pool(each.name) for each in trace.pools)


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
