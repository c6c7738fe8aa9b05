"""How a series repeats itself: by lag, by hour of the day, by day of the week."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

DAY_HOURS = 24.0
LAG_HOURS = (1.0, 3.0, 6.0, 12.0, 24.0, 168.0)
FEWEST_DAYS, FEWEST_WEEKS = 5, 4
NULL_DRAWS = 199
REAL_BELOW = 0.05


class Lag(msgspec.Struct, frozen=True):
    """The correlation at one lag; None if the series is too short, too coarse or constant."""

    hours: float
    correlation: float | None


class Pattern(msgspec.Struct, frozen=True):
    """The share of variance that the clock explains, and the share that chance would explain.

    - ``share``: the share of variance that the clock explains.
    - ``chance``: the mean share over series whose cycles were each rotated by a random amount. That
      keeps spells and level and removes the clock.
    - ``p_value``: the share of those series with at least as much explained.
    - ``amplitude``: the range of the mean by hour of the cycle, in the unit of the series.

    A weekly pattern is what the day of the week adds to the hour of the day.
    """

    cycles: int
    share: float
    chance: float
    p_value: float
    amplitude: float

    @property
    def beyond_chance(self) -> float:
        """Return the share of variance explained beyond chance, at least 0."""
        return max(0.0, (self.share - self.chance) / (1 - self.chance)) if self.chance < 1 else 0.0

    @property
    def real(self) -> bool:
        """Return whether the pattern is significant at 5%."""
        return self.p_value < REAL_BELOW


def autocorrelation(
    values: NDArray[np.float64], lag_hours: float, slot_hours: float
) -> float | None:
    """Return the correlation at the nearest whole number of slots, at least one."""
    lag = max(1, round(lag_hours / slot_hours))
    if values.size < 2 * lag or is_constant(values):
        return None
    centred = values - values.mean()
    return float((centred[:-lag] * centred[lag:]).sum() / (centred**2).sum())


def autocorrelations(values: NDArray[np.float64], slot_hours: float) -> tuple[Lag, ...]:
    """Return the correlations at the usual lags; None for lags shorter than a slot."""
    return tuple(
        Lag(
            hours,
            autocorrelation(values, hours, slot_hours) if whole_slots(hours, slot_hours) else None,
        )
        for hours in LAG_HOURS
    )


def whole_slots(hours: float, slot_hours: float) -> int:
    """Return how many slots that is, or 0 unless it is about a whole number of them."""
    slots = round(hours / slot_hours)
    return slots if slots and abs(slots * slot_hours / hours - 1) < 0.1 else 0


def is_constant(values: NDArray[np.float64]) -> bool:
    """Return whether all values are equal, up to rounding."""
    return bool(np.ptp(values) <= 1e-12 * np.abs(values).max())


def daily_pattern(
    values: NDArray[np.float64], slot_hours: float, random: np.random.Generator
) -> Pattern | None:
    """Return the pattern by hour of the day, or None if the trace does not allow it."""
    days = cycles_of(values, DAY_HOURS, slot_hours)
    if days is None or days.shape[0] < FEWEST_DAYS or is_constant(days):
        return None
    hour = _bins(days.shape[1], slot_hours)
    level = _level(days)
    found = _explained(level.mean(axis=0), hour)
    turns = random.integers(days.shape[1], size=(NULL_DRAWS, days.shape[0]))
    null = np.array([_explained(_turned(level, turn), hour) for turn in turns])
    return _pattern(days, found, null, float(np.ptp(_bin_means(level.mean(axis=0), hour))))


def weekly_pattern(
    values: NDArray[np.float64], slot_hours: float, random: np.random.Generator
) -> Pattern | None:
    """Return what the day of the week adds to the hour of the day, or None if weeks are too few."""
    weeks = cycles_of(values, 7 * DAY_HOURS, slot_hours)
    if weeks is None or weeks.shape[0] < FEWEST_WEEKS or is_constant(weeks):
        return None
    per_day = weeks.shape[1] // 7
    if per_day * 7 != weeks.shape[1]:
        return None
    hour = _bins(weeks.shape[1], slot_hours)
    level = _level(weeks)
    # Rotation by whole days keeps the hours of the day in place.
    by_day = np.tile(level.mean(axis=0).reshape(7, per_day).mean(axis=0), 7)
    daily = _explained(by_day, hour)
    found = _explained(level.mean(axis=0), hour) - daily
    turns = random.integers(7, size=(NULL_DRAWS, weeks.shape[0])) * per_day
    null = np.array([_explained(_turned(level, turn), hour) - daily for turn in turns])
    amplitude = float(np.ptp(_bin_means(level.mean(axis=0) - by_day, hour)))
    return _pattern(weeks, found, null, amplitude)


def hourly_means(
    values: NDArray[np.float64], slot_hours: float
) -> tuple[NDArray[np.float64], NDArray[np.float64]] | None:
    """Return the hours of the day, from the first slot on, and the mean in each."""
    days = cycles_of(values, DAY_HOURS, slot_hours)
    if days is None:
        return None
    hour = _bins(days.shape[1], slot_hours)
    hours = np.unique(np.floor(np.arange(days.shape[1]) * slot_hours + 1e-9))
    return hours, _bin_means(days.mean(axis=0), hour)


def cycles_of(
    values: NDArray[np.float64], cycle_hours: float, slot_hours: float
) -> NDArray[np.float64] | None:
    """Return one row for each whole cycle; the rest at the end is not used."""
    per_cycle = round(cycle_hours / slot_hours)
    if per_cycle < 2 or abs(per_cycle * slot_hours - cycle_hours) > 1e-6 * cycle_hours:
        return None
    count = values.size // per_cycle
    return values[: count * per_cycle].reshape(count, per_cycle) if count else None


def _bins(per_cycle: int, slot_hours: float) -> NDArray[np.int64]:
    """Return the hour in which each slot of a cycle begins, numbered without gaps."""
    hours = np.floor(np.arange(per_cycle) * slot_hours + 1e-9)
    return np.unique(hours, return_inverse=True)[1].astype(np.int64)


def _bin_means(profile: NDArray[np.float64], hour: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the mean of each hour."""
    means: NDArray[np.float64] = np.bincount(hour, weights=profile) / np.bincount(hour)
    return means


