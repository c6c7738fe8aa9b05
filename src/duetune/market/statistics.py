"""What a market is like, in a dozen numbers: to calibrate, to compare, to report."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import numpy as np

from duetune.errors import InvalidInput
from duetune.market.predictability import Predictability, predictability
from duetune.market.predictability_pattern import autocorrelation

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from duetune.core.market import MarketTrace


class MarketStatistics(msgspec.Struct, frozen=True):
    """Of one pool. A slot is up when at least ``gpus`` are there; a loss ends a run of up slots.

    Correlations and spells are of up and down; a figure that a trace cannot give (no spell, no
    variation, shorter than the lag) is None.
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
    predictability: Predictability | None = None


def market_statistics(
    trace: MarketTrace,
    *,
    pool: str | None = None,
    gpus: int = 1,
    predictable: bool = False,
    seed: int = 0,
) -> MarketStatistics:
    """The figures of one pool, by default the first.

    ``predictable`` adds how far its past tells its future, which takes much longer; what chance
    would show is drawn by ``seed``.
    """
    if gpus < 1:
        raise InvalidInput("gpus", gpus, "one or more")
    view = trace.pool(pool)
    counts = view.available[0]
    up = counts >= gpus
    ratio = view.spot_price[0] / view.on_demand_price[0]
    low, middle, high = (float(value) for value in np.quantile(ratio, [0.1, 0.5, 0.9]))
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
        predictability=predictability(view, gpus=gpus, seed=seed) if predictable else None,
    )


def _diurnal_amplitude(signal: NDArray[np.float64], slot_hours: float) -> float | None:
    """Range of the mean over the days, by hour of the day counted from the first slot."""
    if signal.size * slot_hours < 48 or slot_hours > 1:
        return None
    hour = (np.arange(signal.size) * slot_hours % 24).astype(np.int64)
    means = np.bincount(hour, weights=signal) / np.bincount(hour)
    return float(np.ptp(means))


def _mean_spell(state: NDArray[np.bool_], slot_hours: float) -> float | None:
    # Spells that the edges of the trace cut off count as long as they are seen.
    begins = int(state[0]) + int((np.diff(state.astype(np.int8)) > 0).sum())
    return float(state.sum() * slot_hours / begins) if begins else None
