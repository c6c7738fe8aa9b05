"""The outlook: what the market is typically like, for the slots beyond any forecast."""

from __future__ import annotations

from typing import TYPE_CHECKING

from duetune.core.decision import Outlook
from duetune.core.events import Past

if TYPE_CHECKING:
    from duetune.core.market import MarketTrace

WEEK_HOURS = 168.0


def past_before(trace: MarketTrace, start: int, *, history_hours: float = WEEK_HOURS) -> Past:
    """The slots before ``start``, at most ``history_hours`` of them."""
    first = max(0, start - max(1, round(history_hours / trace.slot_hours)))
    return Past(
        spot_price=tuple(trace.spot_price[0, first:start].tolist()),
        available=tuple(trace.available[0, first:start].tolist()),
    )


def outlook_at(trace: MarketTrace, start: int, *, history_hours: float = WEEK_HOURS) -> Outlook:
    """Means over the slots up to and including ``start``, at most ``history_hours`` of them."""
    slots = max(1, round(history_hours / trace.slot_hours))
    first = max(0, start + 1 - slots)
    return Outlook(
        available=float(trace.available[0, first : start + 1].mean()),
        spot_price=float(trace.spot_price[0, first : start + 1].mean()),
    )
