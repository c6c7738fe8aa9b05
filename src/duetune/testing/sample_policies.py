"""Policies to put around, under or against others in tests."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from duetune.core.decision import Allocation, Decision

if TYPE_CHECKING:
    from duetune.core.decision import View


class Idle(msgspec.Struct, frozen=True):
    """Never holds anything."""

    @property
    def name(self) -> str:
        return "idle"

    def decide(self, view: View) -> Decision:
        return Decision(Allocation(), f"nothing in slot {view.slot}, as always")


class FixedPlan(msgspec.Struct, frozen=True):
    """Holds what was written down for each slot, as far as it may: for worked examples.

    Spot that is not available is left out, or ``replace``d by on-demand. After its end the plan
    holds nothing.
    """

    plan: tuple[tuple[int, int], ...]
    replace: bool = False

    @property
    def name(self) -> str:
        return "fixed_plan"

    def decide(self, view: View) -> Decision:
        wish = self.plan[view.slot - 1] if view.slot <= len(self.plan) else (0, 0)
        spot = min(wish[0], view.market.available)
        on_demand = wish[1] + (wish[0] - spot if self.replace else 0)
        if spot + on_demand < view.job.min_gpus:
            spot = on_demand = 0
        return Decision(
            Allocation(spot=spot, on_demand=on_demand),
            f"the plan for slot {view.slot}: {wish[0]} spot, {wish[1]} on demand",
        )


class Restless(msgspec.Struct, frozen=True):
    """Holds another legal allocation in every slot, for no reason: what a guard must survive.

    The choice is a function of ``seed`` and the slot alone, so a replay gives the same.
    """

    seed: int = 0

    @property
    def name(self) -> str:
        return f"restless:{self.seed}"

    def decide(self, view: View) -> Decision:
        job, available = view.job, view.market.available
        sizes = (0, *range(job.min_gpus, job.max_gpus + 1))
        dice = _scrambled(self.seed, view.slot)
        total = sizes[dice % len(sizes)]
        spot = (dice // len(sizes)) % (min(total, available) + 1)
        return Decision(
            Allocation(spot=spot, on_demand=total - spot),
            f"{total} GPUs in slot {view.slot}, by dice",
        )


def _scrambled(seed: int, slot: int) -> int:
    """A number without pattern (the finisher of SplitMix64)."""
    mask = 2**64 - 1
    number = (seed * 0x9E3779B97F4A7C15 + slot * 0xD1B54A32D192ED03 + 1) & mask
    number = ((number ^ (number >> 30)) * 0xBF58476D1CE4E5B9) & mask
    number = ((number ^ (number >> 27)) * 0x94D049BB133111EB) & mask
    return number ^ (number >> 31)
