"""Skill by horizon: the gain of simple causal predictors over the last value.

These are diagnostics of a series, each a line of arithmetic over its past. The forecasters that
policies use are in ``duetune.market.forecast``.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from duetune.market.predictability_pattern import DAY_HOURS, is_constant, whole_slots

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

HORIZON_HOURS = (1.0, 3.0, 6.0, 12.0, 24.0)
FEWEST_ORIGINS = 24


class Predictor(StrEnum):
    """A prediction of a later slot from the slots so far.

    - MEAN: the mean so far.
    - SEASONAL: the value a day before.
    - HOURLY: the mean so far of that hour of the day.
    - DAMPED: the last value, moved towards the mean by a coefficient fitted to the past.
    - DAMPED_HOURLY: the same, moved towards the mean of the hour.
    - TREND: the last value, plus as much of its last step as the past suggests.
    - MARKOV: two states with transitions counted so far, for series of two values.
    """

    MEAN = "mean"
    SEASONAL = "seasonal"
    HOURLY = "hourly"
    DAMPED = "damped"
    DAMPED_HOURLY = "damped_hourly"
    TREND = "trend"
    MARKOV = "markov"


class Skill(msgspec.Struct, frozen=True):
    """1 minus the error divided by that of the last value: 0 is no better, below 0 is worse.

    For ``absolute``, predictions of a whole-numbered series are rounded, as a median would be.
    ``squared`` scores the mean unrounded.
    """

    predictor: Predictor
    absolute: float | None
    squared: float | None


class Horizon(msgspec.Struct, frozen=True):
    """The skills at one horizon.

    ``explained`` is the share of the mean's squared error that knowing the last value removes. It
    is that of DAMPED, which can fall back to the mean. Near 0, the past does not help beyond its
    mean.
    """

    hours: float
    origins: int
    last_value_mae: float
    last_value_rmse: float
    explained: float | None
    skills: tuple[Skill, ...]

    def squared(self, predictor: Predictor) -> float | None:
        """Return a predictor's skill by squared error, or None if it was not scored."""
        return next((skill.squared for skill in self.skills if skill.predictor is predictor), None)

    def absolute(self, predictor: Predictor) -> float | None:
        """Return a predictor's skill by absolute error, or None if it was not scored."""
        return next((skill.absolute for skill in self.skills if skill.predictor is predictor), None)


