"""The pace of one member, as it tells it to the others."""

from __future__ import annotations

import math
import statistics
from collections import deque

_REMEMBERED = 15
_STEADY = 5
_SAME = 0.15
_STEP = 1.05


class MemberPace:
    """Measures the tokens per second of this member. What it tells changes slowly.

    The median of the last steps is rounded, and is told only when it is known and differs by 15%
    from what was told before. So the shares of the members stay the same from step to step.
    """

    def __init__(self) -> None:
        self._recent: deque[float] = deque(maxlen=_REMEMBERED)
        self.told = 0.0

    def measured(self, tokens: int, seconds: float) -> None:
        """Add a step in which this member computed ``tokens``. Called after every step."""
        if tokens <= 0 or seconds <= 0:
            return
        self._recent.append(tokens / seconds)
        if len(self._recent) < _STEADY:
            return
        usual = statistics.median(self._recent)
        if not self.told or abs(usual / self.told - 1) > _SAME:
            self.told = _STEP ** round(math.log(usual, _STEP))
