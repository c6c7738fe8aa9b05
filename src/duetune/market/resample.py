"""Other slot lengths, parts of a trace, and prices joined with counts of another trace."""

from __future__ import annotations

from datetime import timedelta
from enum import StrEnum
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from duetune.core.market import MarketTrace
from duetune.errors import InvalidInput
from duetune.market.slot_grid import (
    MICROSECONDS_PER_HOUR,
    aware_microseconds,
    checked_slot_hours,
    microseconds,
)

if TYPE_CHECKING:
    from datetime import datetime

    from numpy.typing import NDArray

# Slot edges closer than this share of a slot are equal: sums of 1/6 h are not exact.
SAME_EDGE = 1e-9


class Availability(StrEnum):
    """The rule for the GPUs of a longer slot if the count changes within it.

    - MIN: the GPUs that are there during the whole slot.
    - START: the GPUs at its start.
    - MEAN: the mean over time, rounded down.
    """

    MIN = "min"
    START = "start"
    MEAN = "mean"


def availability_named(mode: Availability | str) -> Availability:
    """Return the rule that a user named, or refuse an unknown name."""
    try:
        return Availability(mode)
    except ValueError:
        raise InvalidInput("availability", mode, "min, start or mean") from None


def resample(
    trace: MarketTrace, slot_hours: float | None, *, availability: Availability | str = "min"
) -> MarketTrace:
    """Return the same market in slots of another length, from the same start.

    Prices per hour are time-weighted means. A last slot that the trace does not fill is left out.
    Without ``slot_hours`` the trace is returned unchanged.
    """
    mode = availability_named(availability)
    if slot_hours is None or checked_slot_hours(slot_hours) == trace.slot_hours:
        return trace
    ratio = slot_hours / trace.slot_hours
    count = int(np.floor(trace.slots / ratio + SAME_EDGE))
    if count == 0:
        hours = trace.slots * trace.slot_hours
        raise InvalidInput("slot_hours", slot_hours, f"at most the {hours:g} h of the trace")
    edges = np.arange(count + 1) * ratio
    whole = np.rint(edges)
    edges = np.where(np.abs(edges - whole) <= SAME_EDGE, whole, edges)
    edges = np.minimum(edges, trace.slots)
    points = np.union1d(edges, np.arange(np.ceil(edges[-1])))
    points = points[points <= edges[-1]]
    lengths = np.diff(points)
    old = np.floor(points[:-1]).astype(np.int64)
    first = np.searchsorted(points, edges[:-1])

    if mode is Availability.START:
        available = trace.available[:, old[first]]
    elif mode is Availability.MEAN:
        mean = _mean(trace.available.astype(np.float64), old, lengths, first)
        available = np.floor(mean + SAME_EDGE).astype(np.int64)
    else:
        available = np.minimum.reduceat(trace.available[:, old], first, axis=1)
    return msgspec.structs.replace(
        trace,
        spot_price=_mean(trace.spot_price / trace.slot_hours, old, lengths, first) * slot_hours,
        on_demand_price=(
            _mean(trace.on_demand_price / trace.slot_hours, old, lengths, first) * slot_hours
        ),
        available=available,
        slot_hours=slot_hours,
    )


def _mean(
    values: NDArray[np.float64],
    old: NDArray[np.int64],
    lengths: NDArray[np.float64],
    first: NDArray[np.int64],
) -> NDArray[np.float64]:
    """Return the time-weighted mean of the old slots in each new slot."""
    covered = values[:, old]
    mean = np.add.reduceat(covered * lengths, first, axis=1) / np.add.reduceat(lengths, first)
    # Clipped, so that rounding does not change a constant price.
    low = np.minimum.reduceat(covered, first, axis=1)
    high = np.maximum.reduceat(covered, first, axis=1)
    clipped: NDArray[np.float64] = np.clip(mean, low, high)
    return clipped


def slice_slots(trace: MarketTrace, start: int, stop: int) -> MarketTrace:
    """Return slots ``start`` to ``stop``, without ``stop`` itself."""
    if not 0 <= start < trace.slots:
        raise InvalidInput("start", start, f"a slot from 0 to {trace.slots - 1}")
    if not start < stop <= trace.slots:
        raise InvalidInput("stop", stop, f"a slot from {start + 1} to {trace.slots}")
    begin = trace.start
    if begin is not None:
        begin += timedelta(hours=start * trace.slot_hours)
    return msgspec.structs.replace(
        trace,
        spot_price=trace.spot_price[:, start:stop],
        available=trace.available[:, start:stop],
        on_demand_price=trace.on_demand_price[:, start:stop],
        start=begin,
    )


def slice_time(
    trace: MarketTrace, start: datetime | None = None, stop: datetime | None = None
) -> MarketTrace:
    """Return the slots that lie completely between two times."""
    if trace.start is None:
        raise InvalidInput("trace", trace.name, "a trace with a start time")
    origin, slot = microseconds(trace.start), trace.slot_hours * MICROSECONDS_PER_HOUR
    first, last = 0, trace.slots
    if start is not None:
        offset = (aware_microseconds(start, "start") - origin) / slot
        first = max(first, int(np.ceil(offset - SAME_EDGE)))
    if stop is not None:
        offset = (aware_microseconds(stop, "stop") - origin) / slot
        last = min(last, int(np.floor(offset + SAME_EDGE)))
    if first >= last:
        end = trace.start + timedelta(hours=trace.slots * trace.slot_hours)
        asked = f"{start} to {stop}"
        spans = f"at least one whole slot of {trace.start.isoformat()} to {end.isoformat()}"
        raise InvalidInput("time range", asked, spans)
    return slice_slots(trace, first, last)


def with_availability(prices: MarketTrace, counts: MarketTrace | int) -> MarketTrace:
    """Return the prices of one market with the GPU counts of another, aligned at their first slots.

    The counts are resampled to the slots of the prices, and the result is as long as the shorter
    trace. The two sources were not measured together; say so wherever results are shown.
    """
    if not isinstance(counts, MarketTrace):
        if counts < 0:
            raise InvalidInput("available", counts, "zero or more GPUs")
        everywhere = np.full(prices.spot_price.shape, counts, dtype=np.int64)
        return msgspec.structs.replace(prices, available=everywhere)
    other = resample(counts, prices.slot_hours)
    if len(other.pools) not in {1, len(prices.pools)}:
        allowed = f"one pool, or {len(prices.pools)} as the prices have"
        raise InvalidInput("available", f"{len(other.pools)} pools", allowed)
    shorter = slice_slots(prices, 0, min(prices.slots, other.slots))
    available = np.broadcast_to(other.available[:, : shorter.slots], shorter.spot_price.shape)
    return msgspec.structs.replace(shorter, available=available.copy())
