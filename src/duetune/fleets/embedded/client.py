"""The embedded fleet as a controller sees it: HTTP to the provider on loopback."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import quote, urlsplit

import msgspec

from duetune.core.fleet import FleetReport, MarketReport
from duetune.errors import FleetError, InvalidInput
from duetune.fleets.embedded import processes
from duetune.fleets.embedded.bill_ledger import read_story
from duetune.fleets.embedded.clock import PROVIDER_FILE, ScaledClock, Signpost
from duetune.fleets.embedded.cloud_settings import Order
from duetune.fleets.embedded.daemon import BUSY, is_locked
from duetune.fleets.embedded.provider_messages import FleetStatus, HistoryDocument, Problem
from duetune.fleets.embedded.replay import save_market

if TYPE_CHECKING:
    from collections.abc import Sequence

    from duetune.core.fleet import Command
    from duetune.core.market import MarketTrace
    from duetune.fleets.embedded.cloud_settings import FleetSettings

TIMEOUT_S = 10.0
START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 10.0
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


def start_provider(
    folder: Path | str, settings: FleetSettings, market: MarketTrace | None = None
) -> EmbeddedFleet:
    """A running provider: one that runs already with the same settings, or a new one.

    ``market`` may be left out where the folder has one from before.
    """
    place = _place(folder)
    place.mkdir(parents=True, exist_ok=True)
    place.chmod(0o700)
    if market is not None and settings.first_slot >= market.slots:
        allowed = f"from 0 to {market.slots - 1}, the last slot of {market.name!r}"
        raise InvalidInput("first_slot", settings.first_slot, allowed)
    order = _order(place, settings, market)
    fleet = _running(place, order)
    provider = Signpost(place).read()
    other = order.difference(provider.settings, provider.digest)
    if other:
        allowed = (
            f"what the fleet that runs in {place} has; stop that one first ('duetune fleet stop')"
        )
        raise InvalidInput("fleet settings", other, allowed)
    return fleet


def stop_provider(folder: Path | str) -> bool:
    """Takes all nodes and ends the provider; False if none was running.

    Workers get the release grace of the settings to leave.
    """
    place = _place(folder)
    was_running = is_locked(place)
    if was_running:
        provider = Signpost(place).read()
        with contextlib.suppress(FleetError):
            EmbeddedFleet(place).stop()
        grace_s = provider.settings.release_grace_s
        if not _wait_for_end(place, grace_s + STOP_TIMEOUT_S):
            # It does not listen any more. Its nodes go with it.
            processes.send(provider.pid, signal.SIGKILL)
            _wait_for_end(place, STOP_TIMEOUT_S)
    processes.end_marked(place)
    return was_running


def provider_status(folder: Path | str) -> FleetStatus | None:
    """None: no provider is running."""
    place = _place(folder)
    if not is_locked(place) or not (place / PROVIDER_FILE).exists():
        return None
    return EmbeddedFleet(place).status()


def _place(folder: Path | str) -> Path:
    # One folder, one name: processes are marked with it.
    return Path(folder).expanduser().resolve()


def _order(place: Path, settings: FleetSettings, market: MarketTrace | None) -> Order:
    if market is not None:
        return Order(settings, market.name, save_market(place, market))
    before = read_story(place).opened
    if before is None:
        raise InvalidInput("market", None, f"given, as {place} has none from before")
    return Order(settings, before.market, before.digest)


def _spawn(place: Path, order: Order) -> str:
    """What kept it from starting; "" if nothing did."""
    try:
        done = subprocess.run(  # noqa: S603 - our own module
            [sys.executable, "-m", f"{__package__}.daemon", str(place)],
            input=msgspec.json.encode(order),
            # Started from within a node, a provider is none of that node's processes.
            env={name: value for name, value in os.environ.items() if name != processes.MARK},
            capture_output=True,
            timeout=START_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"no answer within {START_TIMEOUT_S:g} s"
    said = done.stderr.decode(errors="replace").strip()
    return said if done.returncode else ""


def _running(place: Path, order: Order) -> EmbeddedFleet:
    """A provider that answers: the one that is there, which may just be starting or dying, or a
    new one.
    """
    deadline = time.monotonic() + START_TIMEOUT_S
    while True:
        if not is_locked(place):
            said = _spawn(place, order)
            if said not in {"", BUSY.decode()}:
                raise FleetError(f"the fleet in {place} could not be started: {said}", retry=False)
        try:
            fleet = EmbeddedFleet(place)
            fleet.now()
        except FleetError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)
        else:
            return fleet


def _wait_for_end(place: Path, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while is_locked(place):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True
