"""What the controller has seen of the market: a forecaster that is kept up to date."""

from __future__ import annotations

from typing import TYPE_CHECKING

from duetune.core.decision import Outlook
from duetune.forecast.outlook import WEEK_HOURS, outlook_at

if TYPE_CHECKING:
    from collections.abc import Callable

    from duetune.core.decision import Forecast
    from duetune.core.fleet import MarketReport
    from duetune.core.ports import Forecaster, MarketFeed

HISTORY_HOURS = WEEK_HOURS


class MarketMemory:
    """Shows a forecaster every slot once, in order, those missed while nobody looked included."""

    def __init__(self, feed: MarketFeed, forecaster: Callable[[], Forecaster]) -> None:
        self._feed = feed
        self._make = forecaster
        self._forecaster = forecaster()
        self._seen: int | None = None

    def forecast(self, now: MarketReport, horizon: int) -> Forecast:
        self._catch_up(now)
        return self._forecaster.forecast(horizon)

    def outlook(self, now: MarketReport) -> Outlook:
        """The typical market of the last week, the present slot included."""
        past = self._feed.history(self._history_slots(now))
        if past is None:
            return Outlook(float(now.slot.available), now.slot.spot_price)
        return outlook_at(past, past.slots - 1)

    def _catch_up(self, now: MarketReport) -> None:
        if self._seen == now.index:
            return
        wanted = self._history_slots(now)
        missed = wanted if self._seen is None else min(wanted, now.index - self._seen - 1)
        past = self._feed.history(missed) if missed > 0 else None
        for index in range(past.slots if past is not None else 0):
            assert past is not None
            self._forecaster.observe(past.slot(index))
        self._forecaster.observe(now.slot)
        self._seen = now.index

    @staticmethod
    def _history_slots(now: MarketReport) -> int:
        return max(1, round(HISTORY_HOURS * 3600 / now.slot_s))
