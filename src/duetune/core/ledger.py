"""The account of a simulated job: what each slot cost and did, and how the job ended.

Charges of live jobs are in ``duetune.store.rows``.
"""

from __future__ import annotations

import msgspec

from duetune.core.decision import Allocation
from duetune.notebook import html_table


class Entry(msgspec.Struct, frozen=True):
    """One slot of a job.

    ``spot_price``, ``available``, ``on_demand_price``: the market, in dollars per GPU and slot.
    ``allocation``: GPUs that were held.
    ``preempted``: spot GPUs that were lost at the start of the slot.
    ``efficiency``: fraction of the slot in which the job computed (mu).
    ``work``: work done in the slot.
    ``progress``: work done up to the end of the slot.
    ``charge``: dollars for the slot.
    ``reason``: why the policy chose this allocation.
    """

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
    """How a job ended.

    ``finished``: the slot in which the job finished; None if it did not.
    ``on_time``: whether it finished by its deadline.
    ``progress``: work done.
    ``cost``: dollars charged.
    ``value``: what finishing was worth in dollars.
    ``utility``: ``value`` minus ``cost``.
    ``entries``: the slots of the job, where they were kept.
    """

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
