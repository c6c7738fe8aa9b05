"""What happened to one job in one turn, until it is written down as one."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from duetune.core.events import Event, Observed
    from duetune.core.fleet import MarketReport
    from duetune.engine.engine import Engine


class Page:
    """``observed`` is the slot as the policy will be shown it, if there is to be a decision."""

    def __init__(self, engine: Engine, market: MarketReport) -> None:
        self.engine, self.market = engine, market
        self.events: list[Event] = []
        self.observed: Observed | None = None

    @property
    def stream(self) -> str:
        return self.engine.stream

    def happened(self, event: Event | None) -> None:
        if event is not None:
            self.engine.handle(event)
            self.events.append(event)
