"""The machine's two clocks: wall time, which may be set, and steady time, which never jumps.

Durations and waits are measured with steady time. Wall time is for moments that people or other
programs read. All processes since one start of the machine share the steady clock.
"""

from __future__ import annotations

import functools
import os
import time
from pathlib import Path

import msgspec

OFFSET_FILE = "DUETUNE_WALL_OFFSET"
"""The variable that names a file with seconds to add to wall time; tests set the clock by it."""

STEP_S = 2.0
"""A wall clock that gains or loses this much against the steady clock at once was set."""

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def wall_now() -> float:
    """Return the wall time in seconds since the epoch."""
    return time.time() + _offset()


def steady_now() -> float:
    """Return the seconds of a clock that nobody can set; it runs while the machine is suspended."""
    if hasattr(time, "CLOCK_BOOTTIME"):
        return time.clock_gettime(time.CLOCK_BOOTTIME)
    return time.monotonic()


@functools.cache
def boot_id() -> str:
    """Return a text that is the same for all processes since the machine was started."""
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:
        return ""


class ClockReading(msgspec.Struct, frozen=True):
    """Both clocks at one moment; ``steady`` means nothing to a machine with another ``boot``."""

    wall: float
    steady: float
    boot: str


def clock_reading() -> ClockReading:
    """Return what both clocks show now."""
    return ClockReading(wall_now(), steady_now(), boot_id())


class StepWatch:
    """Notices that somebody has set the wall clock."""

    def __init__(self) -> None:
        self._lead = _lead()

    def step_s(self) -> float:
        """Return by how many seconds the wall clock was set since the last call; 0 if it was not.

        Slow corrections, as time servers make them, do not count.
        """
        before, self._lead = self._lead, _lead()
        step = self._lead - before
        return step if abs(step) >= STEP_S else 0.0


def _lead() -> float:
    return wall_now() - steady_now()


def _offset() -> float:
    path = os.environ.get(OFFSET_FILE)
    if not path:
        return 0.0
    try:
        return float(Path(path).read_text())
    except (OSError, ValueError):
        return 0.0
