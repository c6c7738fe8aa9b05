"""Feeds over a recording: the file alone, and a live feed that remembers by its pool's file.

Gaps are held: a price stays as it was for a day, a count for two hours. After that a count is only
believed. History begins after the last longer gap, so the time of day stays right.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import numpy as np

from duetune.core.fleet import MarketReport
from duetune.core.market import MarketTrace, Slot
from duetune.errors import FleetError, InvalidInput, NotFound
from duetune.market.slot_grid import (
    Grid,
    each_array,
    grid_of_pool,
    held,
    microseconds,
    moment_at,
)
from duetune.market.traces import load_grid
from duetune.wall_clock import wall_now

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from numpy.typing import NDArray

    from duetune.core.market import Pool
    from duetune.core.ports import MarketFeed

HOLD_HOURS = 24.0
"""A recorded price is taken to hold for this long."""
COUNT_HOURS = 2.0
"""A recorded count, such as our last grant or refusal, is taken to hold for this long."""
OFF_GRID = 0.1

log = logging.getLogger(__name__)


class _Filled(NamedTuple):
    """The slots of one pool from 0 on, with gaps held; prices in dollars per GPU-hour."""

    spot: NDArray[np.float64]
    on_demand: NDArray[np.float64]
    available: NDArray[np.int64]
    priced: NDArray[np.bool_]
    counted: NDArray[np.bool_]


class RecordingReader:
    """Reads one pool of a recording, again after each change of the file.

    ``believed``: the GPUs where nothing was counted; a lower bound is lifted to it.
    """

    def __init__(self, path: Path, pool: str | None, believed: int) -> None:
        self.path, self._pool, self._believed = path, pool, believed
        self._stamp: tuple[int, int, int] | None = None
        self._grid: Grid | None = None

    def grid(self) -> Grid | None:
        """Return the recorded slots of the pool; None if there is no file yet.

        A file that has become unreadable is left aside: the slots of the last good one stay.
        """
        try:
            stat = self.path.stat()
        except OSError:
            return self._grid
        stamp = (stat.st_mtime_ns, stat.st_size, stat.st_ino)
        if stamp != self._stamp:
            try:
                self._grid, self._stamp = grid_of_pool(load_grid(self.path), self._pool), stamp
            except InvalidInput as error:
                if self._grid is None:
                    raise
                log.warning("the recording stays as it was: %s", error)
                self._stamp = stamp
        return self._grid

    def filled(
        self, grid: Grid, slots: int, hold_hours: float, told: NDArray[np.int64] | None = None
    ) -> _Filled:
        """Return the first ``slots`` slots with their gaps held.

        ``told`` is what is believed instead of ``believed`` in the last slots.
        """
        whole = held(_resized(grid, slots), hold_hours, min(hold_hours, COUNT_HOURS))
        beliefs = np.full(slots, self._believed, dtype=np.int64)
        if told is not None:
            beliefs[slots - told.size :] = told
        counts = whole.available[0]
        counts = np.where(whole.at_least[0], np.maximum(counts, beliefs), counts)
        return _Filled(
            whole.spot_usd_gpu_h[0],
            whole.on_demand_usd_gpu_h[0],
            np.where(whole.counted[0], counts, beliefs),
            whole.present[0],
            whole.counted[0],
        )

    def history(
        self,
        grid: Grid,
        present: int,
        slots: int,
        hold_hours: float,
        told: NDArray[np.int64] | None = None,
    ) -> MarketTrace | None:
        """Return up to ``slots`` slots before slot ``present``, after the last long gap."""
        if present < 1 or slots < 1:
            return None
        seen = self.filled(grid, present, hold_hours, told)
        gaps = np.flatnonzero(~seen.priced)
        first = max(present - slots, int(gaps[-1]) + 1 if gaps.size else 0)
        if first >= present:
            return None
        return MarketTrace.single(
            seen.spot[first:] * grid.slot_hours,
            seen.available[first:],
            seen.on_demand[first:] * grid.slot_hours,
            slot_hours=grid.slot_hours,
            pool=grid.pools[0],
            start=moment_at(grid.time(first)),
            name=self.path.stem,
        )


class RecordedFeed:
    """The ``MarketFeed`` of a recording that somebody else lets grow.

    The present slot has the values of the last recorded one, which may be ``hold_hours`` old.
    """

    def __init__(
        self,
        path: Path,
        pool: str | None,
        believed: int,
        hold_hours: float = HOLD_HOURS,
        clock: Callable[[], float] = wall_now,
    ) -> None:
        if not path.is_file():
            allowed = "an existing file; `duetune market record` writes one"
            raise InvalidInput("recording", str(path), allowed)
        self._reader = RecordingReader(path, pool, believed)
        self._hold_hours, self._clock = hold_hours, clock
        self.pool: Pool = self._slots().pools[0]

    def now(self) -> MarketReport:
        """Return the present slot with the last recorded values."""
        grid, at = self._slots(), self._clock()
        slot_s, start = grid.slot_hours * 3600, grid.start / 1e6
        number = int((at - start) // slot_s)
        if number < 0:
            raise FleetError(f"the recording {self._reader.path.name} begins in the future")
        seen = self._reader.filled(grid, number + 1, self._hold_hours)
        last = int(np.flatnonzero(grid.present[0][: number + 1])[-1])
        age_s = max(0.0, at - start - (last + 1) * slot_s)
        if not seen.priced[-1]:
            words = f"the recording {self._reader.path.name} ended {age_s / 3600:.1f} h ago"
            raise FleetError(f"{words}; start `duetune market record`")
        return MarketReport(
            at,
            round(start / slot_s) + number,
            start + number * slot_s,
            slot_s,
            Slot(
                float(seen.spot[-1]) * grid.slot_hours,
                int(seen.available[-1]),
                float(seen.on_demand[-1]) * grid.slot_hours,
            ),
            counted=bool(seen.counted[-1]),
            age_s=age_s,
        )

    def history(self, slots: int) -> MarketTrace | None:
        """Return the slots before the present one, after the last gap that is too long to hold."""
        grid = self._slots()
        number = int((self._clock() - grid.start / 1e6) // (grid.slot_hours * 3600))
        return self._reader.history(grid, number, slots, self._hold_hours)

    def _slots(self) -> Grid:
        grid = self._reader.grid()
        if grid is None:
            raise FleetError(f"the recording {self._reader.path} is gone")
        return grid


class RememberingFeed:
    """A live feed whose history and counts come from its pool's recording, if there is one.

    Where the recording has a slot, its prices and counts are used; elsewhere those of the feed.
    """

    def __init__(self, feed: MarketFeed, pool: Pool, path: Path, believed: int) -> None:
        self.feed, self.pool = feed, pool
        self._reader = RecordingReader(path, pool.name, believed)

    def now(self) -> MarketReport:
        """Return the feed's present slot; without a count, with that of our own last grants."""
        report = self.feed.now()
        grid = None if report.counted else self._fitting(report)
        if grid is None:
            return report
        number = _number(grid, report)
        seen = self._reader.filled(grid, number + 1, HOLD_HOURS)
        if not seen.counted[-1]:
            return report
        slot = msgspec.structs.replace(report.slot, available=int(seen.available[-1]))
        return msgspec.structs.replace(report, slot=slot, counted=True)

    def history(self, slots: int) -> MarketTrace | None:
        """Return the slots before the present one, from the recording and the feed."""
        report, told = self.feed.now(), self.feed.history(slots)
        grid = self._fitting(report)
        if grid is None:
            return told
        number = _number(grid, report)
        if told is None or told.start is None:
            return self._reader.history(grid, number, slots, HOLD_HOURS)
        # A slot may have begun since ``now``; the history says where it ends.
        number = round((microseconds(told.start) - grid.start) / 1e6 / report.slot_s) + told.slots
        lead = max(0, told.slots - number)
        grid = _priced(_led(grid, lead), number + lead, told)
        return self._reader.history(grid, number + lead, slots, HOLD_HOURS, told.available[0])

    def _fitting(self, report: MarketReport) -> Grid | None:
        """Return the recording if its slots are those of the feed."""
        try:
            grid = self._reader.grid()
        except (InvalidInput, NotFound) as error:
            log.warning("the recording is not used: %s", error)
            return None
        if grid is None:
            return None
        offset = (report.slot_began - grid.start / 1e6) / report.slot_s
        same = abs(grid.slot_hours * 3600 - report.slot_s) < 1e-3
        if not same or abs(offset - round(offset)) > OFF_GRID or round(offset) < 0:
            log.warning("the recording %s has other slots, and is not used", self._reader.path)
            return None
        return grid


