"""What happened to one job in one turn, until it is written down as one."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from duetune.core.decision import Forecast
    from duetune.core.events import Event, Observed
    from duetune.core.fleet import MarketReport
    from duetune.engine.engine import Engine


class Page:
    """``forecast`` is the market to come, and ``observed`` the slot as the policy will be shown it,
    if there is to be a decision.
    """

    def __init__(self, engine: Engine, market: MarketReport) -> None:
        self.engine, self.market = engine, market
        self.events: list[Event] = []
        self.forecast: Forecast | None = None
        self.observed: Observed | None = None

    @property
    def stream(self) -> str:
        return self.engine.stream

    def happened(self, event: Event | None) -> None:
        """Let ``event`` take effect in the engine, and keep it to be written down; None is nothing
        that happened.
        """
        if event is not None:
            self.engine.handle(event)
            self.events.append(event)
