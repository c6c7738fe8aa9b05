"""Forecasts made in the slots of a trace from nothing but the slots before.

``rolled`` makes one in every slot, for scoring. ``fan`` makes one in a single slot, for reading.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING

import msgspec
import numpy as np
from numpy.typing import NDArray

from duetune.errors import InvalidInput
from duetune.market.forecast.distribution import LEVELS, DistributionForecaster
from duetune.market.forecast.forecast_source import ForecastSource
from duetune.market.forecast.forecast_table import ForecastTable
from duetune.simulate.backtest.scores import at_levels

if TYPE_CHECKING:
    from duetune.core.decision import Forecast
    from duetune.core.market import MarketTrace
    from duetune.core.ports import Forecaster


class Rolled(msgspec.Struct, frozen=True, eq=False):
    """The forecasts of one forecaster on one trace: a row per slot, from slot ``first`` on.

    - Columns are the horizons that are scored. Quantiles have one more axis in front: ``levels``.
    - ``count_below`` and ``count_to`` are the forecast probabilities of less than, and of at most,
      the actual count; NaN if the forecaster gives no distribution.
    - ``certain`` marks forecasts without a spread.
    - ``table`` holds what a policy plans with: a row for every slot of the trace.
    """

    first: int
    levels: tuple[float, ...]
    certain: NDArray[np.bool_]
    price: NDArray[np.float64]
    available: NDArray[np.float64]
    price_quantiles: NDArray[np.float64]
    available_quantiles: NDArray[np.float64]
    count_below: NDArray[np.float64]
    count_to: NDArray[np.float64]
    table: ForecastTable


def source_name(source: ForecastSource | Forecaster) -> str:
    """Return the name of a forecaster: its ``name`` attribute, or else its class name."""
    if isinstance(source, ForecastSource):
        return str(source)
    return str(getattr(source, "name", type(source).__name__))


def forecaster_at(
    source: ForecastSource | Forecaster, trace: MarketTrace, start: int
) -> Forecaster:
    """Return a forecaster that has observed the slots before ``start``.

    It also forecasts a spread if it can. A forecaster object is copied, not changed.
    """
    if isinstance(source, ForecastSource):
        return source.forecaster(trace, start, spread=True)
    forecaster = copy.deepcopy(source)
    for slot in range(start):
        forecaster.observe(trace.slot(slot))
    return forecaster


def rolled(
    source: ForecastSource | Forecaster,
    trace: MarketTrace,
    *,
    first: int,
    ahead: NDArray[np.int64],
    lookahead: int,
) -> Rolled:
    """Forecast in every slot from ``first`` on; keep the columns that lie ``ahead`` slots ahead."""
    name = source_name(source)
    forecaster = forecaster_at(source, trace, first)
    longest = max(int(ahead.max()), lookahead)
    rows, columns = trace.slots - first, ahead - 1
    certain = np.ones(rows, dtype=bool)
    price = np.empty((rows, longest))
    available = np.empty((rows, longest), dtype=np.int64)
    levels: tuple[float, ...] = LEVELS
    price_quantiles, available_quantiles = np.empty((2, len(levels), rows, ahead.size))
    count_below, count_to = np.full((2, rows, ahead.size), np.nan)
    for row in range(rows):
        forecaster.observe(trace.slot(first + row))
        forecast = _checked(forecaster.forecast(longest), longest, name)
        price[row], available[row] = forecast.spot_price, forecast.available
        spread = forecast.spread
        if spread is None:
            price_quantiles[:, row] = forecast.spot_price[columns]
            available_quantiles[:, row] = forecast.available[columns]
            continue
        if spread.levels != levels:
            if not certain[:row].all():
                allowed = f"the same levels in every slot: {levels}"
                raise InvalidInput(f"levels of {name}", spread.levels, allowed)
            levels = spread.levels
            price_quantiles = _again(price_quantiles, len(levels))
            available_quantiles = _again(available_quantiles, len(levels))
        certain[row] = False
        price_quantiles[:, row] = spread.spot_price[:, columns]
        available_quantiles[:, row] = spread.available[:, columns]
        if isinstance(forecaster, DistributionForecaster):
            came = first + row + ahead
            known = came < trace.slots
            counts = forecaster.distribution(longest).counts[columns[known]]
            actual = trace.available[0, came[known]]
            count_below[row, known] = _probability(counts, actual - 1)
            count_to[row, known] = _probability(counts, actual)
    table = _table(trace, first, price[:, :lookahead], available[:, :lookahead])
    return Rolled(
        first=first,
        levels=levels,
        certain=certain,
        price=price[:, columns],
        available=available[:, columns].astype(np.float64),
        price_quantiles=price_quantiles,
        available_quantiles=available_quantiles,
        count_below=count_below,
        count_to=count_to,
        table=table,
    )


def _probability(counts: NDArray[np.float64], value: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return P(count <= value) for each row, from cumulative probabilities of 0, 1, ..."""
    top = counts.shape[1] - 1
    inside = counts[np.arange(value.size), np.clip(value, 0, top)]
    return np.where(value < 0, 0.0, np.where(value > top, 1.0, inside))


