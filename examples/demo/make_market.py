"""Writes market.csv: a volatile synthetic spot market, always the same.

Spot capacity changes every hour or two, at about a third of the on-demand price. The demo begins at
slot 96. It soon meets an outage of three hours, too long to wait for its end.
"""

from __future__ import annotations

import math
import random
from datetime import UTC, datetime, timedelta
from pathlib import Path

SLOTS = 288
SLOT = timedelta(minutes=30)
ON_DEMAND = 3.0
PATTERN = (3, 3, 4, 2, 4, 4, 1, 2, 3, 0, 2, 4)
BEGIN = 96
OUTAGE = (4, 4, 3, 0, 0, 0, 0, 0, 0, 3, 4, 4)


def main() -> None:
    draw = random.Random(11)  # noqa: S311 - no secret
    moment = datetime(2026, 1, 5, tzinfo=UTC)
    lines = ["time,spot_usd_gpu_h,on_demand_usd_gpu_h,available"]
    shift = 0
    for slot in range(SLOTS):
        if slot % len(PATTERN) == 0 and slot:
            shift = draw.randrange(len(PATTERN))
        available = PATTERN[(slot + shift) % len(PATTERN)]
        if BEGIN <= slot < BEGIN + len(OUTAGE):
            available = OUTAGE[slot - BEGIN]
        daily = math.sin(2 * math.pi * slot / 48)
        price = 0.95 + 0.15 * daily + 0.12 * (4 - available) + draw.uniform(-0.08, 0.08)
        lines.append(f"{moment:%Y-%m-%dT%H:%M:%SZ},{price:.3f},{ON_DEMAND},{available}")
        moment += SLOT
    Path(__file__).with_name("market.csv").write_text("\n".join(lines) + "\n", "utf-8")


if __name__ == "__main__":
    main()
