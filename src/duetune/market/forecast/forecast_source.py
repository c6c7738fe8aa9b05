"""Forecasters by name, for experiments and the command line.

``named_forecasters`` builds the ones that learn; it is imported only if one of them is asked for.
"""

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


CAUSAL = (
    "last, seasonal:SLOTS, markov, combined, ets, arima or boosted, because the future is not known"
)


class ForecastKind(StrEnum):
    """Where a forecast comes from. ``perfect`` and ``noisy`` know the trace's future.

    ``arima`` and ``ets`` need statsforecast; ``boosted`` needs lightgbm.
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
"""Forecasters that learn from all observed slots and give quantiles."""


class ForecastSource(msgspec.Struct, frozen=True):
    """The name of a forecaster. The same source on the same trace gives the same bytes."""

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
        """Return the source that a text names.

        Texts are ``perfect``, ``last``, ``seasonal:48``, ``noisy:proportional-uniform:0.5`` and so
        on.
        """
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
        """Return the text that ``parse`` reads; the seed is not part of it."""
        match self.kind:
            case ForecastKind.SEASONAL:
                return f"seasonal:{self.period_slots}"
            case ForecastKind.NOISY:
                return f"noisy:{self.regime.value}:{self.level!r}"
            case _:
                return self.kind.value

    def forecaster(self, trace: MarketTrace, start: int = 0, *, spread: bool = False) -> Forecaster:
        """Return a stepping forecaster whose next observed slot is trace slot ``start``.

        It already knows the slots before, because a market is observed all the time. Without them,
        a seasonal forecast would be a last value for most of every job. With ``spread``, ``last``
        and ``seasonal`` also give quantiles, which takes longer.
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
        """Return a forecaster that has seen nothing yet and will know only what it is shown."""
        if self.kind in {ForecastKind.PERFECT, ForecastKind.NOISY}:
            raise InvalidInput("forecast", str(self), CAUSAL)
        if self.kind is ForecastKind.LAST and not spread:
            return LastValue()
        if self.kind is ForecastKind.SEASONAL and not spread:
            return SeasonalNaive(self.period_slots)
        # Imported here, because it brings the compiler, which simple forecasts do not need.
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
        """Return all forecasts of a trace, for many jobs to share; called once per tournament."""
        price, available = self.forecasts_made(
            trace, np.arange(trace.slots), checked_horizon(horizon)
        )
        return ForecastTable(spot_price=price, available=available)

    def forecasts_made(
        self, trace: MarketTrace, now: NDArray[np.int64], horizon: int
    ) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """Return the forecasts made in trace slots ``now``: one row each, ``horizon`` columns."""
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
    """Return the forecasts made in ``slots`` trace slots from ``start`` on: one row each.

    The arrays are C-contiguous.

    They equal those of stepping ``source.forecaster(trace, start)``. Past its end the trace repeats
    its last slot. With a table from ``source.table(trace, horizon)`` the rows are views. Use one
    for many jobs, above all for noisy sources, whose errors are otherwise drawn again in each call.
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

    ``text`` is its name. It is used for forecasters that other packages register.
    """

    text: str
    make: Callable[[float], Forecaster]

    def __str__(self) -> str:
        """Return the name by which the registry makes it again."""
        return self.text

    def forecaster(self, trace: MarketTrace, start: int = 0, *, spread: bool = False) -> Forecaster:
        """Return a forecaster that has seen the slots before ``start`` of the trace."""
        return _shown(self.causal(trace.slot_hours, spread=spread), trace, checked_start(start))

    def causal(self, slot_hours: float, *, spread: bool = False) -> Forecaster:  # noqa: ARG002
        """Return a forecaster that has seen nothing yet; it decides whether to give quantiles."""
        return self.make(slot_hours)

    def forecasts_made(
        self, trace: MarketTrace, now: NDArray[np.int64], horizon: int
    ) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """Return the forecasts made in slots ``now``, by stepping through all slots up to them."""
        return _stepped(self.forecaster(trace), trace, now, horizon)
