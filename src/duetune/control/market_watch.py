"""Keeps a forecaster up to date with the market feed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from duetune.market.forecast.simple import WEEK_HOURS

if TYPE_CHECKING:
    from collections.abc import Callable

    from duetune.core.decision import Forecast
    from duetune.core.fleet import MarketReport
    from duetune.core.ports import Forecaster, MarketFeed


class MarketMemory:
    """Shows a forecaster every slot once and in order, including slots that were missed."""

    def __init__(self, feed: MarketFeed, forecaster: Callable[[], Forecaster]) -> None:
        self._feed = feed
        self._forecaster = forecaster()
        self._seen: int | None = None

    def forecast(self, now: MarketReport, horizon: int) -> Forecast:
        """Return the forecast of the next ``horizon`` slots, after all slots up to ``now``."""
        self._catch_up(now)
        return self._forecaster.forecast(horizon)

    def _catch_up(self, now: MarketReport) -> None:
        if self._seen == now.index:
            return
        week = max(1, round(WEEK_HOURS * 3600 / now.slot_s))
        missed = week if self._seen is None else min(week, now.index - self._seen - 1)
        past = self._feed.history(missed) if missed > 0 else None
        if past is not None:
            for index in range(past.slots):
                self._forecaster.observe(past.slot(index))
        self._forecaster.observe(now.slot)
        self._seen = now.index
