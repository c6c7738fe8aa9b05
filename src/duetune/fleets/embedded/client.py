"""The client side of the embedded fleet: start, call and stop the provider of a folder.

The provider's own side begins in ``daemon`` (the process) and ``provider_service`` (its parts).
"""

from __future__ import annotations

import contextlib
import math
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
from duetune.fleets.embedded import daemon, processes
from duetune.fleets.embedded.bill_ledger import read_story
from duetune.fleets.embedded.clock import PROVIDER_FILE, ScaledClock, Signpost
from duetune.fleets.embedded.cloud_settings import Order
from duetune.fleets.embedded.provider_messages import FleetStatus, HistoryDocument, Problem
from duetune.fleets.embedded.replay import save_market

if TYPE_CHECKING:
    from collections.abc import Sequence

    from duetune.core.fleet import Command
    from duetune.core.market import MarketTrace
    from duetune.fleets.embedded.cloud_settings import FleetSettings

TIMEOUT = "DUETUNE_FLEET_TIMEOUT_S"
"""The variable with the seconds after which a call counts as not answered."""

TIMEOUT_S = 10.0
START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 10.0
Answer = TypeVar("Answer")


class EmbeddedFleet:
    """A ``Fleet`` and a ``MarketFeed`` over HTTP; ``clock`` is the matching ``Clock``.

    Every call opens a new connection, so a restarted provider is found without further action.
    All methods raise ``FleetError`` if the provider refuses the call or does not answer within
    ``timeout_s`` or the usual time, whichever is shorter.
    """

    def __init__(self, folder: Path | str, *, timeout_s: float = math.inf) -> None:
        self.folder = Path(folder).expanduser()
        self.clock = ScaledClock(self.folder)
        self._signpost = Signpost(self.folder)
        self._timeout_s = min(timeout_s, float(os.environ.get(TIMEOUT) or TIMEOUT_S))

    def apply(self, commands: Sequence[Command]) -> None:
        """Carry out commands; repeating a command has no further effect."""
        self._call("POST", "/apply", dict[str, str], msgspec.json.encode(list(commands)))

    def observe(self, job: str) -> FleetReport:
        """Return all nodes that the job ever had."""
        return self._call("GET", f"/jobs/{quote(job, safe='')}/nodes", FleetReport)

    def now(self) -> MarketReport:
        """Return the market in the current slot."""
        return self._call("GET", "/market", MarketReport)

    def history(self, slots: int) -> MarketTrace | None:
        """Return at most ``slots`` slots before the current one; None if there are none."""
        document = self._call("GET", f"/market/history/{int(slots)}", HistoryDocument).trace
        return None if document is None else document.trace()

    def status(self) -> FleetStatus:
        """Return the status of the whole provider."""
        return self._call("GET", "/status", FleetStatus)

    def stop(self) -> None:
        """Ask the provider to stop, without waiting; ``stop_provider`` also waits."""
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
            message = f"the fleet at {provider.url} sent an invalid answer ({status}: {error})"
            raise FleetError(message, retry=True) from None
        raise FleetError(f"the fleet refused the call: {problem}", retry=status >= 500)


def start_provider(
    folder: Path | str, settings: FleetSettings, market: MarketTrace | None = None
) -> EmbeddedFleet:
    """Return the fleet of the provider in ``folder``; start the provider if it does not run.

    Without ``market``, the market of the folder's last provider is used. ``InvalidInput`` is raised
    if a provider runs with other settings or another market.
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
    different = order.difference(provider.settings, provider.digest)
    if different:
        allowed = (
            f"the settings of the fleet that runs in {place}; "
            "to change them, stop it first ('duetune fleet stop')"
        )
        raise InvalidInput("fleet settings", different, allowed)
    return fleet


def stop_provider(folder: Path | str) -> bool:
    """Take all nodes, stop the provider and wait for its end; return whether one was running.

    Workers have ``release_grace_s`` of the settings to leave.
    """
    place = _place(folder)
    running = daemon.running(place)
    if running is not None:
        grace_s = Signpost(place).read().settings.release_grace_s
        with contextlib.suppress(FleetError):
            EmbeddedFleet(place).stop()
        if not _wait_for_end(place, grace_s + STOP_TIMEOUT_S):
            # It does not react any more. Its nodes end with it.
            running.send(signal.SIGKILL)
            _wait_for_end(place, STOP_TIMEOUT_S)
    processes.end_marked(place)
    return running is not None


def provider_status(folder: Path | str) -> FleetStatus | None:
    """Return the status of the provider in ``folder``; None if no provider runs."""
    fleet = running_provider(folder)
    return None if fleet is None else fleet.status()


def running_provider(folder: Path | str, *, timeout_s: float = math.inf) -> EmbeddedFleet | None:
    """Return the fleet of the provider in ``folder``, which may be too busy to answer.

    None means that no provider runs. Nothing is asked of the provider, so this never waits.
    """
    place = _place(folder)
    if daemon.running(place) is None or not (place / PROVIDER_FILE).exists():
        return None
    try:
        return EmbeddedFleet(place, timeout_s=timeout_s)
    except FleetError:  # It has just ended and removed its file.
        return None


def _place(folder: Path | str) -> Path:
    # Processes are marked with the folder's name, so each folder must have exactly one name.
    return Path(folder).expanduser().resolve()


def _order(place: Path, settings: FleetSettings, market: MarketTrace | None) -> Order:
    if market is not None:
        return Order(settings, market.name, save_market(place, market))
    before = read_story(place).opened
    if before is None:
        raise InvalidInput("market", None, f"a market, because no fleet has run in {place} yet")
    return Order(settings, before.market, before.digest)


def _spawn(place: Path, order: Order) -> str:
    """Start a provider process; return its error message, or "" if it runs."""
    try:
        done = subprocess.run(  # noqa: S603 - our own module
            [sys.executable, "-m", f"{__package__}.daemon", str(place)],
            input=msgspec.json.encode(order),
            # If this process belongs to a node, the provider must not be ended with that node.
            env={name: value for name, value in os.environ.items() if name != processes.MARK},
            capture_output=True,
            timeout=START_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"no answer within {START_TIMEOUT_S:g} s"
    return done.stderr.decode(errors="replace").strip() if done.returncode else ""


def _running(place: Path, order: Order) -> EmbeddedFleet:
    """Return a provider that answers: the running one (it may just start or stop) or a new one."""
    deadline = time.monotonic() + START_TIMEOUT_S
    while True:
        if daemon.running(place) is None:
            problem = _spawn(place, order)
            if problem not in {"", daemon.BUSY.decode()}:
                message = f"the fleet in {place} could not be started: {problem}"
                raise FleetError(message, retry=False)
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
    while daemon.running(place) is not None:
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True
