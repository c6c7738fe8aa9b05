"""The driver's end of the bridge: one call to SkyPilot, and what its failures mean."""

from __future__ import annotations

import os
import sys
import threading
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import msgspec

from duetune.errors import FleetError, MissingExtra
from duetune.fleets.session_process import SessionProcess

if TYPE_CHECKING:
    from duetune.fleets.skypilot.skypilot_settings import SkypilotSettings

T = TypeVar("T")

START_S = 120.0
"""Seconds to import SkyPilot."""
ENDPOINT = "SKYPILOT_API_SERVER_ENDPOINT"

REFUSALS = {
    "InvalidClusterNameError",
    "InvalidSkyPilotConfigError",
    "NoCloudAccessError",
    "NoWorkspaceAccessError",
    "NotSupportedError",
    "PermissionDeniedError",
    "ProvisionPrechecksError",
    "ResourcesMismatchError",
    "UserRequestRejectedByPolicy",
    "ValueError",
}
"""Exceptions of SkyPilot after which the same call would fail again."""
_HINTS = {
    "ApiServerAuthenticationError": "log in with 'sky api login'",
    "ApiServerConnectionError": "is SkyPilot's API server up? 'sky api info' tells",
    "ModuleNotFoundError": "set sky_python to one that has SkyPilot",
    "NoCloudAccessError": "run 'sky check'",
}


class SkypilotSession:
    """Calls SkyPilot for a fleet whose clusters have names that begin with ``prefix``.

    Whatever goes wrong, the next call has a fresh process.
    """

    def __init__(self, settings: SkypilotSettings, prefix: str) -> None:
        self._settings, self._prefix = settings, prefix
        self._turn = threading.Lock()
        self._session: SessionProcess | None = None

    def ask(self, verb: str, answer: type[T], limit_s: float | None = None, **words: object) -> T:
        """Return SkyPilot's answer to a verb of the bridge; raise ``FleetError`` if it fails."""
        with self._turn:
            try:
                if self._session is None:
                    self._session = self._started()
                line = msgspec.json.encode({"verb": verb, **words})
                limit = limit_s or self._settings.answer_s
                return _decoded(self._session.exchange(line, limit), answer)
            except TimeoutError:
                self._discard()
                raise FleetError(f"SkyPilot did not answer to {verb} in time", retry=True) from None
            except (OSError, msgspec.MsgspecError) as error:
                self._discard()
                raise FleetError(f"SkyPilot does not answer: {error}", retry=True) from None

    def close(self) -> None:
        """End the process; a later call starts another."""
        with self._turn:
            self._discard()

    def _started(self) -> SessionProcess:
        python = self._settings.sky_python
        if not self._has_skypilot():
            raise MissingExtra("a fleet on SkyPilot", "skypilot")
        if not Path(python).exists():
            raise FleetError(f"sky_python {python} is not there", retry=False)
        environment = dict(os.environ)
        if self._settings.endpoint:
            environment[ENDPOINT] = self._settings.endpoint
        bridge = str(Path(__file__).with_name("skypilot_bridge.py"))
        session = SessionProcess([python, bridge], environment)
        try:
            hello = msgspec.json.encode({"prefix": self._prefix})
            _decoded(session.exchange(hello, START_S), dict[str, object])
        except BaseException:
            session.end()
            raise
        return session

    def _has_skypilot(self) -> bool:
        """Return whether SkyPilot may be there; another Python is asked when it runs."""
        return self._settings.sky_python != sys.executable or find_spec("sky") is not None

    def _discard(self) -> None:
        if self._session is not None:
            self._session.end()
            self._session = None


class _Failure(msgspec.Struct):
    error: str = ""
    kind: str = ""


def _decoded(line: bytes, answer: type[T]) -> T:
    failure = msgspec.json.decode(line, type=_Failure)
    if failure.error:
        hint = _HINTS.get(failure.kind)
        refused = failure.kind in REFUSALS or failure.kind == "ModuleNotFoundError"
        message = f"SkyPilot: {failure.error}" + (f"; {hint}" if hint else "")
        raise FleetError(message, retry=not refused)
    return msgspec.json.decode(line, type=answer)
