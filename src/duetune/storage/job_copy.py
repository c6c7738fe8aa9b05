"""The controller's local copy of a job whose nodes use storage: the job's folder in the home.

Status, logs, metrics and the result are read there, as on a shared folder. ``job_mirror`` is the
node's side.
"""

from __future__ import annotations

import contextlib
import shutil
import time
from typing import TYPE_CHECKING

import msgspec

from duetune.core.node_contract import HAZARD, LOGS, OUTPUT, PROGRESS
from duetune.core.progress import Phase, Progress
from duetune.errors import StorageError
from duetune.files import OWNER, make_folder, write_whole
from duetune.storage.job_layout import (
    METRICS,
    NODES,
    PART_BYTES,
    WINNER,
    fetch_output,
    read_record,
)
from duetune.storage.job_mirror import HAZARD_S

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from duetune.storage.storage_port import Storage

GIVE_UP_S = 300.0
"""A result that could not be fetched for this many seconds stays in the storage."""
REPORT = "report.json"
_COORDINATOR = "coordinator"


class _MetricLine(msgspec.Struct):
    """What orders the lines of several nodes."""

    step: int
    at: float = 0.0


class _LastWords(msgspec.Struct):
    """What this module reads in a node's report: the exit status, once its work is over."""

    code: int | None = None


class JobCopy:
    """Brings what the nodes of a job say into the job's folder. Call ``refresh`` again and again.

    ``reports`` has the last report of each node by its name. A report with an exit status appears
    there only after all else that the node had to say is in the folder.
    """

    def __init__(self, storage: Storage, folder: Path, *, part_bytes: int = PART_BYTES) -> None:
        self._storage = storage
        self._folder = folder
        self._part_bytes = part_bytes
        self._sizes: dict[str, int] = {}
        self._metrics: dict[str, dict[str, bytes]] = {}
        self._progress: dict[str, Progress] = {}
        self._over: set[str] = set()
        self._told: tuple[bytes, float] = (b"", -HAZARD_S)
        self._failing_since: float | None = None
        self.reports: dict[str, bytes] = {}

    def refresh(self) -> None:
        """Fetch what is new. ``StorageError`` if the storage cannot be used now."""
        stored = self._listed()
        speaking = [node for node in stored if node not in self._over]
        reports = self._read(speaking, stored, REPORT)
        progress = self._read(speaking, stored, PROGRESS)
        last = {node for node, report in reports.items() if _code(report) is not None}
        if last or any(_is_finished(content) for content in progress.values()):
            # A node sends its report last, so all that it had to say is there by now.
            stored = self._listed()
        grown = False
        for node in speaking:
            grown |= self._copy_growing(node, stored.get(node, {}), whole=node in last)
        if grown:
            whole = (
                b"".join(map(parts.__getitem__, sorted(parts))) for parts in self._metrics.values()
            )
            write_whole(self._folder / METRICS, b"".join(merged_metrics(whole)))
        self._tell_hazard()
        self._note(progress, reports)
        self.reports.update(reports)
        self._over |= last

    def _listed(self) -> dict[str, dict[str, int]]:
        """Return the files of each node with their sizes."""
        found: dict[str, dict[str, int]] = {}
        for name, size in self._storage.sizes(NODES).items():
            _, node, rest = name.split("/", 2)
            found.setdefault(node, {})[rest] = size
        return found

    def _read(
        self, nodes: Iterable[str], stored: Mapping[str, Mapping[str, int]], name: str
    ) -> dict[str, bytes]:
        found = {
            node: self._storage.read(f"{NODES}/{node}/{name}")
            for node in nodes
            if name in stored[node]
        }
        return {node: content for node, content in found.items() if content is not None}

    def _note(self, progress: Mapping[str, bytes], reports: Mapping[str, bytes]) -> None:
        """Write the newest progress; the result is fetched before the job is said to be done.

        The newest is the one that has changed: the clocks of nodes may differ.
        """
        new = {node: _progress(content) for node, content in progress.items()}
        changed = {
            node: each
            for node, each in new.items()
            if each is not None and each != self._progress.get(node)
        }
        newest = max(
            changed.values(),
            key=lambda each: (each.phase is Phase.FINISHED, each.at),
            default=None,
        )
        finished = newest is not None and newest.phase is Phase.FINISHED
        if finished or any(_code(report) == 0 for report in reports.values()):
            place = self._fetched()
            if newest is not None and finished and place:
                message = "; ".join(filter(None, (newest.message, f"the result is at {place}")))
                newest = msgspec.structs.replace(newest, output=place, message=message)
        done = any(each.phase is Phase.FINISHED for each in self._progress.values())
        if newest is not None and (finished or not done):
            write_whole(self._folder / PROGRESS, msgspec.json.encode(newest))
        self._progress.update(changed)

    def _fetched(self) -> str:
        """Download the result; return its place in the storage if that is given up, else ""."""
        target = self._folder / OUTPUT
        if target.exists():
            return ""
        draft = self._folder / f".{OUTPUT}.fetched"
        try:
            if fetch_output(self._storage, draft):
                draft.rename(target)
        except OSError as error:
            now = time.monotonic()
            self._failing_since = self._failing_since or now
            wait = isinstance(error, StorageError) and error.retry
            if wait and now - self._failing_since < GIVE_UP_S:
                raise
            # The disk of this machine is full, or the result is damaged. The work is done.
            shutil.rmtree(draft, ignore_errors=True)
            found = read_record(self._storage, WINNER)
            return self._storage.url if found is None else f"{self._storage.url}/{found.folder}"
        return ""

    def _copy_growing(self, node: str, files: Mapping[str, int], *, whole: bool) -> bool:
        """Copy the logs of a node and keep its metrics; return whether there are new metrics.

        A part whose size has not changed is not read again, unless this is the last time.
        """
        grown = False
        for name, size in sorted(files.items()):
            path, _, number = name.rpartition("/")
            stored = f"{NODES}/{node}/{name}"
            if not number.isdigit() or (self._sizes.get(stored) == size and not whole):
                continue
            content = self._storage.read(stored) or b""
            last = f"{path}/{int(number) + 1:06d}" not in files
            if path == METRICS:
                self._metrics.setdefault(node, {})[name] = content
                grown = True
            elif path.startswith(f"{LOGS}/"):
                self._write_log(node, path, int(number), content, last=last)
            if size < self._part_bytes or not last:
                # The end of a full last part may change without a change of its size.
                self._sizes[stored] = size
        kept = self._metrics.get(node, {})
        for name in [each for each in kept if each not in files]:
            del kept[name]
            grown = True
        return grown

    def _write_log(self, node: str, name: str, number: int, content: bytes, *, last: bool) -> None:
        stem = name.removeprefix(f"{LOGS}/").removesuffix(".log")
        # Every node has a candidate for the coordinator, with a log of the same name.
        stem = f"{stem}-{node}" if stem == _COORDINATOR else stem
        path = self._folder / LOGS / f"{stem}.log"
        make_folder(path.parent)
        path.touch(mode=OWNER)
        with path.open("r+b") as file:
            file.seek(number * self._part_bytes)
            file.write(content)
            if last:
                file.truncate()

    def _tell_hazard(self) -> None:
        """Pass the loss rate of nodes on to them, at most once a minute."""
        told, at = self._told
        now = time.monotonic()
        with contextlib.suppress(FileNotFoundError):
            content = (self._folder / HAZARD).read_bytes()
            if content != told and now - at >= HAZARD_S:
                self._storage.write(HAZARD, content)
                self._told = (content, now)


