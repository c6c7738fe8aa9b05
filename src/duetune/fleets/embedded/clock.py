"""The market clock, which may run faster than real time, and the file that describes it.

``provider.json`` in the provider's folder holds the address, the token and the clock.
"""

from __future__ import annotations

import threading
from pathlib import Path

import msgspec

from duetune.errors import FleetError
from duetune.fleets.embedded.cloud_settings import FleetSettings
from duetune.wall_clock import ClockReading, clock_reading, wall_now

PROVIDER_FILE = "provider.json"
# A wait re-reads the provider's file this often, in seconds, in case the clock was reset.
REREAD_S = 1.0


class Anchor(msgspec.Struct, frozen=True):
    """The relation of the clocks: at market time ``market`` it was ``wall`` and ``steady``.

    Market and wall time are seconds since the epoch; ``speed`` is market seconds per second.
    Market time follows the steady clock, so that setting the wall clock changes no bill. Only after
    a restart of the machine (another ``boot``) must wall time say how long that took.
    """

    wall: float
    market: float
    speed: float
    steady: float | None = None
    boot: str = ""

    @classmethod
    def at(cls, now: ClockReading, market: float, speed: float) -> Anchor:
        """Return the anchor of a market clock that shows ``market`` now."""
        return cls(now.wall, market, speed, now.steady, now.boot)

    def holds(self, now: ClockReading) -> bool:
        """Return whether the steady clock still counts from this anchor."""
        return self.steady is not None and self.boot == now.boot and self.steady <= now.steady

    def market_time(self, now: ClockReading) -> float:
        """Return the market time at a reading of the machine's clocks."""
        steady = self.steady if self.holds(now) else None
        elapsed = now.wall - self.wall if steady is None else now.steady - steady
        return self.market + elapsed * self.speed

    def market_now(self) -> float:
        """Return the present market time."""
        return self.market_time(clock_reading())

    def seconds_until(self, market: float) -> float:
        """Return the real seconds from now to a market time; negative if it has passed."""
        return (market - self.market_now()) / self.speed

    def wall_time(self, market: float) -> float:
        """Return the wall time at a market time, as the wall clock is set now."""
        return wall_now() + self.seconds_until(market)


class ProviderFile(msgspec.Struct, frozen=True):
    """The content of ``provider.json``: how to reach a provider, and its clock.

    The file holds a secret token, so only its owner may read it.
    """

    url: str
    pid: int
    token: str
    market: str
    digest: str
    slot_s: float
    anchor: Anchor
    settings: FleetSettings


class Signpost:
    """Reads ``provider.json``: again after each change, and the last content after its removal."""

    def __init__(self, folder: Path | str) -> None:
        self.path = Path(folder).expanduser() / PROVIDER_FILE
        self._seen: tuple[int, int] | None = None
        self._known: ProviderFile | None = None

    def read(self) -> ProviderFile:
        """Return the latest content; ``FleetError`` if no provider has ever been found."""
        try:
            stat = self.path.stat()
            stamp = (stat.st_mtime_ns, stat.st_ino)
            if stamp != self._seen:
                self._known = msgspec.json.decode(self.path.read_bytes(), type=ProviderFile)
                self._seen = stamp
        except FileNotFoundError:
            pass
        except (OSError, msgspec.DecodeError) as error:
            if self._known is None:
                raise FleetError(f"cannot read {self.path}: {error}", retry=False) from None
        if self._known is None:
            raise FleetError(f"no fleet is running in {self.path.parent}", retry=False)
        return self._known


class ScaledClock:
    """The market clock. It needs ``provider.json`` only, not a provider that answers."""

    def __init__(self, folder: Path | str) -> None:
        self._signpost = Signpost(folder)
        self._signpost.read()
        self._interrupted = threading.Event()

    @property
    def speed(self) -> float:
        """Return the market seconds per second."""
        return self._signpost.read().anchor.speed

    def now(self) -> float:
        """Return the current market time in seconds since the epoch."""
        return self._signpost.read().anchor.market_now()

    def wait_until(self, moment: float) -> None:
        """Wait until market time ``moment``; return early after ``interrupt``."""
        while True:
            left = self._signpost.read().anchor.seconds_until(moment)
            if left <= 0:
                return
            if self._interrupted.wait(min(left, REREAD_S)):
                self._interrupted.clear()
                return

    def interrupt(self) -> None:
        """End the current wait, or the next one if none is running. Any thread may call this."""
        self._interrupted.set()

    def wall_time(self, moment: float) -> float:
        """Return the wall time at market time ``moment``."""
        return self._signpost.read().anchor.wall_time(moment)
