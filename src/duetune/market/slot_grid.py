"""The slot grid of a trace: one row per pool, one column per slot.

``place`` puts rows that were read from a table on the grid; ``price_steps`` makes a grid of prices
that change at any moment. ``one_trace`` and ``pieces`` turn the grid into traces: gaps are refused,
held or cut out. Times outside are ISO 8601 text with a zone, inside whole
microseconds since 1970.
"""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import TYPE_CHECKING

import msgspec
import numpy as np
from numpy.typing import NDArray

from duetune.core.market import MarketTrace, Pool
from duetune.errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Callable

LARGEST_GRID = 50_000_000
OFF_GRID = 0.1


class Gaps(StrEnum):
    """What to do if a slot has no observation.

    - ERROR: refuse the trace.
    - HOLD: repeat the last observation for a limited time.
    - LONGEST: use the longest stretch without a gap.
    """

    ERROR = "error"
    HOLD = "hold"
    LONGEST = "longest"


class GridObservations(msgspec.Struct, frozen=True, eq=False):
    """Rows as read, one observation of one pool each. Prices are dollars per GPU and hour.

    ``counted``: False where nobody counted the GPUs. ``at_least``: the count is a lower bound.
    Without them all rows have exact counts.
    """

    times: NDArray[np.int64]
    pool_index: NDArray[np.int64]
    pools: tuple[Pool, ...]
    spot_usd_gpu_h: NDArray[np.float64]
    on_demand_usd_gpu_h: NDArray[np.float64]
    available: NDArray[np.int64]
    counted: NDArray[np.bool_] | None = None
    at_least: NDArray[np.bool_] | None = None

    def check(self) -> None:
        """Refuse impossible values and times that do not increase, naming the row (from 1)."""
        if not self.times.size:
            raise InvalidInput("trace", "no rows", "at least one row")
        spot, on_demand = self.spot_usd_gpu_h, self.on_demand_usd_gpu_h
        self._refuse("spot_usd_gpu_h", spot, ~np.isfinite(spot) | (spot < 0), "zero or more")
        bad = ~np.isfinite(on_demand) | (on_demand <= 0)
        self._refuse("on_demand_usd_gpu_h", on_demand, bad, "a positive number")
        self._refuse("available", self.available, self.available < 0, "zero or more GPUs")
        for index, pool in enumerate(self.pools):
            rows = np.flatnonzero(self.pool_index == index)
            steps = np.diff(self.times[rows])
            if (steps <= 0).any():
                first = int(np.flatnonzero(steps <= 0)[0])
                row, time = int(rows[first + 1]), written(self.times[rows[first + 1]])
                fault = "duplicate" if steps[first] == 0 else "earlier than the row before"
                raise InvalidInput(
                    f"time in row {row + 1} ({fault}, pool {pool.name!r})",
                    time,
                    "strictly increasing times in every pool",
                )

    def _refuse(
        self,
        column: str,
        values: NDArray[np.float64] | NDArray[np.int64],
        bad: NDArray[np.bool_],
        allowed: str,
    ) -> None:
        if bad.any():
            row = int(np.flatnonzero(bad)[0])
            where = f"{column} in row {row + 1} ({written(self.times[row])})"
            raise InvalidInput(where, values[row].item(), allowed)


class Grid(msgspec.Struct, frozen=True, eq=False):
    """All slots of all pools.

    ``present``: cells with a row, whose prices are known. ``counted``: those whose GPUs are known
    too. ``at_least``: counts that are lower bounds.
    """

    start: int
    slot_hours: float
    pools: tuple[Pool, ...]
    spot_usd_gpu_h: NDArray[np.float64]
    on_demand_usd_gpu_h: NDArray[np.float64]
    available: NDArray[np.int64]
    present: NDArray[np.bool_]
    counted: NDArray[np.bool_]
    at_least: NDArray[np.bool_]

    def time(self, slot: int) -> float:
        """Return the start of a slot in microseconds since 1970."""
        return self.start + slot * self.slot_hours * MICROSECONDS_PER_HOUR


