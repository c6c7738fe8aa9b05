"""Values that hold from one event to the next, read off at the start of every slot.

The value at the start is what a scheduler can know when the slot begins; a mean over the slot
would let it see changes to come.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import msgspec
import numpy as np
from numpy.typing import NDArray

from duetune.errors import InvalidInput
from duetune.market.slot_grid import LARGEST_GRID, Grid
from duetune.market.timestamps import MICROSECONDS_PER_HOUR, written

if TYPE_CHECKING:
    from collections.abc import Sequence

    from duetune.core.market import Pool


class Steps(msgspec.Struct, frozen=True, eq=False):
    """One pool's events in order of time; a NaN price means that there was none.

    ``confirmed`` are the moments at which someone looked, whether or not anything had changed.
    """

    times: NDArray[np.int64]
    spot_usd_gpu_h: NDArray[np.float64]
    on_demand_usd_gpu_h: NDArray[np.float64]
    available: NDArray[np.int64]
    confirmed: NDArray[np.int64]


def whole_slot_after(time: int, slot_hours: float) -> int:
    """The first moment from ``time`` on that is a whole number of slots after 1970."""
    if not (np.isfinite(slot_hours) and slot_hours > 0):
        raise InvalidInput("slot_hours", slot_hours, "a positive number of hours")
    slot = slot_hours * MICROSECONDS_PER_HOUR
    return round(math.ceil(time / slot) * slot)


def step_grid(
    pools: tuple[Pool, ...],
    steps: Sequence[Steps],
    begin: int,
    end: int,
    slot_hours: float,
    max_hold_hours: float | None,
) -> Grid:
    """The slots that end by ``end``. A slot is absent before the first event, where a price is
    NaN, and wherever it begins between two looks more than ``max_hold_hours`` apart: a value
    is never carried into such a blind stretch."""
    if not (np.isfinite(slot_hours) and slot_hours > 0):
        raise InvalidInput("slot_hours", slot_hours, "a positive number of hours")
    slot = slot_hours * MICROSECONDS_PER_HOUR
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
    return Grid(begin, slot_hours, pools, spot, on_demand, available, present)


def _blind(
    starts: NDArray[np.int64], confirmed: NDArray[np.int64], longest: float
) -> NDArray[np.bool_]:
    before = np.searchsorted(confirmed, starts, side="right") - 1
    after = np.minimum(before + 1, confirmed.size - 1)
    last = confirmed[np.maximum(before, 0)]
    # After the last look there is no next one: what counts is how long ago that was.
    until = np.where(before + 1 < confirmed.size, confirmed[after], starts)
    blind: NDArray[np.bool_] = (starts > last) & (until - last > longest)
    return blind
