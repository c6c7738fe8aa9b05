"""The oracle with errors of a given kind and size, for studies of robustness.

An error depends only on (seed, trace slot in which the forecast is made, slots ahead). Two jobs
that start at different times see the same forecast in the same slot. A longer horizon only adds
columns; a longer trace only adds rows. All levels use the same random numbers, as do all kinds of
errors except correlated ones, so curves over the level differ by the level alone.
"""

from __future__ import annotations

import itertools
import math
from enum import StrEnum
from typing import TYPE_CHECKING

import numpy as np

from duetune.errors import InvalidInput
from duetune.market.forecast.forecast_table import ForecastTable
from duetune.market.forecast.simple import checked_horizon, checked_start, perfect_index

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from duetune.core.decision import Forecast
    from duetune.core.market import MarketTrace, Slot

MAX_LEVEL = 2.0
PRICE_CEILING = 1.5
"""No forecast of a spot price is above this multiple of the on-demand price (U15)."""
MEMORY = 0.9
"""The share of a correlated error that remains one slot later."""
BIAS_SLOTS = 48
"""Number of slots in which biased forecasts err in one direction."""


PRICE, COUNT, BIAS = 0, 1, 2
# A key that no column of the other errors has.
CORRELATED = 1_000_000


class ErrorRegime(StrEnum):
    """How the error grows with the true value, and how it is distributed.

    Size:

    - PROPORTIONAL: a fraction of the true value.
    - FIXED: a fraction of the trace's mean value.

    Distribution, all with the same mean absolute error:

    - UNIFORM: within plus or minus the level, drawn again for every forecast and slot ahead.
    - HEAVY: Student's t with 2 degrees of freedom (infinite variance), drawn as above.
    - CORRELATED: the error about a slot is the same in all forecasts of it, and close to those
      about neighbouring slots (AR(1), normal). The forecast market is wrong but consistent.
    - BIASED: uniform errors with one sign per day. The forecasts of a day are either all too good,
      with more GPUs at lower prices, or all too bad.
    """

    PROPORTIONAL_UNIFORM = "proportional-uniform"
    PROPORTIONAL_HEAVY = "proportional-heavy"
    FIXED_UNIFORM = "fixed-uniform"
    FIXED_HEAVY = "fixed-heavy"
    PROPORTIONAL_CORRELATED = "proportional-correlated"
    FIXED_CORRELATED = "fixed-correlated"
    PROPORTIONAL_BIASED = "proportional-biased"
    FIXED_BIASED = "fixed-biased"

    @property
    def proportional(self) -> bool:
        """Return whether the error is a fraction of the true value."""
        return self.value.startswith("proportional-")

    @property
    def shape(self) -> str:
        """Return the distribution: uniform, heavy, correlated or biased."""
        return self.value.split("-")[1]


PAPER_REGIMES = (
    ErrorRegime.PROPORTIONAL_UNIFORM,
    ErrorRegime.PROPORTIONAL_HEAVY,
    ErrorRegime.FIXED_UNIFORM,
    ErrorRegime.FIXED_HEAVY,
)
"""The four of the paper's experiments."""


