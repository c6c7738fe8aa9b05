"""Forecasters by name, for experiments and the command line."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from duetune.core.ports import Forecaster
from duetune.errors import InvalidInput
from duetune.market.forecast.forecast_table import ForecastTable, table_by_steps
from duetune.market.forecast.noisy_oracle import (
    MAX_LEVEL,
    ErrorRegime,
    PerfectPlusError,
    checked_level,
    checked_seed,
    noisy_forecasts,
)
from duetune.market.forecast.simple import (
    LastValue,
    Perfect,
    SeasonalNaive,
    checked_horizon,
    checked_period,
    checked_start,
    last_index,
    perfect_index,
    season_ago,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from duetune.core.market import MarketTrace


ALLOWED = (
    "arima, ets, boosted, markov, combined, perfect, last, seasonal:SLOTS or "
    "noisy:REGIME:LEVEL with REGIME one of "
    f"{', '.join(ErrorRegime)} and LEVEL from 0 to {MAX_LEVEL:g}"
)


CAUSAL = "last, seasonal:SLOTS, markov, combined, ets, arima or boosted: the future is not known"


class ForecastKind(StrEnum):
    """Where a forecast comes from. ``perfect`` and ``noisy`` know the trace's future.

    ``arima`` and ``ets`` need statsforecast, ``boosted`` needs lightgbm.
    """

    PERFECT = "perfect"
    LAST = "last"
    SEASONAL = "seasonal"
    NOISY = "noisy"
    ARIMA = "arima"
    ETS = "ets"
    BOOSTED = "boosted"
    MARKOV = "markov"
    COMBINED = "combined"


LEARNING = frozenset(
    {
        ForecastKind.ARIMA,
        ForecastKind.ETS,
        ForecastKind.BOOSTED,
        ForecastKind.MARKOV,
        ForecastKind.COMBINED,
    }
)
"""Those that learn from all they have seen, and say how sure they are."""


class ForecastSource(msgspec.Struct, frozen=True):
    """Names a forecaster; the same source on the same trace gives the same bytes."""

    kind: ForecastKind = ForecastKind.PERFECT
    regime: ErrorRegime = ErrorRegime.PROPORTIONAL_UNIFORM
    level: float = 0.0
    period_slots: int = 48
    seed: int = 0

    def __post_init__(self) -> None:
        checked_level(self.level)
        checked_period(self.period_slots)
        checked_seed(self.seed)

    @classmethod
    def parse(cls, text: str, *, seed: int = 0) -> ForecastSource:
        """From ``perfect``, ``last``, ``seasonal:48``, ``noisy:proportional-uniform:0.5`` ..."""
        match text.strip().split(":"):
            case [kind] if kind in LEARNING or kind in {"perfect", "last"}:
                return cls(kind=ForecastKind(kind), seed=seed)
            case ["seasonal", period] if period.isdecimal():
                return cls(kind=ForecastKind.SEASONAL, period_slots=int(period), seed=seed)
            case ["noisy", regime, level] if regime in set(ErrorRegime):
                return cls(
                    kind=ForecastKind.NOISY,
                    regime=ErrorRegime(regime),
                    level=_level(level),
                    seed=seed,
                )
            case _:
                raise InvalidInput("forecast", text, ALLOWED)

    def __str__(self) -> str:
        """The text that ``parse`` reads; the seed is not part of it."""
        match self.kind:
            case ForecastKind.SEASONAL:
                return f"seasonal:{self.period_slots}"
            case ForecastKind.NOISY:
                return f"noisy:{self.regime.value}:{self.level!r}"
            case _:
                return self.kind.value

    def forecaster(self, trace: MarketTrace, start: int = 0, *, spread: bool = False) -> Forecaster:
        """A stepping forecaster whose next observed slot is trace slot ``start``.

        It already knows the slots before: a market is watched all the time, not only since a job
        began. Without this a seasonal forecast would be a last value for most of every job.
        ``spread``: ``last`` and ``seasonal`` say how sure they are too, which takes them longer.
        """
        checked_start(start)
        match self.kind:
            case ForecastKind.PERFECT:
                return Perfect(trace, start)
            case ForecastKind.NOISY:
                return PerfectPlusError(
                    trace, start, regime=self.regime, level=self.level, seed=self.seed
                )
            case _:
                return _shown(self.causal(trace.slot_hours, spread=spread), trace, start)

    def causal(self, slot_hours: float, *, spread: bool = False) -> Forecaster:
        """One that has seen nothing yet, and will know only what it is shown."""
        if self.kind in {ForecastKind.PERFECT, ForecastKind.NOISY}:
            raise InvalidInput("forecast", str(self), CAUSAL)
        if self.kind is ForecastKind.LAST and not spread:
            return LastValue()
        if self.kind is ForecastKind.SEASONAL and not spread:
            return SeasonalNaive(self.period_slots)
        # The compiler, which simple forecasts do not need.
        from duetune.market.forecast import named_forecasters  # noqa: PLC0415

        match self.kind:
            case ForecastKind.LAST:
                return named_forecasters.persistence(slot_hours)
            case ForecastKind.SEASONAL:
                return named_forecasters.seasonal(slot_hours, self.period_slots)
            case ForecastKind.ARIMA:
                return named_forecasters.arima(slot_hours)
            case ForecastKind.ETS:
                return named_forecasters.ets(slot_hours)
            case ForecastKind.BOOSTED:
                return named_forecasters.boosted(slot_hours)
            case ForecastKind.MARKOV:
                return named_forecasters.markov(slot_hours)
            case _:
                return named_forecasters.combined(slot_hours)

    def table(self, trace: MarketTrace, horizon: int) -> ForecastTable:
        """All forecasts of a trace, for many jobs to share: the fast way through a tournament."""
        price, available = self.forecasts_made(
            trace, np.arange(trace.slots), checked_horizon(horizon)
        )
        return ForecastTable(spot_price=price, available=available)

    def forecasts_made(
        self, trace: MarketTrace, now: NDArray[np.int64], horizon: int
    ) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """The forecasts made in trace slots ``now``: one row each, ``horizon`` columns."""
        if self.kind in LEARNING:
            return _stepped(self.forecaster(trace), trace, now, horizon)
        match self.kind:
            case ForecastKind.NOISY:
                return noisy_forecasts(
                    trace, now, horizon, regime=self.regime, level=self.level, seed=self.seed
                )
            case ForecastKind.PERFECT:
                index = perfect_index(now, horizon)
            case ForecastKind.LAST:
                index = last_index(now, horizon)
            case _:
                index = season_ago(now, horizon, self.period_slots)
        index = np.minimum(index, trace.slots - 1)
        return trace.spot_price[0][index], trace.available[0][index]


def forecast_table(
    source: ForecastSource | ForecastTable,
    trace: MarketTrace,
    start: int,
    slots: int,
    horizon: int,
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Forecasts made in trace slots start, ..., start + slots - 1: one row each, C-contiguous.

    Equal to stepping ``source.forecaster(trace, start)``. Past its end the trace repeats its last
    slot. With a table from ``source.table(trace, horizon)`` the rows are views: use it for many
    jobs, above all for noisy sources, whose errors are otherwise drawn anew in each call.
    """
    if isinstance(source, ForecastTable):
        return source.rows(start, slots, horizon)
    now = np.arange(checked_start(start), start + slots)
    return source.forecasts_made(trace, now, checked_horizon(horizon))