def _again(quantiles: NDArray[np.float64], levels: int) -> NDArray[np.float64]:
    """Return the quantiles for another number of levels; all rows so far were single points."""
    return np.repeat(quantiles[:1], levels, axis=0)


def _table(
    trace: MarketTrace, first: int, price: NDArray[np.float64], available: NDArray[np.int64]
) -> ForecastTable:
    """Return the forecasts as a table with a row for every slot of the trace."""
    # No job begins before ``first``, so the rows before it are never read.
    all_prices = np.zeros((trace.slots, price.shape[1]))
    all_counts = np.zeros((trace.slots, price.shape[1]), dtype=np.int64)
    all_prices[first:], all_counts[first:] = price, available
    return ForecastTable(spot_price=all_prices, available=all_counts)


def _checked(forecast: Forecast, horizon: int, name: str) -> Forecast:
    """Return the forecast after checking its shapes; forecasters may be third-party code."""
    shape = (horizon,)
    if forecast.spot_price.shape != shape or forecast.available.shape != shape:
        shapes = (forecast.spot_price.shape, forecast.available.shape)
        raise InvalidInput(f"forecast of {name}", shapes, f"two arrays of shape {shape}")
    if not np.isfinite(forecast.spot_price).all():
        raise InvalidInput(f"forecast of {name}", "a price that is not finite", "finite prices")
    spread = forecast.spread
    if spread is not None:
        wanted = (len(spread.levels), horizon)
        if spread.spot_price.shape != wanted or spread.available.shape != wanted:
            shapes = (spread.spot_price.shape, spread.available.shape)
            raise InvalidInput(f"spread of {name}", shapes, f"two arrays of shape {wanted}")
        if not (np.isfinite(spread.spot_price).all() and np.isfinite(spread.available).all()):
            found = "a quantile that is not finite"
            raise InvalidInput(f"spread of {name}", found, "finite quantiles")
    return forecast


_WANTED = (0.05, 0.25, 0.75, 0.95)


class Expected(msgspec.Struct, frozen=True):
    """The forecast of one quantity in one slot.

    - ``value`` is what policies plan with.
    - ``half`` and ``ninety`` are the 50% and 90% ranges, None if the forecaster gives no spread.
    - ``came`` is the actual value, None after the end of the trace.
    """

    value: float
    half: tuple[float, float] | None
    ninety: tuple[float, float] | None
    came: float | None


class FanSlot(msgspec.Struct, frozen=True):
    """One slot of a fan, ``hours`` ahead. ``spot_price`` is in dollars per GPU-hour."""

    hours: float
    spot_price: Expected
    available: Expected


class Fan(msgspec.Struct, frozen=True):
    """The forecast made in slot ``at`` of a trace from the slots up to then."""

    forecaster: str
    at: int
    slots: tuple[FanSlot, ...]


def fan(
    source: ForecastSource | Forecaster, trace: MarketTrace, *, at: int | None = None, slots: int
) -> Fan:
    """Return the forecast of the next ``slots`` slots, made in slot ``at`` or else in the last
    slot.
    """
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
