"""How long tests wait for something to happen. It only costs time where a test fails.

Tests wait for events, never for seconds: the suite must pass on two cores under a load of ten,
where a process may take a minute to start.
"""

from __future__ import annotations

import time

PATIENCE_S = 300.0


def until(condition, what="it", patience_s=PATIENCE_S, every_s=0.02, story=None):
    """Returns what ``condition`` returns once that is true. ``story`` says what was instead."""
    end = time.monotonic() + patience_s
    while not (found := condition()):
        if time.monotonic() > end:
            said = f"\n{story()}" if story else ""
            raise AssertionError(f"waited {patience_s:g} s for {what}{said}")
        time.sleep(every_s)
    return found
