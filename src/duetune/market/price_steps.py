"""Prices that change at any moment, read at the start of each slot."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import msgspec
import numpy as np
from numpy.typing import NDArray

from duetune.errors import InvalidInput
from duetune.market.slot_grid import (
    LARGEST_GRID,
    MICROSECONDS_PER_HOUR,
    Grid,
    aware_microseconds,
    checked_slot_hours,
    written,
)

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from duetune.core.market import Pool


class Steps(msgspec.Struct, frozen=True, eq=False):
    """The events of one pool in order of time; a value holds until the next event.

    A NaN price means that there was none. ``confirmed`` are the times at which the collector
    looked, whether or not anything had changed.
    """

    times: NDArray[np.int64]
    spot_usd_gpu_h: NDArray[np.float64]
    on_demand_usd_gpu_h: NDArray[np.float64]
    available: NDArray[np.int64]
    confirmed: NDArray[np.int64]

    @classmethod
    def of_prices(
        cls,
        times: NDArray[np.int64],
        spot_usd_gpu_h: NDArray[np.float64],
        on_demand_usd_gpu_h: NDArray[np.float64],
        confirmed: NDArray[np.int64],
    ) -> Steps:
        """Return events that have prices only; nothing is available."""
        unknown = np.zeros(times.size, dtype=np.int64)
        return cls(times, spot_usd_gpu_h, on_demand_usd_gpu_h, unknown, confirmed)


def whole_slot_after(time: int, slot_hours: float) -> int:
    """Return the first time from ``time`` on that is a whole number of slots after 1970."""
    slot = checked_slot_hours(slot_hours) * MICROSECONDS_PER_HOUR
    return round(math.ceil(time / slot) * slot)


def time_range(
    first: int, last: int, slot_hours: float, start: datetime | None, stop: datetime | None
) -> tuple[int, int]:
    """Return where a grid begins and ends, in microseconds.

    Without ``start`` it begins with the first whole slot after ``first``; without ``stop`` it ends
    at ``last``.
    """
    begin = (
        whole_slot_after(first, slot_hours) if start is None else aware_microseconds(start, "start")
    )
    return begin, last if stop is None else aware_microseconds(stop, "stop")


def step_grid(
    pools: tuple[Pool, ...],
    steps: Sequence[Steps],
    begin: int,
    end: int,
    slot_hours: float,
    max_hold_hours: float | None,
) -> Grid:
    """Return the grid of the slots that end by ``end``, with the values in force when each begins.

    The value at the start is what a scheduler can know then; a mean over the slot would show it
    later changes. A slot is absent before the first event, if a price is NaN, and if it begins
    between two looks that are more than ``max_hold_hours`` apart.
    """
    slot = checked_slot_hours(slot_hours) * MICROSECONDS_PER_HOUR
    count = int(np.floor((end - begin) / slot + 1e-9))
    if count < 1 or count * len(pools) > LARGEST_GRID:
        asked = f"{written(begin)} to {written(end)}"
        raise InvalidInput("time range", asked, f"at least one slot of {slot_hours:g} h")
    starts = begin + np.rint(np.arange(count) * slot).astype(np.int64)
    shape = (len(pools), count)
    spot, on_demand = np.zeros(shape), np.zeros(shape)
    available = np.zeros(shape, dtype=np.int64)
    present = np.zeros(shape, dtype=np.bool_)
    for row, step in enumerate(steps):
        event = np.searchsorted(step.times, starts, side="right") - 1
        known = event >= 0
        event = np.maximum(event, 0)
        if max_hold_hours is not None:
            known &= ~_blind(starts, step.confirmed, max_hold_hours * MICROSECONDS_PER_HOUR)
        known &= np.isfinite(step.spot_usd_gpu_h[event])
        known &= np.isfinite(step.on_demand_usd_gpu_h[event])
        present[row] = known
        spot[row] = np.where(known, step.spot_usd_gpu_h[event], 0.0)
        on_demand[row] = np.where(known, step.on_demand_usd_gpu_h[event], 0.0)
        available[row] = np.where(known, step.available[event], 0)
    exact = np.zeros(shape, dtype=np.bool_)
    return Grid(begin, slot_hours, pools, spot, on_demand, available, present, present, exact)


def _blind(
    starts: NDArray[np.int64], confirmed: NDArray[np.int64], longest: float
) -> NDArray[np.bool_]:
    """Return which slots begin in a stretch without a look that is longer than ``longest``."""
    before = np.searchsorted(confirmed, starts, side="right") - 1
    after = np.minimum(before + 1, confirmed.size - 1)
    last = confirmed[np.maximum(before, 0)]
    # After the last look, the time since then counts.
    until = np.where(before + 1 < confirmed.size, confirmed[after], starts)
    blind: NDArray[np.bool_] = (starts > last) & (until - last > longest)
    return blind
