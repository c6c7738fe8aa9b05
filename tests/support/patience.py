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
    """How many times longer this machine takes now than if it had nothing else to do.

    Markets with real processes are slowed down by it: a process that takes a slot to start on a
    busy machine would be taken for one that hangs.
    """
    wall, busy = time.perf_counter(), time.process_time()
    while time.process_time() - busy < 0.1:
        pass
    ratio = (time.perf_counter() - wall) / (time.process_time() - busy)
    # What was busy for a moment may stay so, and many processes of one test share what is left.
    return 1.0 if ratio < 1.3 else 1.5 * ratio
