"""Telling how far training is, and reading what was told."""

from __future__ import annotations

import http.client
import logging
import time
import urllib.error
import urllib.request
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import msgspec

from duetune.core.progress import Progress
from duetune.files import write_whole

if TYPE_CHECKING:
    from pathlib import Path

    from duetune.training.worker_contract import Contract

_log = logging.getLogger(__name__)

_LOOPBACK = frozenset({"127.0.0.1", "::1", "localhost"})
_POST_TIMEOUT_S = 2.0
_POST_PAUSE_S = 10.0
_FINAL_TRIES = 3
_MOST_BYTES = 1 << 20


class ProgressReporter:
    """Writes the progress file, or posts to the progress address where no file is set.

    Never raises: training is worth more than a report of it. Reports that come quicker than
    ``least_s`` are left out, except when phase, checkpoint or message are new.
    """

    def __init__(self, contract: Contract, *, least_s: float = 0.2) -> None:
        self._file = contract.progress_file
        self._url = contract.progress_url
        self._least_s = least_s
        self._last: Progress | None = None
        self._next_at = 0.0

    def report(self, progress: Progress) -> None:
        if not progress.at:
            progress = msgspec.structs.replace(progress, at=time.time())
        if not self._due(progress):
            return
        self._next_at = time.monotonic() + self._least_s
        tries = _FINAL_TRIES if progress.phase.final else 1
        for attempt in range(tries):
            if attempt:
                time.sleep(0.5)
            try:
                self._send(msgspec.json.encode(progress))
            except (OSError, http.client.HTTPException, ValueError) as error:
                _log.warning("the progress of step %d is not reported: %s", progress.step, error)
            else:
                self._last = progress
                return
        if self._file is None:
            # Nobody listens: do not hold up every step for the timeout.
            self._next_at = time.monotonic() + _POST_PAUSE_S

    def _due(self, progress: Progress) -> bool:
        last = self._last
        return (
            progress.phase.final
            or time.monotonic() >= self._next_at
            or (last is not None and _news(last) != _news(progress))
        )

    def _send(self, document: bytes) -> None:
        if self._file is not None:
            write_whole(self._file, document)
        elif self._url is not None:
            _post(self._url, document)


class _AnyReport(msgspec.Struct):
    """What tells a report from any other JSON object: the rest of it may be left out."""

    step: int


def read_progress(path: Path) -> Progress | None:
    """The last report; None where there is none, or where the file holds something else."""
    try:
        with path.open("rb") as file:
            content = file.read(_MOST_BYTES)
        msgspec.json.decode(content, type=_AnyReport)
        return msgspec.json.decode(content, type=Progress)
    except (OSError, msgspec.MsgspecError, ValueError, RecursionError):
        return None


def _news(progress: Progress) -> tuple[str, int, str]:
    return progress.phase, progress.checkpoint_step, progress.message


def _post(url: str, document: bytes) -> None:
    request = urllib.request.Request(  # noqa: S310 - the contract allows http and https alone
        url, data=document, headers={"Content-Type": "application/json"}, method="POST"
    )
    # A proxy of the environment cannot reach this machine's own loopback.
    nearby = urlsplit(url).hostname in _LOOPBACK
    opener = urllib.request.build_opener(*([urllib.request.ProxyHandler({})] if nearby else []))
    with opener.open(request, timeout=_POST_TIMEOUT_S) as answer:
        answer.read(_MOST_BYTES)
