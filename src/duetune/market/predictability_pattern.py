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
    """``correlation`` is None where the series is too short, too coarse or constant."""

    hours: float
    correlation: float | None


class Pattern(msgspec.Struct, frozen=True):
    """How much of the variance the clock explains, and how much it would by chance.

    By chance: the mean over series whose cycles were each turned by a random amount, which keeps
    spells and level but not the clock. ``p_value`` is the share of those with as much explained.
    A weekly pattern is what the day of the week adds to the hour of the day. ``amplitude`` is the
    range of the mean by hour of the cycle, in the unit of the series.
    """

    cycles: int
    share: float
    chance: float
    p_value: float
    amplitude: float

    @property
    def beyond_chance(self) -> float:
        """The share of variance explained, less what chance explains; 0 if that is more."""
        return max(0.0, (self.share - self.chance) / (1 - self.chance)) if self.chance < 1 else 0.0

    @property
    def real(self) -> bool:
        return self.p_value < REAL_BELOW


def autocorrelation(
    values: NDArray[np.float64], lag_hours: float, slot_hours: float
) -> float | None:
    """At the nearest whole number of slots, but at least one."""
    lag = max(1, round(lag_hours / slot_hours))
    if values.size < 2 * lag or is_constant(values):
        return None
    centred = values - values.mean()
    return float((centred[:-lag] * centred[lag:]).sum() / (centred**2).sum())


def autocorrelations(values: NDArray[np.float64], slot_hours: float) -> tuple[Lag, ...]:
    """At the usual lags; those shorter than a slot cannot be told."""
    return tuple(
        Lag(
            hours,
            autocorrelation(values, hours, slot_hours) if whole_slots(hours, slot_hours) else None,
        )
        for hours in LAG_HOURS
    )


def whole_slots(hours: float, slot_hours: float) -> int:
    """How many slots that is; 0 unless it is about a whole number of them."""
    slots = round(hours / slot_hours)
    return slots if slots and abs(slots * slot_hours / hours - 1) < 0.1 else 0


def is_constant(values: NDArray[np.float64]) -> bool:
    """Up to rounding."""
    return bool(np.ptp(values) <= 1e-12 * np.abs(values).max())


def daily_pattern(
    values: NDArray[np.float64], slot_hours: float, random: np.random.Generator
) -> Pattern | None:
    """By hour of the day; None if slots do not divide a day or there are too few days."""
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
    """What the day of the week adds to the hour of the day."""
    weeks = cycles_of(values, 7 * DAY_HOURS, slot_hours)
    if weeks is None or weeks.shape[0] < FEWEST_WEEKS or is_constant(weeks):
        return None
    per_day = weeks.shape[1] // 7
    if per_day * 7 != weeks.shape[1]:
        return None
    hour = _bins(weeks.shape[1], slot_hours)
    level = _level(weeks)
    # Turning by whole days leaves the hours of the day where they are.
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
    """The hours of the day, counted from the first slot, and the mean in each: for a figure."""
    days = cycles_of(values, DAY_HOURS, slot_hours)
    if days is None:
        return None
    hour = _bins(days.shape[1], slot_hours)
    hours = np.unique(np.floor(np.arange(days.shape[1]) * slot_hours + 1e-9))
    return hours, _bin_means(days.mean(axis=0), hour)


def cycles_of(
    values: NDArray[np.float64], cycle_hours: float, slot_hours: float
) -> NDArray[np.float64] | None:
    """One row for each whole cycle; what is left over at the end is not used."""
    per_cycle = round(cycle_hours / slot_hours)
    if per_cycle < 2 or abs(per_cycle * slot_hours - cycle_hours) > 1e-6 * cycle_hours:
        return None
    count = values.size // per_cycle
    return values[: count * per_cycle].reshape(count, per_cycle) if count else None


def _bins(per_cycle: int, slot_hours: float) -> NDArray[np.int64]:
    """The hour that each slot of a cycle begins in, as numbers without gaps."""
    hours = np.floor(np.arange(per_cycle) * slot_hours + 1e-9)
    return np.unique(hours, return_inverse=True)[1].astype(np.int64)


def _bin_means(profile: NDArray[np.float64], hour: NDArray[np.int64]) -> NDArray[np.float64]:
    means: NDArray[np.float64] = np.bincount(hour, weights=profile) / np.bincount(hour)
    return means


def _explained(profile: NDArray[np.float64], hour: NDArray[np.int64]) -> float:
    """The variance between the hours of a mean cycle."""
    return float((_bin_means(profile, hour)[hour] - profile.mean()).var())


def _level(cycles: NDArray[np.float64]) -> NDArray[np.float64]:
    """Each cycle less the straight line from its start to the next one's.

    What is left of a series that wanders can be turned without a step at the seam; else such a
    series would seem to follow the clock more often than chance allows.
    """
    starts = np.append(cycles[:, 0], cycles[-1, -1])
    line = np.arange(cycles.shape[1]) / cycles.shape[1]
    level: NDArray[np.float64] = cycles - np.diff(starts)[:, np.newaxis] * line
    return level


def _turned(cycles: NDArray[np.float64], turn: NDArray[np.int64]) -> NDArray[np.float64]:
    """The mean of the cycles, each begun at its own place."""
    places = (np.arange(cycles.shape[1]) + turn[:, np.newaxis]) % cycles.shape[1]
    mean: NDArray[np.float64] = np.take_along_axis(cycles, places, axis=1).mean(axis=0)
    return mean


def _pattern(
    cycles: NDArray[np.float64], found: float, null: NDArray[np.float64], amplitude: float
) -> Pattern:
    variance = float(cycles.var())
    at_least = int((null >= found * (1 - 1e-9)).sum())
    return Pattern(
        cycles=cycles.shape[0],
        share=max(0.0, found / variance),
        chance=float(np.clip(null.mean() / variance, 0.0, 1.0)),
        p_value=(1 + at_least) / (1 + null.size),
        amplitude=amplitude,
    )