class PerfectPlusError:
    """``Perfect`` plus an error; at ``level`` 0.5 uniform errors reach half the true value.

    Prices are clipped to [the trace's lowest, 1.5 on-demand]. Counts are rounded and clipped to [0,
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

    def observe(self, slot: Slot) -> None:  # noqa: ARG002 - only the time counts
        """Move one slot ahead; called once per slot."""
        self._next += 1

    def forecast(self, horizon: int) -> Forecast:
        """Return the next ``horizon`` slots with errors."""
        now = self._next - 1
        drawn = self._drawn
        if drawn is None or horizon > drawn.horizon or not 0 <= now < drawn.slots:
            drawn = self._draw(now, checked_horizon(horizon))
        return drawn.row(max(0, now), horizon)

    def _draw(self, now: int, horizon: int) -> ForecastTable:
        """Return the forecasts of the whole trace and keep them; one row before the trace."""
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
    """Return price and count forecasts made in the trace slots ``now``: one row each."""
    index = np.minimum(perfect_index(now, horizon), trace.slots - 1)
    price = trace.spot_price[0][index]
    available = trace.available[0][index]
    if level == 0 or price.size == 0:
        return price, available
    whole_price, whole_available = trace.spot_price[0], trace.available[0]
    price_error, count_error = (
        errors(seed, series, now, horizon, regime) for series in (PRICE, COUNT)
    )
    price_scale = price if regime.proportional else whole_price.mean()
    count_scale = available if regime.proportional else whole_available.mean()
    floor = whole_price.min()
    ceiling = np.maximum(floor, PRICE_CEILING * trace.on_demand_price[0][index])
    noisy_price = np.clip(price + level * price_scale * price_error, floor, ceiling)
    noisy_count = np.floor(available + level * count_scale * count_error + 0.5)
    return noisy_price, np.clip(noisy_count, 0, whole_available.max()).astype(np.int64)


def errors(
    seed: int, series: int, now: NDArray[np.int64], horizon: int, regime: ErrorRegime
) -> NDArray[np.float64]:
    """Return errors of level 1 (mean absolute value 1/2) of forecasts made in slots ``now``."""
    match regime.shape:
        case "correlated":
            return _correlated(seed, series, now, horizon)
        case "biased":
            sizes = np.abs(_independent(seed, series, now, horizon, heavy=False))
            better = better_than_it_is(seed, now)
            high = better if series == COUNT else ~better
            return np.where(high[:, np.newaxis], sizes, -sizes)
        case shape:
            return _independent(seed, series, now, horizon, heavy=shape == "heavy")


def better_than_it_is(seed: int, now: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return whether biased forecasts made in the slots ``now`` are too good (true) or too bad."""
    block = (now + 1) // BIAS_SLOTS
    signs = _stream(seed, BIAS).random(int(block.max()) + 1)
    chosen: NDArray[np.bool_] = signs[block] < 0.5
    return chosen


def _correlated(
    seed: int, series: int, now: NDArray[np.int64], horizon: int
) -> NDArray[np.float64]:
    """Return errors that depend on the slot they are about, from one AR(1) path."""
    slot = now[:, np.newaxis] + np.arange(1, horizon + 1)
    fresh = _stream(seed, series, CORRELATED).standard_normal(int(slot.max()) + 1)
    fresh[1:] *= math.sqrt(1 - MEMORY**2)
    path = itertools.accumulate(fresh.tolist(), lambda last, new: MEMORY * last + new)
    # The mean absolute value of a standard normal variable is √(2/π).
    scaled: NDArray[np.float64] = np.array(list(path))[slot] * (0.5 * math.sqrt(math.pi / 2))
    return scaled


def _independent(
    seed: int, series: int, now: NDArray[np.int64], horizon: int, *, heavy: bool
) -> NDArray[np.float64]:
    """Return errors that are drawn for every forecast and slot ahead."""
    # Place 0 of a stream is for now = -1: a forecast before the first observation.
    place = now + 1
    length = int(place.max()) + 1
    quantile = np.empty((now.size, horizon))
    for ahead in range(horizon):
        # One stream per column, so that a longer trace or horizon changes no number.
        quantile[:, ahead] = _stream(seed, series, ahead).random(length)[place]
    if not heavy:
        return 2 * quantile - 1
    quantile = np.maximum(quantile, 2.0**-54)
    # The quantile function of Student's t with 2 degrees of freedom; its mean absolute value is √2.
    student = (2 * quantile - 1) / np.sqrt(2 * quantile * (1 - quantile))
    return np.asarray(student / (2 * math.sqrt(2)), dtype=np.float64)


def _stream(*key: int) -> np.random.Generator:
    """Return the random generator of a key."""
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(key)))


def checked_level(level: float) -> float:
    """Return the level, or refuse one outside 0 to 2."""
    if not 0 <= level <= MAX_LEVEL:  # also refuses NaN
        raise InvalidInput("level", level, f"a number from 0 to {MAX_LEVEL:g} (1 is 100%)")
    return level


def checked_seed(seed: int) -> int:
    """Return the seed, or refuse a negative one."""
    if seed < 0:
        raise InvalidInput("seed", seed, "a whole number, zero or more")
    return seed
