"""The interface by which duetune connects to a fleet of any kind and starts it.

The fleets themselves are in packages beside this module; ``duetune.registry.fleets`` finds the
configured one by its name.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeVar, runtime_checkable

import msgspec

from duetune.errors import DuetuneError, FleetError

if TYPE_CHECKING:
    from collections.abc import Callable

    from duetune.core.ports import Clock, Fleet, MarketFeed
    from duetune.settings import Settings, SiteSettings


ANSWER_S = 2.0
"""Who only reads waits this many seconds for the fleet."""

Answer = TypeVar("Answer")


def answered(ask: Callable[[], Answer]) -> Answer:
    """Return the answer of a fleet to someone who only reads; ``status`` commands call it.

    Raises ``FleetError`` if there is none within ``ANSWER_S``, however long the call itself takes.
    """
    answers: list[Answer] = []
    failures: list[DuetuneError] = []

    def wait() -> None:
        try:
            answers.append(ask())
        except DuetuneError as error:
            failures.append(error)

    asking = threading.Thread(target=wait, daemon=True)
    asking.start()
    asking.join(ANSWER_S)
    if answers:
        return answers[0]
    if failures:
        raise failures[0]
    raise FleetError(
        f"the fleet has not answered for {ANSWER_S:g} s: it is stopped or too busy", retry=True
    )


def _nothing() -> None:
    """Do nothing. This is the default for clocks that cannot be interrupted."""


def _finished() -> bool:
    """Return False. This is the default for fleets that stop nodes by themselves."""
    return False


class Connected(NamedTuple):
    """A running fleet with its market feed and its clock.

    - ``speed``: seconds of ``clock`` per wall-clock second.
    - ``interrupt``: ends a wait of ``clock`` early; called when the controller is told to stop.
    - ``unfinished``: returns whether nodes that were given back may still run; called when all jobs
      are over, and again until it returns False.
    """

    fleet: Fleet
    feed: MarketFeed
    clock: Clock
    speed: float = 1.0
    interrupt: Callable[[], None] = _nothing
    unfinished: Callable[[], bool] = _finished


@runtime_checkable
class FleetHost(Protocol):
    """Connects to a fleet of one kind, and starts it where that is duetune's task."""

    def running(self) -> Connected | None:
        """Return the running fleet, or None if there is none. This starts nothing."""

    def start(self) -> Connected:
        """Return the running fleet; start one first if there is none."""
        ...

    def revive(self) -> None:
        """Repair or restart the fleet. Called when the fleet does not answer."""

    def feed(self) -> MarketFeed:
        """Return the market that a job would meet now, even if no fleet runs."""
        ...

    def site(self) -> SiteSettings:
        """Return the description of the fleet's GPUs and slots."""
        ...


class AlwaysOn:
    """The host of a fleet that others run; ``[site]`` in ``config.toml`` describes it."""

    def __init__(self, settings: Settings, connected: Connected) -> None:
        self._settings, self._connected = settings, connected

    def running(self) -> Connected:
        """Return the fleet, which always runs."""
        return self._connected

    def start(self) -> Connected:
        """Return the fleet; there is nothing to start."""
        return self._connected

    def revive(self) -> None:
        """Do nothing: only the fleet's owner can repair it."""

    def feed(self) -> MarketFeed:
        """Return the fleet's own market feed."""
        return self._connected.feed

    def site(self) -> SiteSettings:
        """Return the configured site with the speed of the fleet's clock."""
        return msgspec.structs.replace(self._settings.site, speed=self._connected.speed)
