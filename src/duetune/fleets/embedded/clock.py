"""The market clock, which may run faster than wall-clock time, and the file that describes it.

``provider.json`` in the provider's folder holds the address, the token and the clock.
"""

from __future__ import annotations

import threading
import time
from pathlib import Path

import msgspec

from duetune.errors import FleetError
from duetune.fleets.embedded.cloud_settings import FleetSettings

PROVIDER_FILE = "provider.json"
# A wait re-reads the provider's file this often, in wall seconds, in case the clock was reset.
REREAD_S = 1.0


class Anchor(msgspec.Struct, frozen=True):
    """The relation of the two clocks: market time ``market`` was wall time ``wall``.

    Times are seconds since the epoch; ``speed`` is market seconds per wall second.
    """

    wall: float
    market: float
    speed: float

    def market_time(self, wall: float) -> float:
        """Return the market time at a wall time."""
        return self.market + (wall - self.wall) * self.speed

    def wall_time(self, market: float) -> float:
        """Return the wall time at a market time."""
        return self.wall + (market - self.market) / self.speed


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
    """The market clock, computed from wall-clock time. It needs ``provider.json`` only."""

    def __init__(self, folder: Path | str) -> None:
        self._signpost = Signpost(folder)
        self._signpost.read()
        self._interrupted = threading.Event()

    @property
    def speed(self) -> float:
        """Return the market seconds per wall second."""
        return self._signpost.read().anchor.speed

    def now(self) -> float:
        """Return the current market time in seconds since the epoch."""
        return self._signpost.read().anchor.market_time(time.time())

    def wait_until(self, moment: float) -> None:
        """Wait until market time ``moment``; return early after ``interrupt``."""
        while True:
            anchor = self._signpost.read().anchor
            left = anchor.wall_time(moment) - time.time()
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