def place(observations: GridObservations, slot_hours: float | None = None) -> Grid:
    """Return the grid with every row in its slot.

    Without ``slot_hours`` the slot length is the usual step between rows.
    """
    observations.check()
    times, rows = observations.times, observations.pool_index
    if slot_hours is None:
        slot_hours = _usual_step(observations) / MICROSECONDS_PER_HOUR
    start, slot = int(times.min()), checked_slot_hours(slot_hours) * MICROSECONDS_PER_HOUR
    position = (times - start) / slot
    slots = np.rint(position).astype(np.int64)
    # Written times are rounded to microseconds, whatever the slot length.
    tolerance = OFF_GRID + 1 / slot
    off = np.abs(position - slots) > tolerance
    if off.any():
        row = int(np.flatnonzero(off)[0])
        raise InvalidInput(
            f"time in row {row + 1}",
            written(times[row]),
            f"a whole number of {slot_hours:g} h slots after {written(start)}",
        )
    width = int(slots.max()) + 1
    shape = (len(observations.pools), width)
    if shape[0] * width > LARGEST_GRID:
        last = int(times.argmax())
        raise InvalidInput(
            f"time in row {last + 1}",
            written(times[last]),
            f"at most {LARGEST_GRID:,} slots; this would need {width:,} of {slot_hours:g} h",
        )
    present = np.zeros(shape, dtype=np.bool_)
    spot, on_demand = np.zeros(shape), np.zeros(shape)
    available = np.zeros(shape, dtype=np.int64)
    present[rows, slots] = True
    if int(present.sum()) != times.size:
        _refuse_crowded(observations, slots, slot_hours)
    spot[rows, slots] = observations.spot_usd_gpu_h
    on_demand[rows, slots] = observations.on_demand_usd_gpu_h
    available[rows, slots] = observations.available
    counted, at_least = present.copy(), np.zeros(shape, dtype=np.bool_)
    if observations.counted is not None:
        counted[rows, slots] = observations.counted
    if observations.at_least is not None:
        at_least[rows, slots] = observations.at_least
    return Grid(
        start,
        slot_hours,
        observations.pools,
        spot,
        on_demand,
        available,
        present,
        counted,
        at_least,
    )


def _refuse_crowded(
    observations: GridObservations, slots: NDArray[np.int64], slot_hours: float
) -> None:
    """Refuse two rows in one slot, and name the later one."""
    cells = observations.pool_index * (slots.max() + 1) + slots
    order = np.argsort(cells, kind="stable")
    row = int(order[1:][np.diff(cells[order]) == 0].min())
    allowed = f"one row for each {slot_hours:g} h slot of a pool"
    raise InvalidInput(f"time in row {row + 1}", written(observations.times[row]), allowed)


