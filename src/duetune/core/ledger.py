"""What a job was charged, and what it came to in the end."""

from __future__ import annotations

import msgspec

from duetune.core.decision import Allocation
from duetune.notebook import html_table


class Entry(msgspec.Struct, frozen=True):
    """One slot of a job: what the market was, what was held, what it cost and what it did."""

    slot: int
    spot_price: float
    available: int
    on_demand_price: float
    allocation: Allocation
    preempted: int
    efficiency: float
    work: float
    progress: float
    charge: float
    reason: str


class Outcome(msgspec.Struct, frozen=True):
    """How a job ended. ``finished`` is the slot in which it did, or None."""

    policy: str
    finished: int | None
    on_time: bool
    progress: float
    cost: float
    value: float
    utility: float
    entries: tuple[Entry, ...] = ()

    def _repr_html_(self) -> str:
        end = "never finished" if self.finished is None else f"finished in slot {self.finished}"
        title = f"{self.policy}: {end}, cost ${self.cost:.2f}, utility ${self.utility:.2f}"
        return html_table(
            ("slot", "spot price", "available", "spot", "on-demand", "progress", "charge", "why"),
            (
                (
                    entry.slot,
                    f"${entry.spot_price:.2f}",
                    entry.available,
                    entry.allocation.spot,
                    entry.allocation.on_demand,
                    f"{entry.progress:.1f}",
                    f"${entry.charge:.2f}",
                    entry.reason,
                )
                for entry in self.entries
            ),
            title,
        )