def _number(grid: Grid, report: MarketReport) -> int:
    return round((report.slot_began - grid.start / 1e6) / report.slot_s)


def _resized(grid: Grid, slots: int) -> Grid:
    """Return the first ``slots`` slots; those after the end of the recording are absent."""
    more = max(0, slots - grid.present.shape[1])
    return each_array(grid, lambda cells: np.pad(cells[:, :slots], ((0, 0), (0, more))))


def _led(grid: Grid, slots: int) -> Grid:
    """Return the grid with so many absent slots before its first."""
    start = grid.start - round(slots * grid.slot_hours * 3_600_000_000)
    return each_array(grid, lambda cells: np.pad(cells, ((0, 0), (slots, 0))), start=start)


def _priced(grid: Grid, present: int, told: MarketTrace) -> Grid:
    """Return the slots before ``present``, with the feed's prices where the recording has none."""
    whole = _resized(grid, present)
    missing = ~whole.present
    missing[0, : present - told.slots] = False
    spot, on_demand = whole.spot_usd_gpu_h.copy(), whole.on_demand_usd_gpu_h.copy()
    spot[missing] = told.spot_price[0, missing[0, -told.slots :]] / told.slot_hours
    on_demand[missing] = told.on_demand_price[0, missing[0, -told.slots :]] / told.slot_hours
    return msgspec.structs.replace(
        whole,
        spot_usd_gpu_h=spot,
        on_demand_usd_gpu_h=on_demand,
        present=whole.present | missing,
    )
