"""The oracle with errors of a stated kind and size, for studies of robustness.

An error is a function of (seed, trace slot in which the forecast is made, slots ahead) and of
nothing else: two jobs that start at different times see the same forecast in the same slot, a
longer horizon only adds columns, a longer trace only adds rows. Levels and regimes share their
random numbers, so that curves over the level differ by the level alone.
"""

from __future__ import annotations

import math
from enum import StrEnum
from typing import TYPE_CHECKING

import numpy as np

from duetune.errors import InvalidInput
from duetune.forecast.simple import checked_horizon, checked_start, perfect_index
from duetune.forecast.table import ForecastTable

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from duetune.core.decision import Forecast
    from duetune.core.market import MarketTrace, Slot

MAX_LEVEL = 2.0
PRICE_CEILING = 1.5
"""No forecast of a spot price is above this multiple of the on-demand price (U15)."""


class ErrorRegime(StrEnum):
    """How the error grows with the true value, and how it is distributed.

    PROPORTIONAL: the error is a fraction of the true value. FIXED: a fraction of the trace's mean
    value, whatever the value now. UNIFORM: within plus or minus the level. HEAVY: Student's t with
    2 degrees of freedom (infinite variance), scaled to the same mean absolute error.
    """

    PROPORTIONAL_UNIFORM = "proportional-uniform"
    PROPORTIONAL_HEAVY = "proportional-heavy"
    FIXED_UNIFORM = "fixed-uniform"
    FIXED_HEAVY = "fixed-heavy"

    @property
    def proportional(self) -> bool:
        return self in {ErrorRegime.PROPORTIONAL_UNIFORM, ErrorRegime.PROPORTIONAL_HEAVY}

    @property
    def heavy(self) -> bool:
        return self in {ErrorRegime.PROPORTIONAL_HEAVY, ErrorRegime.FIXED_HEAVY}


class PerfectPlusError:
    """``Perfect`` plus an error; ``level`` 0.5 is 50%: uniform errors reach half the true value.

    Prices are clipped to [the trace's lowest, 1.5 on-demand], counts rounded and clipped to [0,
    the trace's highest] (U15). Level 0 is ``Perfect`` itself, unclipped.
    """

    def __init__(
        self,
        trace: MarketTrace,
        start: int = 0,
        *,
        regime: ErrorRegime,
        level: float,
        seed: int,
    ) -> None:
        self._trace = trace
        self._regime = regime
        self._level = checked_level(level)
        self._seed = checked_seed(seed)
        self._next = checked_start(start)
        self._drawn: ForecastTable | None = None

    @classmethod
    def for_trace(
        cls,
        trace: MarketTrace,
        horizon: int,
        *,
        regime: ErrorRegime,
        level: float,
        seed: int,
    ) -> ForecastTable:
        """All forecasts of a trace, drawn once, for any number of jobs to share."""
        price, available = noisy_forecasts(
            trace,
            np.arange(trace.slots),
            checked_horizon(horizon),
            regime=regime,
            level=checked_level(level),
            seed=checked_seed(seed),
        )
        return ForecastTable(spot_price=price, available=available)

    def observe(self, slot: Slot) -> None:  # noqa: ARG002 - only time passes
        self._next += 1

    def forecast(self, horizon: int) -> Forecast:
        now = self._next - 1
        drawn = self._drawn
        if drawn is None or horizon > drawn.horizon or not 0 <= now < drawn.slots:
            drawn = self._draw(now, checked_horizon(horizon))
        return drawn.row(max(0, now), horizon)

    def _draw(self, now: int, horizon: int) -> ForecastTable:
        """The whole trace at once, kept; a single row where there is no trace slot to key it."""
        rows = np.arange(max(self._trace.slots, 2 * now)) if now >= 0 else np.array([now])
        price, available = noisy_forecasts(
            self._trace, rows, horizon, regime=self._regime, level=self._level, seed=self._seed
        )
        drawn = ForecastTable(spot_price=price, available=available)
        if now >= 0:
            self._drawn = drawn
        return drawn


def noisy_forecasts(
    trace: MarketTrace,
    now: NDArray[np.int64],
    horizon: int,
    *,
    regime: ErrorRegime,
    level: float,
    seed: int,
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Price and count forecasts made in the trace slots ``now``: one row each."""
    index = np.minimum(perfect_index(now, horizon), trace.slots - 1)
    price = trace.spot_price[0][index]
    available = trace.available[0][index]
    if level == 0 or price.size == 0:
        return price, available
    whole_price, whole_available = trace.spot_price[0], trace.available[0]
    price_error, count_error = (
        errors(seed, series, now, horizon, heavy=regime.heavy) for series in (0, 1)
    )
    price_scale = price if regime.proportional else whole_price.mean()
    count_scale = available if regime.proportional else whole_available.mean()
    floor = whole_price.min()
    ceiling = np.maximum(floor, PRICE_CEILING * trace.on_demand_price[0][index])
    noisy_price = np.clip(price + level * price_scale * price_error, floor, ceiling)
    noisy_count = np.floor(available + level * count_scale * count_error + 0.5)
    return noisy_price, np.clip(noisy_count, 0, whole_available.max()).astype(np.int64)


def errors(
    seed: int, series: int, now: NDArray[np.int64], horizon: int, *, heavy: bool
) -> NDArray[np.float64]:
    """Errors of level 1 (mean absolute value 1/2) of the forecasts made in the slots ``now``."""
    # Place 0 of a stream is for now = -1: a forecast asked for before anything was observed.
    place = now + 1
    length = int(place.max()) + 1
    quantile = np.empty((now.size, horizon))
    for ahead in range(horizon):
        # One stream per column: neither a longer trace nor a longer horizon changes a number.
        stream = np.random.Generator(np.random.PCG64(np.random.SeedSequence((seed, series, ahead))))
        quantile[:, ahead] = stream.random(length)[place]
    if not heavy:
        return 2 * quantile - 1
    quantile = np.maximum(quantile, 2.0**-54)
    # The quantile function of Student's t with 2 degrees of freedom; its mean absolute value is √2.
    student = (2 * quantile - 1) / np.sqrt(2 * quantile * (1 - quantile))
    return np.asarray(student / (2 * math.sqrt(2)), dtype=np.float64)


def checked_level(level: float) -> float:
    if not 0 <= level <= MAX_LEVEL:  # also refuses NaN
        raise InvalidInput("level", level, f"a number from 0 to {MAX_LEVEL:g} (1 is 100%)")
    return level


def checked_seed(seed: int) -> int:
    if seed < 0:
        raise InvalidInput("seed", seed, "a whole number, zero or more")
    return seed
