"""A trace file of one pool that grows: read, appended line by line, or merged with other slots.

The format is duetune's own CSV (``market.tabular``). One process at a time may write; the caller
holds the lock. Readers need none: a line is written in one piece, and a merge replaces the file.
"""

from __future__ import annotations

import csv
import io
import math
import os
import re
from typing import TYPE_CHECKING, NamedTuple

from duetune.errors import InvalidInput
from duetune.files import write_whole
from duetune.market.slot_grid import Grid, written
from duetune.market.tabular import AT_LEAST, COLUMNS
from duetune.market.traces import load_grid

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from duetune.core.market import Pool

HEADER = (*COLUMNS, "basis")
SAME_SLOT_SHARE = 1e-6


FOLDER = "markets"
"""The folder of a home with one recording for each pool."""


def recording_file(home: Path, pool: Pool) -> Path:
    """Return the file in which a home records a pool, whether or not it exists."""
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", pool.name).strip("-.") or "pool"
    return home / FOLDER / f"{name}.csv"


class RecordedSlot(NamedTuple):
    """One slot of a recording. Prices are dollars per GPU-hour.

    ``available`` is None if nobody counted. ``at_least``: the count is a lower bound.
    """

    spot_usd_gpu_h: float
    on_demand_usd_gpu_h: float
    available: int | None = None
    at_least: bool = False

    def joined(self, other: RecordedSlot) -> RecordedSlot:
        """Return this slot with the count of ``other``, where that says more.

        An exact count of ``other`` replaces any; of two lower bounds the higher one counts. An
        exact count is never replaced by a lower bound. Prices stay.
        """
        if other.available is None:
            return self
        if self.available is None or not other.at_least:
            return self._replace(available=other.available, at_least=other.at_least)
        if not self.at_least:
            return self
        return self._replace(available=max(self.available, other.available))


class Recording:
    """The file of one pool. Slots are numbered from the first one of the file.

    A new file gets its grid from the first slot that is added.
    """

    def __init__(self, path: Path, pool: Pool, slot_s: float) -> None:
        self.path, self.pool, self.slot_s = path, pool, slot_s
        self.start: float | None = None
        self.slots: dict[int, RecordedSlot] = {}
        if path.exists():
            _mend(path)
        if path.exists() and path.stat().st_size:
            self._read()

    @property
    def last(self) -> int | None:
        """Return the number of the last slot; None if there is none."""
        return max(self.slots, default=None)

    def number_at(self, began: float) -> int:
        """Return the number of the slot that began nearest to this moment."""
        return 0 if self.start is None else round((began - self.start) / self.slot_s)

    def append(self, began: float, slot: RecordedSlot) -> bool:
        """Add one slot at the end of the file, and return False if it is not later than the last.

        The line is on disk when this returns.
        """
        number, last = self.number_at(began), self.last
        if last is not None and number <= last:
            return False
        if self.start is None:
            self.start = began
            write_whole(self.path, _line(HEADER), "recording", durable=True)
        self.slots[number] = slot
        self._add_line(self._line(number, slot))
        return True

    def merge(self, found: Mapping[int, RecordedSlot], start: float) -> int:
        """Add slots that are numbered from ``start`` on, and return how many have changed.

        A slot that is there already keeps its prices (``RecordedSlot.joined``). The file is
        replaced in one step.
        """
        if self.start is None:
            self.start = start
        shift = self.number_at(start)
        changed = 0
        for number, slot in found.items():
            known = self.slots.get(number + shift)
            joined = slot if known is None else known.joined(slot)
            changed += joined != known
            self.slots[number + shift] = joined
        if changed:
            first = min(self.slots)
            self.start += first * self.slot_s
            self.slots = {number - first: slot for number, slot in self.slots.items()}
            self._rewrite()
        return changed

    def shorten(self, most: int) -> None:
        """Keep only the last ``most`` slots, once there are a quarter more; replaces the file."""
        if len(self.slots) > 1.25 * most:
            kept = sorted(self.slots)[-most:]
            self.slots = {number: self.slots[number] for number in kept}
            self._rewrite()

    def _rewrite(self) -> None:
        lines = (self._line(number, self.slots[number]) for number in sorted(self.slots))
        write_whole(self.path, "".join((_line(HEADER), *lines)), "recording", durable=True)

    def _line(self, number: int, slot: RecordedSlot) -> str:
        began = (self.start or 0.0) + number * self.slot_s
        return _line(
            (
                written(began * 1e6),
                self.pool.name,
                self.pool.accelerator,
                self.pool.zone,
                slot.spot_usd_gpu_h,
                slot.on_demand_usd_gpu_h,
                "" if slot.available is None else slot.available,
                self.slot_s / 3600,
                AT_LEAST if slot.at_least else "",
            )
        )

    def _add_line(self, line: str) -> None:
        content = line.encode()
        try:
            descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND)
            try:
                size = os.fstat(descriptor).st_size
                if os.write(descriptor, content) != len(content):
                    os.ftruncate(descriptor, size)  # a full disk: no half line stays
                    raise OSError(None, "the disk is full")
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
        except OSError as error:
            reason = error.strerror or type(error).__name__
            allowed = f"a file that can be written ({reason})"
            raise InvalidInput("recording", str(self.path), allowed) from None

    def _read(self) -> None:
        """Take over the slots of the file, and give it our columns."""
        try:
            with self.path.open(encoding="utf-8-sig") as file:
                header = file.readline().rstrip("\r\n")
                if not file.readline().strip():
                    return  # The recorder ended between the header and the first line.
        except UnicodeDecodeError as error:
            raise InvalidInput("recording", str(self.path), f"text in UTF-8 ({error})") from None
        grid = load_grid(self.path)
        if [pool.name for pool in grid.pools] != [self.pool.name]:
            names = ", ".join(pool.name for pool in grid.pools)
            raise InvalidInput("recording", str(self.path), f"a file of {self.pool.name}: {names}")
        if not math.isclose(grid.slot_hours * 3600, self.slot_s, rel_tol=SAME_SLOT_SHARE):
            allowed = f"slots of {self.slot_s / 60:g} min; this file has {grid.slot_hours * 60:g}"
            raise InvalidInput("recording", str(self.path), allowed)
        self.pool, self.start, self.slots = grid.pools[0], grid.start / 1e6, recorded_slots(grid)
        if header != _line(HEADER).strip():
            self._rewrite()


def recorded_slots(grid: Grid) -> dict[int, RecordedSlot]:
    """Return the slots of a grid's first pool that have a row, by number."""
    return {
        int(number): RecordedSlot(
            float(grid.spot_usd_gpu_h[0, number]),
            float(grid.on_demand_usd_gpu_h[0, number]),
            int(grid.available[0, number]) if grid.counted[0, number] else None,
            bool(grid.at_least[0, number]),
        )
        for number in grid.present[0].nonzero()[0]
    }


def _line(cells: tuple[object, ...]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerow(cells)
    return text.getvalue()


def _mend(path: Path) -> None:
    """Cut off a last line without an end, which a power cut may leave."""
    try:
        with path.open("rb+") as file:
            content = file.read()
            if content and not content.endswith(b"\n"):
                file.truncate(content.rfind(b"\n") + 1)
    except OSError as error:
        reason = error.strerror or type(error).__name__
        allowed = f"a file that can be written ({reason})"
        raise InvalidInput("recording", str(path), allowed) from None
