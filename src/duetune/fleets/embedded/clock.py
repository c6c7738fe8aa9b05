"""The market's time, which may run faster than the wall's, and where to find the provider."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import msgspec

from duetune.errors import FleetError
from duetune.fleets.embedded.cloud_settings import FleetSettings

PROVIDER_FILE = "provider.json"
# How long a wait goes on before it looks whether the clock was set anew, in wall seconds.
GLANCE_S = 1.0


class Anchor(msgspec.Struct, frozen=True):
    """The market's clock showed ``market`` when the wall's showed ``wall``."""

    wall: float
    market: float
    speed: float

    def market_time(self, wall: float) -> float:
        return self.market + (wall - self.wall) * self.speed

    def wall_time(self, market: float) -> float:
        return self.wall + (market - self.market) / self.speed


class ProviderFile(msgspec.Struct, frozen=True):
    """How to reach a provider, and its clock; only its owner may read the file."""

    url: str
    pid: int
    token: str
    market: str
    digest: str
    slot_s: float
    anchor: Anchor
    settings: FleetSettings


class Signpost:
    """The provider's file, read anew when it has changed and kept when it is gone."""

    def __init__(self, folder: Path | str) -> None:
        self.path = Path(folder).expanduser() / PROVIDER_FILE
        self._seen: tuple[int, int] | None = None
        self._known: ProviderFile | None = None

    def read(self) -> ProviderFile:
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
                raise FleetError(f"{self.path} cannot be read: {error}", retry=False) from None
        if self._known is None:
            raise FleetError(f"no fleet is running in {self.path.parent}", retry=False)
        return self._known


class ScaledClock:
    """The market's clock, told from the wall's; needs the provider's file, not the provider."""

    def __init__(self, folder: Path | str) -> None:
        self._signpost = Signpost(folder)
        self._signpost.read()
        self._interrupted = threading.Event()

    @property
    def speed(self) -> float:
        return self._signpost.read().anchor.speed

    def now(self) -> float:
        return self._signpost.read().anchor.market_time(time.time())

    def wait_until(self, moment: float) -> None:
        """Returns early after ``interrupt``."""
        while True:
            anchor = self._signpost.read().anchor
            left = anchor.wall_time(moment) - time.time()
            if left <= 0:
                return
            if self._interrupted.wait(min(left, GLANCE_S)):
                self._interrupted.clear()
                return

    def interrupt(self) -> None:
        """Ends the present wait, or the next one if nobody waits; from any thread."""
        self._interrupted.set()

    def wall_time(self, moment: float) -> float:
        return self._signpost.read().anchor.wall_time(moment)
