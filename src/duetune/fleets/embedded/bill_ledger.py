"""The provider's ledger: one JSON line for each change of a node, appended and never rewritten.

A line is on disk before any client learns of the change. A small heartbeat file beside the ledger
stores until when the nodes have run. It is updated every second and whenever a bill is reported.
Therefore a bill is exact to the second even after the provider was killed, and never below an
amount reported before. A power cut may lose the last second.
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
    """A provider started. Slot ``settings.first_slot`` of the market began at ``began``.

    - ``anchor``: the market clock.
    - ``first_index``: the number of that slot in the market feed.
    """

    settings: FleetSettings
    market: str
    digest: str
    anchor: Anchor
    began: float
    slot_s: float
    first_index: int


class Changed(msgspec.Struct, frozen=True, tag="node"):
    """A node changed; this is its new state."""

    node: Node


class Cancelled(msgspec.Struct, frozen=True, tag="cancelled"):
    """A node was released before it was launched."""

    job: str
    node: str


class Closed(msgspec.Struct, frozen=True, tag="closed"):
    """The provider was stopped and all its nodes had ended."""

    at: float


Line = Opened | Changed | Cancelled | Limit | Closed


class Story(msgspec.Struct):
    """The state that all ledger lines together describe.

    ``last_at`` is the latest time in the ledger or the heartbeat file, in market seconds.
    """

    opened: Opened | None = None
    closed: bool = True
    nodes: dict[tuple[str, str], Node] = msgspec.field(default_factory=dict)
    limits: dict[str, float] = msgspec.field(default_factory=dict)
    cancelled: set[tuple[str, str]] = msgspec.field(default_factory=set)
    last_at: float = 0.0

    def add(self, line: Line) -> None:
        """Apply one more ledger line."""
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
    """Read the ledger of a folder. A provider may be writing to it at the same time."""
    path, story = folder / LEDGER_FILE, Story()
    try:
        # The text after the last line end is empty or an incomplete line.
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
    """The open ledger of a folder. Only one process may write to it at a time."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / LEDGER_FILE
        self._drop_incomplete_line()
        self._file = self.path.open("ab", buffering=0)
        self._heartbeat = os.open(folder / HEARTBEAT_FILE, os.O_WRONLY | os.O_CREAT, 0o600)

    def append(self, lines: Sequence[Line]) -> None:
        """Append lines and sync them to disk. On ``OSError`` none of them is kept."""
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
        """Record that all running nodes have run until ``moment``."""
        os.pwrite(self._heartbeat, b"%020.6f\n" % moment, 0)

    def close(self) -> None:
        """Close the ledger and the heartbeat file."""
        self._file.close()
        os.close(self._heartbeat)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _drop_incomplete_line(self) -> None:
        """Remove a last line that was cut off. No client has learned of it yet."""
        with contextlib.suppress(FileNotFoundError):
            content = self.path.read_bytes()
            whole = content.rfind(b"\n") + 1
            if whole < len(content):
                os.truncate(self.path, whole)
