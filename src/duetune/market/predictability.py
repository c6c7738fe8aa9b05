"""How far the past of a market tells its future."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import numpy as np

from duetune.errors import InvalidInput
from duetune.market.predictability_pattern import (
    DAY_HOURS,
    Lag,
    Pattern,
    autocorrelations,
    cycles_of,
    daily_pattern,
    is_constant,
    weekly_pattern,
)
from duetune.market.predictability_skill import HORIZON_HOURS, Horizon, skill_by_horizon
from duetune.market.predictability_spells import Entropy, Survival, entropy, survival

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from duetune.core.market import MarketTrace

FEWEST_DAYS_TO_CORRELATE = 5


class SeriesPredictability(msgspec.Struct, frozen=True):
    """Of one series of numbers. A pattern is None where the series is too short for it."""

    acf: tuple[Lag, ...]
    daily: Pattern | None
    weekly: Pattern | None
    horizons: tuple[Horizon, ...]


class Predictability(msgspec.Struct, frozen=True):
    """Of one pool. ``available`` is of the count, ``price`` of spot over on-demand.

    Entropy and survival are of up and down, in slots; correlations are of price and count.
    """

    available: SeriesPredictability
    price: SeriesPredictability
    entropy: Entropy
    up: Survival | None
    down: Survival | None
    correlation: float | None
    correlation_of_days: float | None


def predictability(trace: MarketTrace, *, gpus: int, seed: int) -> Predictability:
    """Of the first pool; ``seed`` is of the series that tell what chance would show."""
    counts = trace.available[0].astype(np.float64)
    ratio = trace.spot_price[0] / trace.on_demand_price[0]
    up = trace.available[0] >= gpus
    return Predictability(
        available=series_predictability(counts, trace.slot_hours, seed=seed),
        price=series_predictability(ratio, trace.slot_hours, seed=seed),
        entropy=entropy(up),
        up=survival(up, trace.slot_hours),
        down=survival(~up, trace.slot_hours),
        correlation=correlation(ratio, counts),
        correlation_of_days=_correlation_of_days(ratio, counts, trace.slot_hours),
    )


def series_predictability(
    values: NDArray[np.float64],
    slot_hours: float,
    *,
    seed: int,
    horizons: Sequence[float] = HORIZON_HOURS,
) -> SeriesPredictability:
    """Of any series of numbers, one for each slot."""
    if seed < 0:
        raise InvalidInput("seed", seed, "a whole number, zero or more")
    random = np.random.default_rng(seed)
    return SeriesPredictability(
        acf=autocorrelations(values, slot_hours),
        daily=daily_pattern(values, slot_hours, random),
        weekly=weekly_pattern(values, slot_hours, random),
        horizons=skill_by_horizon(values, slot_hours, horizons=horizons),
    )


def correlation(one: NDArray[np.float64], other: NDArray[np.float64]) -> float | None:
    """Pearson's; None if either does not move."""
    if is_constant(one) or is_constant(other):
        return None
    return float(np.corrcoef(one, other)[0, 1])


def _correlation_of_days(
    price: NDArray[np.float64], counts: NDArray[np.float64], slot_hours: float
) -> float | None:
    days = [cycles_of(series, DAY_HOURS, slot_hours) for series in (price, counts)]
    if days[0] is None or days[1] is None or days[0].shape[0] < FEWEST_DAYS_TO_CORRELATE:
        return None
    return correlation(days[0].mean(axis=1), days[1].mean(axis=1))
