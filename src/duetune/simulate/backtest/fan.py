"""One forecast as people read it: what is expected, how sure that is, and what came."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from duetune.errors import InvalidInput
from duetune.simulate.backtest.past_forecasts import forecaster_at, source_name
from duetune.simulate.backtest.scores import at_levels

if TYPE_CHECKING:
    from duetune.core.market import MarketTrace
    from duetune.core.ports import Forecaster
    from duetune.market.forecast.forecast_source import ForecastSource

_WANTED = (0.05, 0.25, 0.75, 0.95)


class Expected(msgspec.Struct, frozen=True):
    """One quantity in one slot: the value that policies plan with, and ranges around it.

    Ranges are None where the forecaster does not say how sure it is; ``came`` is what came, None
    where the trace has ended.
    """

    value: float
    half: tuple[float, float] | None
    ninety: tuple[float, float] | None
    came: float | None


class FanSlot(msgspec.Struct, frozen=True):
    """``spot_price`` is in dollars per GPU and hour."""

    hours: float
    spot_price: Expected
    available: Expected


class Fan(msgspec.Struct, frozen=True):
    """The forecast made in slot ``at`` of a trace, from all that was seen until then."""

    forecaster: str
    at: int
    slots: tuple[FanSlot, ...]


def fan(
    source: ForecastSource | Forecaster, trace: MarketTrace, *, at: int | None = None, slots: int
) -> Fan:
    """The forecast of the next ``slots`` slots, made in slot ``at`` or else in the last one."""
    now = trace.slots - 1 if at is None else at
    if not 0 <= now < trace.slots:
        raise InvalidInput("at", at, f"a slot of {trace.name!r}, 0 to {trace.slots - 1}")
    if slots < 1:
        raise InvalidInput("slots", slots, "one slot or more")
    forecaster = forecaster_at(source, trace, now)
    forecaster.observe(trace.slot(now))
    forecast = forecaster.forecast(slots)
    spread = forecast.spread
    prices = None if spread is None else at_levels(spread.levels, spread.spot_price, _WANTED)
    counts = None if spread is None else at_levels(spread.levels, spread.available, _WANTED)

    def expected(place: int, *, price: bool) -> Expected:
        series = trace.spot_price[0] if price else trace.available[0]
        point = forecast.spot_price if price else forecast.available
        quantiles = prices if price else counts
        per_hour = trace.slot_hours if price else 1.0
        there = now + 1 + place < trace.slots
        ends = None if quantiles is None else (quantiles[:, place] / per_hour).tolist()
        return Expected(
            value=float(point[place]) / per_hour,
            half=None if ends is None else (ends[1], ends[2]),
            ninety=None if ends is None else (ends[0], ends[3]),
            came=float(series[now + 1 + place]) / per_hour if there else None,
        )

    return Fan(
        forecaster=source_name(source),
        at=now,
        slots=tuple(
            FanSlot(
                hours=(place + 1) * trace.slot_hours,
                spot_price=expected(place, price=True),
                available=expected(place, price=False),
            )
            for place in range(slots)
        ),
    )
