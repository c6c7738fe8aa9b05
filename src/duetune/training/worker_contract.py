"""The contract between a node and its training process: settings, notice and progress reports.

It consists of environment variables, files and an exit status, so a command in any language can
take part. Torch is not needed. Names and exit statuses are in ``duetune.core.node_contract``.
"""

from __future__ import annotations

import http.client
import logging
import re
import signal
import threading
import time
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Self
from urllib.parse import urlsplit

import msgspec

from duetune.core import node_contract
from duetune.core.progress import Progress
from duetune.errors import InvalidInput
from duetune.files import write_whole

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import FrameType

_log = logging.getLogger(__name__)

_LOOPBACK = frozenset({"127.0.0.1", "::1", "localhost"})
_POST_TIMEOUT_S = 2.0
_POST_PAUSE_S = 10.0
_FINAL_TRIES = 3
_MOST_BYTES = 1 << 20
_MOST_GPUS = 64
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


class Contract(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of a training process, from its environment.

    - ``epoch``: the number of the launch; it grows with every launch of the job.
    - ``gpus``: the GPUs of the node, which together hold one copy of the model.
    - ``progress_file``, ``progress_url``: where progress reports go; the file takes precedence.
    - ``coordinator_file``: holds the coordinator's address, if the members form a group.
    """

    job: str
    node: str
    epoch: int
    folder: Path
    checkpoints: Path
    output: Path
    notice_file: Path
    hazard_file: Path
    gpus: int = 1
    progress_file: Path | None = None
    progress_url: str | None = None
    coordinator_file: Path | None = None

    @staticmethod
    def given(environ: Mapping[str, str]) -> bool:
        """Return whether duetune has started this process."""
        return node_contract.JOB_ID in environ

    @classmethod
    def from_environment(cls, environ: Mapping[str, str]) -> Self:
        """Read the contract; ``InvalidInput`` if a variable is missing or not valid."""
        node = _name(environ, node_contract.NODE_ID)
        folder = Path(_needed(environ, node_contract.JOB_DIR, "the job's folder")).absolute()
        url = _url(environ, node_contract.PROGRESS_URL)

        def place(variable: str, default: str) -> Path:
            return Path(environ.get(variable) or folder / default).absolute()

        # If only an address is given, progress reports go there and no file is written.
        grouped = bool(environ.get(node_contract.COORDINATOR_FILE))
        in_file = node_contract.PROGRESS_FILE in environ or url is None
        file = place(node_contract.PROGRESS_FILE, node_contract.PROGRESS)
        return cls(
            job=_name(environ, node_contract.JOB_ID),
            node=node,
            epoch=_epoch(environ),
            folder=folder,
            checkpoints=place(node_contract.CHECKPOINT_DIR, node_contract.CHECKPOINTS),
            output=place(node_contract.OUTPUT_DIR, node_contract.OUTPUT),
            notice_file=place(node_contract.NOTICE_FILE, f"notice-{node}.json"),
            hazard_file=place(node_contract.HAZARD_FILE, node_contract.HAZARD),
            gpus=_gpus(environ),
            progress_file=file if in_file else None,
            progress_url=url,
            coordinator_file=place(node_contract.COORDINATOR_FILE, "") if grouped else None,
        )


class Notice:
    """Tells whether this node will be taken: by SIGTERM, by the notice file, or by both.

    ``given`` costs at most one ``stat``, so check it at every step. Once true, it stays true.
    """

    def __init__(self, file: Path | None) -> None:
        self._file = file
        self._signalled = threading.Event()
        self._seen = False
        self._previous: object = None
        self._installed = False

    def install(self) -> Self:
        """Handle SIGTERM from now on. Outside the main thread only the file is watched."""
        if threading.current_thread() is threading.main_thread() and not self._installed:
            self._previous = signal.signal(signal.SIGTERM, self._on_signal)
            self._installed = True
        return self

    def restore(self) -> None:
        """Restore the previous handler of SIGTERM."""
        if self._installed:
            previous = self._previous
            # None is a handler that was not set from Python, and Python cannot restore it.
            if callable(previous) or isinstance(previous, int):
                signal.signal(signal.SIGTERM, previous)
            self._installed = False

    @property
    def given(self) -> bool:
        """Return whether this node will be taken."""
        if not self._seen:
            self._seen = self._signalled.is_set() or _there(self._file)
        return self._seen

    @property
    def taken_at(self) -> float | None:
        """Return when the node will be taken, in wall seconds since the epoch; None if unknown."""
        if self._file is None or not self.given:
            return None
        try:
            return msgspec.json.decode(self._file.read_bytes(), type=_NoticeDocument).taken_at
        except (OSError, msgspec.MsgspecError, ValueError):
            return None

    def __enter__(self) -> Self:
        return self.install()

    def __exit__(self, *_: object) -> None:
        self.restore()

    def _on_signal(self, _number: int, _frame: FrameType | None) -> None:
        self._signalled.set()


class _NoticeDocument(msgspec.Struct, frozen=True):
    taken_at: float | None = None


def _there(file: Path | None) -> bool:
    try:
        return file is not None and file.stat() is not None
    except OSError:
        return False


def _needed(environ: Mapping[str, str], variable: str, allowed: str) -> str:
    text = environ.get(variable, "")
    if not text:
        raise InvalidInput(variable, environ.get(variable), f"{allowed}, set by the node")
    return text


def _name(environ: Mapping[str, str], variable: str) -> str:
    # Names become parts of file paths.
    text = _needed(environ, variable, "a name")
    if _NAME.fullmatch(text) is None:
        raise InvalidInput(variable, text, "letters, digits, '.', '_' and '-', at most 128")
    return text


def _epoch(environ: Mapping[str, str]) -> int:
    text = _needed(environ, node_contract.EPOCH, "a whole number from 0 on")
    if not (text.isascii() and text.isdigit() and len(text) <= 15):
        raise InvalidInput(node_contract.EPOCH, text, "a whole number from 0 on")
    return int(text)


def _gpus(environ: Mapping[str, str]) -> int:
    text = environ.get(node_contract.GPUS) or "1"
    if not (text.isascii() and text.isdigit() and 1 <= int(text[:6]) <= _MOST_GPUS):
        raise InvalidInput(node_contract.GPUS, text, f"a whole number from 1 to {_MOST_GPUS}")
    return int(text)


def _url(environ: Mapping[str, str], variable: str) -> str | None:
    text = environ.get(variable, "")
    if not text:
        return None
    parts = urlsplit(text)
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise InvalidInput(variable, text, "an http:// or https:// address")
    return text


class ProgressReporter:
    """Writes progress reports to the file, or posts them to the address if there is no file.

    It never raises, because a failed report must not stop training. Reports less than ``least_s``
    after the last one are dropped, unless phase, checkpoint or message have changed.
    """

    def __init__(self, contract: Contract, *, least_s: float = 0.2) -> None:
        self._file = contract.progress_file
        self._url = contract.progress_url
        self._least_s = least_s
        self._last: Progress | None = None
        self._next_at = 0.0

    def report(self, progress: Progress) -> None:
        """Send a report if one is due. Call this after every step."""
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
                _log.warning("cannot report the progress of step %d: %s", progress.step, error)
            else:
                self._last = progress
                return
        if self._file is None:
            # Do not delay every step by the timeout if nobody listens.
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
    """The only required field, which distinguishes a report from other JSON objects."""

    step: int


def read_progress(path: Path) -> Progress | None:
    """Return the last report; None if there is none or the file holds something else."""
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
    # A proxy cannot reach this machine's loopback address.
    nearby = urlsplit(url).hostname in _LOOPBACK
    opener = urllib.request.build_opener(*([urllib.request.ProxyHandler({})] if nearby else []))
    with opener.open(request, timeout=_POST_TIMEOUT_S) as answer:
        answer.read(_MOST_BYTES)
