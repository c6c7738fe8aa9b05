"""How long tests wait, and how fast the time of an emulated market may pass.

Tests wait for events, never for seconds. The suite must pass on two cores under a load of ten,
where a process takes seconds to start, so what limits a wait only costs time where a test fails.
"""

from __future__ import annotations

import time

PATIENCE_S = 300.0


def until(condition, what="it", *, story=None, every_s=0.02):
    """Returns what ``condition()`` returns once that is true; ``story()`` says what was instead."""
    end = time.monotonic() + PATIENCE_S
    while not (found := condition()):
        if time.monotonic() > end:
            told = "" if story is None else f"\n{story()}"
            raise AssertionError(f"waited {PATIENCE_S:g} s for {what}{told}")
        time.sleep(every_s)
    return found


def slowness():
    """How many times slower emulated markets should run on this machine now: 1 if it is not busy.

    A process that takes a slot to start on a busy machine would be taken for one that hangs.
    """
    # The other workers of the suite make it two or so, and tests leave room for that. What starts
    # just now is over soon: the best of some samples says more than their mean.
    return min(5.0, max(1.0, min(_waiting() for _ in range(5)) - 1.5))


def _waiting():
    """Wall time per CPU time, over a moment."""
    wall, busy = time.perf_counter(), time.process_time()
    while time.process_time() - busy < 0.03:
        pass
    return (time.perf_counter() - wall) / (time.process_time() - busy)
