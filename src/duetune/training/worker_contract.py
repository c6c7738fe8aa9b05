"""What a training process is told by the node it runs on, and how it answers.

All of it is environment variables, files and an exit status, so a command in any language can take
part; nothing here needs torch. What the names are is in ``duetune.core.node_contract``.
"""

from __future__ import annotations

import re
import signal
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Self
from urllib.parse import urlsplit

import msgspec

from duetune.core.node_contract import (
    CHECKPOINT_DIR,
    CHECKPOINTS,
    EPOCH,
    HAZARD,
    HAZARD_FILE,
    JOB_DIR,
    JOB_ID,
    LIGHTHOUSE,
    NODE_ID,
    NOTICE_FILE,
    OUTPUT,
    OUTPUT_DIR,
    PROGRESS,
    PROGRESS_FILE,
    PROGRESS_URL,
)
from duetune.errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import FrameType, TracebackType

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


class Contract(msgspec.Struct, frozen=True, kw_only=True):
    """What the node says. ``epoch`` grows from launch to launch of a job."""

    job: str
    node: str
    epoch: int
    folder: Path
    checkpoints: Path
    output: Path
    notice_file: Path
    hazard_file: Path
    progress_file: Path | None = None
    progress_url: str | None = None
    lighthouse: str | None = None

    @staticmethod
    def given(environ: Mapping[str, str]) -> bool:
        """Whether duetune has started this process at all."""
        return JOB_ID in environ

    @classmethod
    def from_environment(cls, environ: Mapping[str, str]) -> Self:
        node = _name(environ, NODE_ID)
        folder = Path(_needed(environ, JOB_DIR, "the job's folder")).absolute()
        url = _url(environ, PROGRESS_URL)

        def place(variable: str, default: str) -> Path:
            return Path(environ.get(variable) or folder / default).absolute()

        # A report goes to one place: with only an address given, the file is not ours to write.
        in_file = PROGRESS_FILE in environ or url is None
        return cls(
            job=_name(environ, JOB_ID),
            node=node,
            epoch=_epoch(environ),
            folder=folder,
            checkpoints=place(CHECKPOINT_DIR, CHECKPOINTS),
            output=place(OUTPUT_DIR, OUTPUT),
            notice_file=place(NOTICE_FILE, f"notice-{node}.json"),
            hazard_file=place(HAZARD_FILE, HAZARD),
            progress_file=place(PROGRESS_FILE, PROGRESS) if in_file else None,
            progress_url=url,
            lighthouse=_url(environ, LIGHTHOUSE),
        )


class Notice:
    """Whether this node will be taken: by SIGTERM, by the notice file, or both.

    Asking is cheap (a flag, then one ``stat``), so ask at every step. Once given, it stays given.
    """

    def __init__(self, file: Path | None) -> None:
        self._file = file
        self._signalled = threading.Event()
        self._seen = False
        self._previous: object = None
        self._installed = False

    def install(self) -> Self:
        """Take SIGTERM. Only the main thread may; elsewhere the file alone is watched."""
        if threading.current_thread() is threading.main_thread() and not self._installed:
            self._previous = signal.signal(signal.SIGTERM, self._on_signal)
            self._installed = True
        return self

    def restore(self) -> None:
        """Give SIGTERM back to whoever had it."""
        if self._installed:
            previous = self._previous
            # None: a handler that was not set from Python, which Python cannot set again.
            if callable(previous) or isinstance(previous, int):
                signal.signal(signal.SIGTERM, previous)
            self._installed = False

    @property
    def given(self) -> bool:
        if not self._seen:
            self._seen = self._signalled.is_set() or _there(self._file)
        return self._seen

    @property
    def taken_at(self) -> float | None:
        """When the node will be taken, in wall seconds since the epoch; None if not known."""
        if self._file is None or not self.given:
            return None
        try:
            return msgspec.json.decode(self._file.read_bytes(), type=_NoticeDocument).taken_at
        except (OSError, msgspec.MsgspecError, ValueError):
            return None

    def __enter__(self) -> Self:
        return self.install()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
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
    # Names become parts of paths.
    text = _needed(environ, variable, "a name")
    if _NAME.fullmatch(text) is None:
        raise InvalidInput(variable, text, "letters, digits, '.', '_' and '-', at most 128")
    return text


def _epoch(environ: Mapping[str, str]) -> int:
    text = _needed(environ, EPOCH, "a whole number from 0 on")
    if not (text.isascii() and text.isdigit() and len(text) <= 15):
        raise InvalidInput(EPOCH, text, "a whole number from 0 on")
    return int(text)


def _url(environ: Mapping[str, str], variable: str) -> str | None:
    text = environ.get(variable, "")
    if not text:
        return None
    parts = urlsplit(text)
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise InvalidInput(variable, text, "an http:// or https:// address")
    return text
