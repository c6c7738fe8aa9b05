"""Small policies for tests: to wrap, to guard, or to compare with others."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from duetune.core.decision import Allocation, Decision

if TYPE_CHECKING:
    from duetune.core.decision import View


class Idle(msgspec.Struct, frozen=True):
    """A policy that never holds any GPU."""

    @property
    def name(self) -> str:
        """Return ``idle``."""
        return "idle"

    def decide(self, view: View) -> Decision:
        """Return an empty allocation."""
        return Decision(Allocation(), f"holds nothing in slot {view.slot}")


class FixedPlan(msgspec.Struct, frozen=True):
    """A policy that holds a given allocation in each slot, as far as allowed: for examples.

    Spot that is not available is left out or, with ``replace``, replaced by on-demand. After its
    end the plan holds nothing.
    """

    plan: tuple[tuple[int, int], ...]
    replace: bool = False

    @property
    def name(self) -> str:
        """Return ``fixed_plan``."""
        return "fixed_plan"

    def decide(self, view: View) -> Decision:
        """Return the given allocation of the slot, reduced to what is allowed."""
        written = self.plan[view.slot - 1] if view.slot <= len(self.plan) else (0, 0)
        spot = min(written[0], view.market.available)
        on_demand = written[1] + (written[0] - spot if self.replace else 0)
        if spot + on_demand < view.job.min_gpus:
            spot = on_demand = 0
        return Decision(
            Allocation(spot=spot, on_demand=on_demand),
            f"plan for slot {view.slot}: {written[0]} spot, {written[1]} on-demand",
        )


class Restless(msgspec.Struct, frozen=True):
    """A policy that holds a random legal allocation in every slot: what a guard must survive.

    The choice depends only on ``seed`` and the slot, so a replay gives the same.
    """

    seed: int = 0

    @property
    def name(self) -> str:
        """Return ``restless`` and the seed."""
        return f"restless:{self.seed}"

    def decide(self, view: View) -> Decision:
        """Return a random legal allocation."""
        job, available = view.job, view.market.available
        sizes = (0, *range(job.min_gpus, job.max_gpus + 1))
        dice = _scrambled(self.seed, view.slot)
        total = sizes[dice % len(sizes)]
        spot = (dice // len(sizes)) % (min(total, available) + 1)
        return Decision(
            Allocation(spot=spot, on_demand=total - spot),
            f"{total} GPUs in slot {view.slot}, chosen at random",
        )


def _scrambled(seed: int, slot: int) -> int:
    """Return a pseudo-random number (the finisher of SplitMix64)."""
    mask = 2**64 - 1
    number = (seed * 0x9E3779B97F4A7C15 + slot * 0xD1B54A32D192ED03 + 1) & mask
    number = ((number ^ (number >> 30)) * 0xBF58476D1CE4E5B9) & mask
    number = ((number ^ (number >> 27)) * 0x94D049BB133111EB) & mask
    return number ^ (number >> 31)