def merged_metrics(contents: Iterable[bytes]) -> list[bytes]:
    """Return the lines of all nodes as one node would have written them.

    Each node has the steps for which it led the group. A line replaces all older lines of its own
    and later steps: training had gone back to there.
    """
    known: dict[tuple[float, int], bytes] = {}
    for content in contents:
        for line in content.splitlines(keepends=True):
            with contextlib.suppress(msgspec.MsgspecError, ValueError):
                row = msgspec.json.decode(line, type=_MetricLine)
                # A member that takes over repeats lines, and one of them may know more.
                known[row.at, row.step] = max(known.get((row.at, row.step), b""), line, key=len)
    kept: list[tuple[int, bytes]] = []
    for (_, step), line in sorted(known.items()):
        while kept and kept[-1][0] >= step:
            kept.pop()
        kept.append((step, line))
    return [line for _, line in kept]


def _progress(content: bytes) -> Progress | None:
    try:
        return msgspec.json.decode(content, type=Progress)
    except (msgspec.MsgspecError, ValueError):
        return None


def _is_finished(content: bytes) -> bool:
    progress = _progress(content)
    return progress is not None and progress.phase is Phase.FINISHED


def _code(report: bytes) -> int | None:
    try:
        return msgspec.json.decode(report, type=_LastWords).code
    except (msgspec.MsgspecError, ValueError):
        return None