def skill_by_horizon(
    values: NDArray[np.float64],
    slot_hours: float,
    *,
    horizons: Sequence[float] = HORIZON_HOURS,
) -> tuple[Horizon, ...]:
    """Return the skills from every slot after the first quarter and the first day.

    The result is empty for a constant series. A horizon that is not a whole number of slots, or
    leaves too few slots, is left out.
    """
    if is_constant(values):
        return ()
    day = whole_slots(DAY_HOURS, slot_hours)
    first = max(day, values.size // 4)
    found = []
    for hours in horizons:
        ahead = whole_slots(hours, slot_hours)
        origins = values.size - ahead - first
        if ahead and origins >= FEWEST_ORIGINS:
            found.append(_scored(values, first, ahead, day, hours))
    return tuple(found)


def predictions(
    values: NDArray[np.float64], ahead: int, day: int
) -> dict[Predictor, NDArray[np.float64]]:
    """Return what each predictor expects, in every slot, of the slot ``ahead`` slots later.

    ``day`` is the number of slots in a day. Predictors that need a day of history use the mean so
    far until there is one.
    """
    mean = values.cumsum() / np.arange(1, values.size + 1)
    expected = {
        Predictor.MEAN: mean,
        Predictor.DAMPED: mean + _coefficient(values - mean, ahead) * (values - mean),
        Predictor.TREND: values + _drift(values, ahead),
    }
    if day:
        by_hour = _hourly(values, day)
        back = day * -(-ahead // day) - ahead
        anomaly = values - _shifted(by_hour, day, mean)
        hourly = _shifted(by_hour, back, mean)
        expected[Predictor.SEASONAL] = _shifted(values, back, mean)
        expected[Predictor.HOURLY] = hourly
        expected[Predictor.DAMPED_HOURLY] = hourly + _coefficient(anomaly, ahead) * anomaly
    levels = np.unique(values)
    if levels.size == 2:
        chance = _markov(values > levels[0], ahead)
        expected[Predictor.MARKOV] = levels[0] + (levels[1] - levels[0]) * chance
    return expected


def _scored(values: NDArray[np.float64], first: int, ahead: int, day: int, hours: float) -> Horizon:
    """Return the errors and skills at one horizon."""
    origins = np.arange(first, values.size - ahead)
    truth = values[origins + ahead]
    whole = bool((values == np.rint(values)).all())
    expected = predictions(values, ahead, day)
    plain = values[origins] - truth
    absolute, squared = float(np.abs(plain).mean()), float((plain**2).mean())
    skills, errors = [], {}
    for predictor, guess in expected.items():
        chosen = guess[origins]
        errors[predictor] = float(((chosen - truth) ** 2).mean())
        rounded = np.floor(chosen + 0.5) if whole else chosen
        skills.append(
            Skill(
                predictor,
                absolute=_better(float(np.abs(rounded - truth).mean()), absolute),
                squared=_better(errors[predictor], squared),
            )
        )
    return Horizon(
        hours=hours,
        origins=origins.size,
        last_value_mae=absolute,
        last_value_rmse=float(np.sqrt(squared)),
        explained=_better(errors[Predictor.DAMPED], errors[Predictor.MEAN]),
        skills=tuple(skills),
    )


def _better(error: float, reference: float) -> float | None:
    """Return the skill: 1 - error / reference."""
    return 1 - error / reference if reference > 0 else None


def _coefficient(anomaly: NDArray[np.float64], ahead: int) -> NDArray[np.float64]:
    """Return the fitted coefficient of the anomaly ``ahead`` slots later, from 0 to 1."""
    product, square = np.zeros(anomaly.size), np.zeros(anomaly.size)
    if anomaly.size > ahead:
        product[ahead:] = (anomaly[:-ahead] * anomaly[ahead:]).cumsum()
        square[ahead:] = (anomaly[:-ahead] ** 2).cumsum()
    ratio = np.divide(product, square, out=np.ones(anomaly.size), where=square > 0)
    clipped: NDArray[np.float64] = np.clip(ratio, 0.0, 1.0)
    return clipped


def _drift(values: NDArray[np.float64], ahead: int) -> NDArray[np.float64]:
    """Return the expected further change after the last step, as after such steps so far."""
    step = np.diff(values, prepend=values[:1])
    product, square = np.zeros(values.size), np.zeros(values.size)
    if values.size > ahead:
        product[ahead:] = (step[:-ahead] * (values[ahead:] - values[:-ahead])).cumsum()
        square[ahead:] = (step[:-ahead] ** 2).cumsum()
    ratio = np.divide(product, square, out=np.zeros(values.size), where=square > 0)
    drift: NDArray[np.float64] = np.clip(ratio, -1.0, ahead) * step
    return drift


def _hourly(values: NDArray[np.float64], day: int) -> NDArray[np.float64]:
    """Return, in every slot, the mean of it and of all slots whole days before."""
    days = -(-values.size // day)
    padded = np.zeros(days * day)
    padded[: values.size] = values
    means = padded.reshape(days, day).cumsum(axis=0) / np.arange(1, days + 1)[:, np.newaxis]
    flat: NDArray[np.float64] = means.reshape(-1)[: values.size]
    return flat


def _shifted(
    values: NDArray[np.float64], back: int, otherwise: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return the value ``back`` slots before each slot, or ``otherwise`` if there is none."""
    shifted = otherwise.copy()
    shifted[back:] = values[: values.size - back]
    return shifted


def _markov(up: NDArray[np.bool_], ahead: int) -> NDArray[np.float64]:
    """Return the probability of up, ``ahead`` slots later; counts begin at one half."""
    was, becomes = up[:-1], up[1:]

    def share(of: NDArray[np.bool_], where: NDArray[np.bool_]) -> NDArray[np.float64]:
        seen = np.concatenate(([0], where.cumsum()))
        hit = np.concatenate(([0], (of & where).cumsum()))
        found: NDArray[np.float64] = (hit + 0.5) / (seen + 1)
        return found

    lost, won = share(~becomes, was), share(becomes, ~was)
    lasting = won / (won + lost)
    chance: NDArray[np.float64] = lasting + (1 - won - lost) ** ahead * (up - lasting)
    return chance