def _explained(profile: NDArray[np.float64], hour: NDArray[np.int64]) -> float:
    """Return the variance between the hours of a mean cycle."""
    return float((_bin_means(profile, hour)[hour] - profile.mean()).var())


def _level(cycles: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return each cycle minus the straight line from its start to the start of the next.

    A wandering series can then be rotated without a step at the seam. With the step, it would seem
    to follow the clock more often than chance allows.
    """
    starts = np.append(cycles[:, 0], cycles[-1, -1])
    line = np.arange(cycles.shape[1]) / cycles.shape[1]
    level: NDArray[np.float64] = cycles - np.diff(starts)[:, np.newaxis] * line
    return level


def _turned(cycles: NDArray[np.float64], turn: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the mean of the cycles, each rotated by its own amount."""
    places = (np.arange(cycles.shape[1]) + turn[:, np.newaxis]) % cycles.shape[1]
    mean: NDArray[np.float64] = np.take_along_axis(cycles, places, axis=1).mean(axis=0)
    return mean


def _pattern(
    cycles: NDArray[np.float64], found: float, null: NDArray[np.float64], amplitude: float
) -> Pattern:
    """Return the pattern from what was found and what rotated series give."""
    variance = float(cycles.var())
    at_least = int((null >= found * (1 - 1e-9)).sum())
    return Pattern(
        cycles=cycles.shape[0],
        share=max(0.0, found / variance),
        chance=float(np.clip(null.mean() / variance, 0.0, 1.0)),
        p_value=(1 + at_least) / (1 + null.size),
        amplitude=amplitude,
    )
