"""The provider's own book: what became of every node, one JSON line per change, never rewritten.

Lines are on disk before anybody is told. That nodes live is noted in a small file beside it every
second and whenever a bill is told, so that even after a kill a bill is right to the second and
never less than what was told. (After a power cut it may be.)
"""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, Self

import msgspec

from duetune.core.fleet import Limit, Node
from duetune.errors import FleetError
from duetune.fleets.embedded.clock import Anchor
from duetune.fleets.embedded.cloud_settings import FleetSettings

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

LEDGER_FILE = "ledger.jsonl"
HEARTBEAT_FILE = "heartbeat"


class Opened(msgspec.Struct, frozen=True, tag="opened"):
    """A provider began: its clock, and slot ``settings.first_slot`` of the market at ``began``,
    which the feed calls ``first_index``.
    """

    settings: FleetSettings
    market: str
    digest: str
    anchor: Anchor
    began: float
    slot_s: float
    first_index: int


class Changed(msgspec.Struct, frozen=True, tag="node"):
    node: Node


class Cancelled(msgspec.Struct, frozen=True, tag="cancelled"):
    """Released before it was launched."""

    job: str
    node: str


class Closed(msgspec.Struct, frozen=True, tag="closed"):
    """The provider was stopped; no node lived any more."""

    at: float


Line = Opened | Changed | Cancelled | Limit | Closed


class Story(msgspec.Struct):
    """What the lines come to. ``last_at`` is the last time of which they know."""

    opened: Opened | None = None
    closed: bool = True
    nodes: dict[tuple[str, str], Node] = msgspec.field(default_factory=dict)
    limits: dict[str, float] = msgspec.field(default_factory=dict)
    cancelled: set[tuple[str, str]] = msgspec.field(default_factory=set)
    last_at: float = 0.0

    def add(self, line: Line) -> None:
        match line:
            case Opened():
                self.opened, self.closed = line, False
                self._known(line.began)
            case Changed(node):
                self.nodes[node.job, node.id] = node
                for moment in (node.requested_at, node.started_at, node.ended_at):
                    self._known(moment or 0.0)
            case Cancelled():
                self.cancelled.add((line.job, line.node))
            case Limit(job, None):
                self.limits.pop(job, None)
            case Limit(job, float() as dollars):
                self.limits[job] = dollars
            case Closed(at):
                self.closed = True
                self._known(at)

    def _known(self, moment: float) -> None:
        self.last_at = max(self.last_at, moment)


def read_story(folder: Path) -> Story:
    """What the book of a folder says, also while somebody writes it."""
    path, story = folder / LEDGER_FILE, Story()
    try:
        # After the last line end there is nothing, or a line that is not whole.
        *lines, _ = path.read_bytes().split(b"\n")
    except FileNotFoundError:
        return story
    decode = msgspec.json.Decoder(Line).decode
    for number, text in enumerate(lines, start=1):
        try:
            story.add(decode(text))
        except msgspec.DecodeError as error:
            message = f"line {number} of {path} is damaged: {error}"
            raise FleetError(message, retry=False) from None
    with contextlib.suppress(OSError, ValueError):
        story.last_at = max(story.last_at, float((folder / HEARTBEAT_FILE).read_text()))
    return story


class Ledger:
    """For one writer at a time."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / LEDGER_FILE
        self._mend()
        self._file = self.path.open("ab", buffering=0)
        self._heartbeat = os.open(folder / HEARTBEAT_FILE, os.O_WRONLY | os.O_CREAT, 0o600)

    def append(self, lines: Sequence[Line]) -> None:
        """All of them, on disk, or none."""
        rest = b"".join(msgspec.json.encode(line) + b"\n" for line in lines)
        if not rest:
            return
        whole = os.fstat(self._file.fileno()).st_size
        try:
            while rest:
                rest = rest[self._file.write(rest) :]
            os.fsync(self._file.fileno())
        except OSError:
            self._file.truncate(whole)
            raise

    def note_alive(self, moment: float) -> None:
        """All nodes that live have lived until ``moment``."""
        os.pwrite(self._heartbeat, b"%020.6f\n" % moment, 0)

    def close(self) -> None:
        self._file.close()
        os.close(self._heartbeat)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _mend(self) -> None:
        """A last line that was cut off in the middle never counted: nobody was told."""
        with contextlib.suppress(FileNotFoundError):
            content = self.path.read_bytes()
            whole = content.rfind(b"\n") + 1
            if whole < len(content):
                os.truncate(self.path, whole)
