"""The clock of fleets in the real world: wall time that is never set back."""

from __future__ import annotations

import threading

from duetune.wall_clock import steady_now, wall_now

_LONGEST_WAIT_S = 60.0


class RealClock:
    """A ``Clock`` that begins with the wall clock and then only counts seconds.

    A wall clock that is set while the process runs does not change it.
    """

    def __init__(self) -> None:
        self._ahead = wall_now() - steady_now()
        self._interrupted = threading.Event()

    def now(self) -> float:
        """Return the time in seconds since the epoch."""
        return steady_now() + self._ahead

    def wait_until(self, moment: float) -> None:
        """Wait until ``moment``; return early after ``interrupt``."""
        while (left := moment - self.now()) > 0:
            if self._interrupted.wait(min(left, _LONGEST_WAIT_S)):
                self._interrupted.clear()
                return

    def interrupt(self) -> None:
        """End the current wait, or the next one if none is running. Any thread may call this."""
        self._interrupted.set()