def _usual_step(observations: GridObservations) -> float:
    """Return the median step between the rows of a pool, in microseconds."""
    steps = [
        np.diff(observations.times[observations.pool_index == index])
        for index in range(len(observations.pools))
    ]
    joined = np.concatenate(steps)
    if not joined.size:
        allowed = "a slot length, because the file has only one time"
        raise InvalidInput("slot_hours", None, allowed)
    # The lower median is an observed step; the mean of two steps may not be one.
    return float(np.sort(joined)[(joined.size - 1) // 2])


def one_trace(grid: Grid, *, gaps: Gaps | str, max_hold_hours: float, name: str) -> MarketTrace:
    """Return the grid as one trace; ``gaps`` says what happens to slots without an observation."""
    rule = gaps_named(gaps)
    if rule is Gaps.LONGEST:
        return max(pieces(grid, name=name), key=lambda piece: piece.slots)
    if rule is Gaps.HOLD:
        grid = held(grid, max_hold_hours)
    if not grid.present.all():
        pool, slot = (int(index) for index in np.argwhere(~grid.present)[0])
        later = np.flatnonzero(grid.present[pool, slot:])
        until = f" before {written(grid.time(slot + int(later[0])))}" if later.size else ""
        allowed = f"a row for every {grid.slot_hours:g} h slot{until}"
        if rule is Gaps.HOLD:
            allowed += f", or gaps of at most {max_hold_hours:g} h after a row"
        where = f"gap in pool {grid.pools[pool].name!r}"
        raise InvalidInput(where, written(grid.time(slot)), allowed)
    if not grid.counted.all():
        pool, slot = (int(index) for index in np.argwhere(~grid.counted)[0])
        where = f"available in pool {grid.pools[pool].name!r} at {written(grid.time(slot))}"
        extra = f", or at most {max_hold_hours:g} h after one" if rule is Gaps.HOLD else ""
        raise InvalidInput(where, "unknown", f"a number of GPUs in every slot{extra}")
    return _cut(grid, 0, grid.present.shape[1], name)


def pieces(grid: Grid, *, name: str) -> tuple[MarketTrace, ...]:
    """Return every unbroken stretch in which all pools are counted, in order of time."""
    whole = grid.counted.all(axis=0)
    edges = np.flatnonzero(np.diff(np.concatenate(([False], whole, [False])).astype(np.int8)))
    if not edges.size:
        names = [pool.name for pool in grid.pools]
        raise InvalidInput("pools", names, "at least one slot in which all of them are present")
    return tuple(
        _cut(grid, int(first), int(stop), name)
        for first, stop in zip(edges[::2], edges[1::2], strict=True)
    )


def gaps_named(gaps: Gaps | str) -> Gaps:
    """Return the rule for gaps that a user named, or refuse an unknown name."""
    try:
        return Gaps(gaps)
    except ValueError:
        allowed = "error, hold or longest (load_pieces gives every piece)"
        raise InvalidInput("gaps", gaps, allowed) from None


def held(grid: Grid, max_hold_hours: float, count_hours: float | None = None) -> Grid:
    """Return the grid with each gap filled from the last observation, for at most so many hours.

    Counts are held for ``count_hours`` if that is given.
    """
    source, present = _latest(grid.present, grid.slot_hours, max_hold_hours)
    longest = max_hold_hours if count_hours is None else count_hours
    counts, counted = _latest(grid.counted, grid.slot_hours, longest)
    return msgspec.structs.replace(
        grid,
        spot_usd_gpu_h=np.take_along_axis(grid.spot_usd_gpu_h, source, axis=1),
        on_demand_usd_gpu_h=np.take_along_axis(grid.on_demand_usd_gpu_h, source, axis=1),
        available=np.take_along_axis(grid.available, counts, axis=1),
        at_least=np.take_along_axis(grid.at_least, counts, axis=1),
        present=present,
        counted=counted & present,
    )


def _latest(
    known: NDArray[np.bool_], slot_hours: float, max_hold_hours: float
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Return each slot's last known slot, and whether that was at most so many hours before."""
    columns = np.arange(known.shape[1])
    last = np.maximum.accumulate(np.where(known, columns, -1), axis=1)
    # With tolerance, because twelve slots of 1/6 h may not add up to exactly 2 h.
    fresh = (columns - last) * slot_hours <= max_hold_hours * (1 + 1e-9)
    return np.maximum(last, 0), (last >= 0) & fresh


def _cut(grid: Grid, first: int, stop: int, name: str) -> MarketTrace:
    """Return the slots from ``first`` to before ``stop`` as a trace."""
    moment = moment_at(grid.time(first))
    return MarketTrace(
        spot_price=grid.spot_usd_gpu_h[:, first:stop] * grid.slot_hours,
        available=grid.available[:, first:stop].copy(),
        on_demand_price=grid.on_demand_usd_gpu_h[:, first:stop] * grid.slot_hours,
        slot_hours=grid.slot_hours,
        pools=grid.pools,
        start=None if moment == EPOCH else moment,
        name=name,
    )


def dated(grid: Grid) -> bool:
    """Return whether the grid has real times; a trace without a start is written from 1970 on."""
    return moment_at(grid.start).year > EPOCH.year


def grid_of(trace: MarketTrace) -> Grid:
    """Return a trace as a grid in which every cell was observed."""
    whole = np.ones(trace.spot_price.shape, dtype=np.bool_)
    return Grid(
        start=microseconds(trace.start or EPOCH),
        slot_hours=trace.slot_hours,
        pools=trace.pools,
        spot_usd_gpu_h=trace.spot_price / trace.slot_hours,
        on_demand_usd_gpu_h=trace.on_demand_price / trace.slot_hours,
        available=trace.available,
        present=whole,
        counted=whole,
        at_least=~whole,
    )


def grid_of_pool(grid: Grid, name: str | None) -> Grid:
    """Return the grid of one pool; the name may be left out if there is only one."""
    names = [pool.name for pool in grid.pools]
    if (name is None and len(names) > 1) or (name is not None and name not in names):
        raise InvalidInput("pool", name, f"one of {', '.join(names)}")
    row = 0 if name is None else names.index(name)
    return each_array(grid, lambda cells: cells[row : row + 1], pools=(grid.pools[row],))


def each_array(
    grid: Grid,
    change: Callable[[NDArray[np.generic]], NDArray[np.generic]],
    **fields: object,
) -> Grid:
    """Return the grid with every array changed in the same way, and other ``fields`` replaced."""
    arrays = (
        "spot_usd_gpu_h",
        "on_demand_usd_gpu_h",
        "available",
        "present",
        "counted",
        "at_least",
    )
    changed = {field: change(getattr(grid, field)) for field in arrays}
    return msgspec.structs.replace(grid, **changed, **fields)


EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECONDS_PER_HOUR = 3_600_000_000
_MICROSECOND = timedelta(microseconds=1)


def checked_slot_hours(slot_hours: float) -> float:
    """Return the slot length, or refuse it if it is not a positive number of hours."""
    if not (math.isfinite(slot_hours) and slot_hours > 0):
        raise InvalidInput("slot_hours", slot_hours, "a positive number of hours")
    return slot_hours


def microseconds(moment: datetime) -> int:
    """Return microseconds since 1970, exactly; ``moment.timestamp()`` is a float."""
    return (moment - EPOCH) // _MICROSECOND


def moment_at(since_epoch: float) -> datetime:
    """Return the UTC time of so many microseconds since 1970."""
    return EPOCH + timedelta(microseconds=round(since_epoch))


def written(since_epoch: float) -> str:
    """Return the ISO-8601 text, ending in Z, of so many microseconds since 1970."""
    return moment_at(since_epoch).isoformat().replace("+00:00", "Z")


def parse_moment(text: object, where: str) -> int:
    """Return an ISO-8601 text as microseconds since 1970; errors name ``where``."""
    try:
        moment = datetime.fromisoformat(str(text).strip())
        if moment.tzinfo is None:
            raise InvalidInput(where, text, "a time with a zone, such as 2025-01-31T12:00:00Z")
        return microseconds(moment)
    except (ValueError, OverflowError):
        raise InvalidInput(where, text, "an ISO-8601 time with a zone") from None


def aware_microseconds(moment: datetime, where: str) -> int:
    """Return microseconds since 1970, or refuse a time without a time zone."""
    if moment.tzinfo is None:
        raise InvalidInput(where, moment.isoformat(), "a time with a time zone")
    return microseconds(moment)
