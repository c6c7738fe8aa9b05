"""The embedded fleet as a controller sees it: HTTP to the provider on loopback."""

from __future__ import annotations

from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import quote, urlsplit

import msgspec

from duetune.core.fleet import FleetReport, MarketReport
from duetune.errors import FleetError
from duetune.fleets.embedded.clock import ScaledClock, Signpost
from duetune.fleets.embedded.provider_messages import FleetStatus, HistoryDocument, Problem

if TYPE_CHECKING:
    from collections.abc import Sequence

    from duetune.core.fleet import Command
    from duetune.core.market import MarketTrace

TIMEOUT_S = 10.0
Answer = TypeVar("Answer")


class EmbeddedFleet:
    """A ``Fleet`` and a ``MarketFeed``; ``clock`` is the ``Clock`` that goes with them.

    Connects at every call, so a provider that was started again is found by itself.
    """

    def __init__(self, folder: Path | str, *, timeout_s: float = TIMEOUT_S) -> None:
        self.folder = Path(folder).expanduser()
        self.clock = ScaledClock(self.folder)
        self._signpost = Signpost(self.folder)
        self._timeout_s = timeout_s

    def apply(self, commands: Sequence[Command]) -> None:
        self._call("POST", "/apply", dict[str, str], msgspec.json.encode(list(commands)))

    def observe(self, job: str) -> FleetReport:
        return self._call("GET", f"/jobs/{quote(job, safe='')}/nodes", FleetReport)

    def now(self) -> MarketReport:
        return self._call("GET", "/market", MarketReport)

    def history(self, slots: int) -> MarketTrace | None:
        found = self._call("GET", f"/market/history/{int(slots)}", HistoryDocument).trace
        return None if found is None else found.trace()

    def status(self) -> FleetStatus:
        return self._call("GET", "/status", FleetStatus)

    def stop(self) -> None:
        """Asks the provider to end; ``stop_provider`` also waits for it."""
        self._call("POST", "/stop", dict[str, str], b"")

    def _call(
        self, method: str, path: str, kind: type[Answer], body: bytes | None = None
    ) -> Answer:
        provider = self._signpost.read()
        address = urlsplit(provider.url)
        connection = HTTPConnection(address.hostname or "", address.port, timeout=self._timeout_s)
        headers = {"Authorization": f"Bearer {provider.token}"}
        try:
            connection.request(method, path, body, headers)
            response = connection.getresponse()
            status, content = response.status, response.read()
        except (OSError, HTTPException) as error:
            reason = str(error) or type(error).__name__
            message = f"the fleet at {provider.url} does not answer ({reason})"
            raise FleetError(message, retry=True) from None
        finally:
            connection.close()
        try:
            if status == 200:
                return msgspec.json.decode(content, type=kind)
            problem = msgspec.json.decode(content, type=Problem).error
        except msgspec.DecodeError as error:
            message = f"the fleet at {provider.url} answered {status} and no sense ({error})"
            raise FleetError(message, retry=True) from None
        raise FleetError(f"the fleet refused the call: {problem}", retry=status >= 500)