def _shown(forecaster: Forecaster, trace: MarketTrace, start: int) -> Forecaster:
    """Show a new forecaster the slots before ``start``; a last value needs the last one only."""
    first = max(0, start - 1) if isinstance(forecaster, LastValue) else 0
    for slot in range(first, start):
        forecaster.observe(trace.slot(min(slot, trace.slots - 1)))
    return forecaster


def _stepped(
    forecaster: Forecaster, trace: MarketTrace, now: NDArray[np.int64], horizon: int
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Return the forecasts made in slots ``now`` by stepping through all slots up to them."""
    rows = int(now.max(initial=-1)) + 1
    price, available = table_by_steps(forecaster, trace, 0, rows, horizon)
    return price[now], available[now]


def _level(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise InvalidInput("level", text, f"a number from 0 to {MAX_LEVEL:g}") from None


class SteppedForecast(ForecastSource, frozen=True, kw_only=True):
    """A source whose forecaster is made by ``make``, given the hours of a slot.

    ``text`` is its name. Used for forecasters that other packages register.
    """

    text: str
    make: Callable[[float], Forecaster]

    def __str__(self) -> str:
        """Return the name by which the registry makes it again."""
        return self.text

    def forecaster(self, trace: MarketTrace, start: int = 0, *, spread: bool = False) -> Forecaster:
        """Return one that has seen the slots before ``start`` of the trace."""
        return _shown(self.causal(trace.slot_hours, spread=spread), trace, checked_start(start))

    def causal(self, slot_hours: float, *, spread: bool = False) -> Forecaster:  # noqa: ARG002
        """Return one that has seen nothing yet; it alone decides how sure it says it is."""
        return self.make(slot_hours)

    def forecasts_made(
        self, trace: MarketTrace, now: NDArray[np.int64], horizon: int
    ) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """Return the forecasts made in slots ``now``: the forecaster is shown all before them."""
        return _stepped(self.forecaster(trace), trace, now, horizon)
