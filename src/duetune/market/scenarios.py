"""Futures of a market that are like its past, beginning with the present."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from duetune.core.market import MarketTrace, Slot


def scenarios(
    history: MarketTrace | None,
    now: Slot,
    slots: int,
    *,
    count: int,
    seed: int,
    slot_hours: float,
) -> tuple[MarketTrace, ...]:
    """``count`` futures of ``slots`` slots, the first of which is ``now``."""
    raise NotImplementedError
