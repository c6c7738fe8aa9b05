"""How a fleet is reached and started, whichever kind it is."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol, runtime_checkable

import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable

    from duetune.core.ports import Clock, Fleet, MarketFeed
    from duetune.settings import Settings, SiteSettings


def _nothing() -> None:
    """Do nothing: a clock that cannot be woken is waited for."""


class Connected(NamedTuple):
    """A fleet that runs, its market and its clock.

    ``speed`` is how many seconds of ``clock`` pass in one on the wall. ``interrupt`` wakes a clock
    that waits; it is called when the controller is told to stop.
    """

    fleet: Fleet
    feed: MarketFeed
    clock: Clock
    speed: float = 1.0
    interrupt: Callable[[], None] = _nothing


@runtime_checkable
class FleetHost(Protocol):
    """Connects to a fleet of one kind, and starts it where duetune has to.

    ``running`` starts nothing, and returns None where no fleet runs. ``start`` returns the fleet
    that runs, and starts one if there is none. ``revive`` is called when the fleet does not answer.
    ``feed`` is the market as jobs would find it now, also where no fleet runs. ``site`` says what
    its GPUs are.
    """

    def running(self) -> Connected | None: ...

    def start(self) -> Connected: ...

    def revive(self) -> None: ...

    def feed(self) -> MarketFeed: ...

    def site(self) -> SiteSettings: ...


class AlwaysOn:
    """The host of a fleet that somebody else runs; ``[site]`` in ``config.toml`` describes it."""

    def __init__(self, settings: Settings, connected: Connected) -> None:
        self._settings, self._connected = settings, connected

    def running(self) -> Connected:
        return self._connected

    def start(self) -> Connected:
        return self._connected

    def revive(self) -> None:
        """Do nothing: the fleet answers again when its owner has repaired it."""

    def feed(self) -> MarketFeed:
        return self._connected.feed

    def site(self) -> SiteSettings:
        """Return the configured site, at the speed of the fleet's clock."""
        return msgspec.structs.replace(self._settings.site, speed=self._connected.speed)
