"""The outlook: what the market is typically like, for the slots beyond any forecast."""

from __future__ import annotations

from typing import TYPE_CHECKING

from duetune.core.decision import Outlook, Seen

if TYPE_CHECKING:
    from duetune.core.market import MarketTrace

WEEK_HOURS = 168.0


def seen_at(trace: MarketTrace, start: int, now: int, *, history_hours: float = WEEK_HOURS) -> Seen:
    """The slots up to and including ``now``, from ``history_hours`` before slot ``start`` on."""
    first = max(0, start - max(1, round(history_hours / trace.slot_hours)))
    return Seen(
        spot_price=trace.spot_price[0, first : now + 1],
        available=trace.available[0, first : now + 1],
    )


def outlook_at(trace: MarketTrace, start: int, *, history_hours: float = WEEK_HOURS) -> Outlook:
    """Means over the slots up to and including ``start``, at most ``history_hours`` of them."""
    slots = max(1, round(history_hours / trace.slot_hours))
    first = max(0, start + 1 - slots)
    return Outlook(
        available=float(trace.available[0, first : start + 1].mean()),
        spot_price=float(trace.spot_price[0, first : start + 1].mean()),
    )
