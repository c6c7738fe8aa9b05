"""Statistics of a market in a dozen numbers, and how well its past predicts its future.

The parts of the second are in ``predictability_pattern``, ``predictability_skill`` and
``predictability_spells``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import numpy as np

from duetune.errors import InvalidInput
from duetune.market.predictability_pattern import (
    DAY_HOURS,
    Lag,
    Pattern,
    autocorrelation,
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


class MarketStatistics(msgspec.Struct, frozen=True):
    """The figures of one pool.

    A slot is up if at least ``gpus`` are available; a loss ends a run of up slots. Correlations and
    spells are of up and down. ``spot_usd_gpu_h`` has the prices that 10%, 50% and 90% of the slots
    do not exceed; ``on_demand_usd_gpu_h`` is a mean. A figure that the trace cannot give (no spell,
    no variation, shorter than the lag) is None.
    """

    slots: int
    slot_hours: float
    gpus: int
    share_available: float
    mean_available: float
    acf_1h: float | None
    acf_24h: float | None
    diurnal_amplitude: float | None
    mean_up_hours: float | None
    mean_down_hours: float | None
    losses_per_day: float
    ratio_p10: float
    ratio_p50: float
    ratio_p90: float
    price_acf_24h: float | None
    share_above_on_demand: float
    spot_usd_gpu_h: tuple[float, float, float]
    on_demand_usd_gpu_h: float
    predictability: Predictability | None = None


def market_statistics(
    trace: MarketTrace,
    *,
    pool: str | None = None,
    gpus: int = 1,
    predictable: bool = False,
    seed: int = 0,
) -> MarketStatistics:
    """Return the figures of one pool, by default the first.

    ``predictable`` adds how well its past predicts its future, which takes much longer. ``seed`` is
    for the random series that show what chance alone would give.
    """
    if gpus < 1:
        raise InvalidInput("gpus", gpus, "one or more")
    view = trace.pool(pool)
    counts = view.available[0]
    up = counts >= gpus
    ratio = view.spot_price[0] / view.on_demand_price[0]
    low, middle, high = (float(value) for value in np.quantile(ratio, [0.1, 0.5, 0.9]))
    dollars = np.quantile(view.spot_price[0] / view.slot_hours, [0.1, 0.5, 0.9]).tolist()
    changes = np.diff(up.astype(np.int8))
    days = view.slots * view.slot_hours / 24
    signal = up.astype(np.float64)
    return MarketStatistics(
        slots=view.slots,
        slot_hours=view.slot_hours,
        gpus=gpus,
        share_available=float(up.mean()),
        mean_available=float(counts.mean()),
        acf_1h=autocorrelation(signal, 1.0, view.slot_hours),
        acf_24h=autocorrelation(signal, 24.0, view.slot_hours),
        diurnal_amplitude=_diurnal_amplitude(signal, view.slot_hours),
        mean_up_hours=_mean_spell(up, view.slot_hours),
        mean_down_hours=_mean_spell(~up, view.slot_hours),
        losses_per_day=float((changes < 0).sum() / days),
        ratio_p10=low,
        ratio_p50=middle,
        ratio_p90=high,
        price_acf_24h=autocorrelation(ratio, 24.0, view.slot_hours),
        share_above_on_demand=float((ratio > 1).mean()),
        spot_usd_gpu_h=(dollars[0], dollars[1], dollars[2]),
        on_demand_usd_gpu_h=float(view.on_demand_price[0].mean() / view.slot_hours),
        predictability=predictability(view, gpus=gpus, seed=seed) if predictable else None,
    )


def _diurnal_amplitude(signal: NDArray[np.float64], slot_hours: float) -> float | None:
    """Return the range of the means by hour of the day, counted from the first slot."""
    if signal.size * slot_hours < 48 or slot_hours > 1:
        return None
    hour = (np.arange(signal.size) * slot_hours % 24).astype(np.int64)
    means = np.bincount(hour, weights=signal) / np.bincount(hour)
    return float(np.ptp(means))


def _mean_spell(state: NDArray[np.bool_], slot_hours: float) -> float | None:
    """Return the mean length of spells, in hours."""
    # Spells that the trace cuts off count with their visible length.
    begins = int(state[0]) + int((np.diff(state.astype(np.int8)) > 0).sum())
    return float(state.sum() * slot_hours / begins) if begins else None


FEWEST_DAYS_TO_CORRELATE = 5


class SeriesPredictability(msgspec.Struct, frozen=True):
    """The predictability of one series. A pattern is None if the series is too short for it."""

    acf: tuple[Lag, ...]
    daily: Pattern | None
    weekly: Pattern | None
    horizons: tuple[Horizon, ...]


class Predictability(msgspec.Struct, frozen=True):
    """The predictability of one pool: of the count and of spot over on-demand price.

    Entropy and survival are of up and down, in slots. Correlations are between price and count.
    """

    available: SeriesPredictability
    price: SeriesPredictability
    entropy: Entropy
    up: Survival | None
    down: Survival | None
    correlation: float | None
    correlation_of_days: float | None


def predictability(trace: MarketTrace, *, gpus: int, seed: int) -> Predictability:
    """Return the predictability of the first pool; ``seed`` is for the comparison with chance."""
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
    """Return the predictability of any series with one number per slot."""
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
    """Return Pearson's correlation, or None if a series is constant."""
    if is_constant(one) or is_constant(other):
        return None
    return float(np.corrcoef(one, other)[0, 1])


def _correlation_of_days(
    price: NDArray[np.float64], counts: NDArray[np.float64], slot_hours: float
) -> float | None:
    """Return the correlation of daily means, or None if there are too few days."""
    days = [cycles_of(series, DAY_HOURS, slot_hours) for series in (price, counts)]
    if days[0] is None or days[1] is None or days[0].shape[0] < FEWEST_DAYS_TO_CORRELATE:
        return None
    return correlation(days[0].mean(axis=1), days[1].mean(axis=1))
