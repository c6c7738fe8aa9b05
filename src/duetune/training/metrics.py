"""The file ``metrics.jsonl`` in the job's folder: one row per step, whatever happens to the job.

The leader of the members writes it. A former leader that wakes up later writes nothing, because a
row is only added behind the newest step. A run that continues from a checkpoint first removes the
rows after it. Rows of a user's own command come from its progress reports.
"""

from __future__ import annotations

import contextlib
import fcntl
import math
import os
from collections import deque
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from duetune.files import write_whole

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

METRICS = "metrics.jsonl"
_LOCK = ".metrics.lock"
# Rows that a member remembers, so that it can write what a lost leader has not written.
_REMEMBERED = 256
_MOST_LINE = 4096


class MetricRow(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The metrics of one step; a value is None if it was not measured.

    - ``run``: the id of the run, the same for the whole job and in every tracker.
    - ``tokens``: tokens trained since the job began.
    - ``tokens_per_s``: tokens of this step by its duration, over all members.
    - ``grad_norm``: the norm of the gradient before it is clipped.
    - ``eval_loss``: the evaluation loss after this step.
    - ``at``: wall time in seconds since the epoch.
    """

    step: int
    run: str = ""
    at: float = 0.0
    tokens: int | None = None
    loss: float | None = None
    learning_rate: float | None = None
    grad_norm: float | None = None
    tokens_per_s: float | None = None
    members: int | None = None
    eval_loss: float | None = None

    @property
    def values(self) -> dict[str, float]:
        """Return the finite measured values by name; trackers are given these."""
        names = ("loss", "learning_rate", "grad_norm", "tokens", "tokens_per_s", "members")
        found = {name: getattr(self, name) for name in (*names, "eval_loss")}
        return {
            name: float(value)
            for name, value in found.items()
            if value is not None and math.isfinite(value)
        }

    def with_more(self, later: MetricRow) -> MetricRow:
        """Return this row with what ``later`` knows about the same step; the first time stays."""
        known = {
            name: value
            for name in self.__struct_fields__
            if (value := getattr(later, name)) not in {None, ""} and name not in {"step", "at"}
        }
        return msgspec.structs.replace(self, **known)


class _Seen(NamedTuple):
    """The file as this process left it; ``begin`` is where the last row begins."""

    inode: int
    size: int
    begin: int
    last: MetricRow | None


_EMPTY = _Seen(0, 0, 0, None)


class MetricsFile:
    """Writes the metrics of one job. Any process of the job may write, one at a time.

    ``OSError`` is raised if the file cannot be written; the caller decides whether that matters.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._path = folder / METRICS
        self._seen = _EMPTY

    def cut(self, step: int) -> None:
        """Remove the rows after ``step`` at once. Called when training goes on from there."""
        with self._locked():
            rows = read_metrics(self._path)
            kept = [row for row in rows if row.step <= step]
            if len(kept) != len(rows):
                write_whole(self._path, b"".join(map(_line, kept)))
            self._seen = self._look()

    def last_step(self) -> int:
        """Return the step of the last row; 0 if there is none."""
        last = self._now().last
        return 0 if last is None else last.step

    def record(self, row: MetricRow) -> None:
        """Add a row, or complete the last one. A row before the last one is dropped."""
        with self._locked():
            seen = self._now()
            begin, last = seen.size, seen.last
            if last is not None and last.step >= row.step:
                if last.step > row.step:
                    self._seen = seen
                    return
                begin, row = seen.begin, last.with_more(row)
            line = _line(row)
            # Opened anew each time: another process may have replaced the file.
            descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT, 0o666)
            try:
                # One call, so that a kill leaves either all of the row or nothing of it.
                os.pwrite(descriptor, line, begin)
                os.ftruncate(descriptor, begin + len(line))
            finally:
                os.close(descriptor)
            self._seen = _Seen(_identity(self._path)[0], begin + len(line), begin, row)

    def _now(self) -> _Seen:
        """Return the file as it is; it is read only if another process has written to it."""
        seen = self._seen
        return seen if (seen.inode, seen.size) == _identity(self._path) else self._look()

    def _look(self) -> _Seen:
        """Return the file as it is; a torn last line is left out, so the next row replaces it."""
        try:
            content = self._path.read_bytes()
        except FileNotFoundError:
            return _EMPTY
        whole = content[: content.rfind(b"\n") + 1]
        begin = whole.rfind(b"\n", 0, len(whole) - 1) + 1 if whole else 0
        return _Seen(_identity(self._path)[0], len(whole), begin, _row(whole[begin:]))

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        with (self._folder / _LOCK).open("wb") as file:
            # Some file systems have no locks; then a race could lose one row.
            with contextlib.suppress(OSError):
                fcntl.flock(file, fcntl.LOCK_EX)
            yield


class MetricsLog:
    """The metrics of one member: every member remembers them, and the leader writes them.

    So a new leader can write the rows that the old one could not. A failure to write is kept in
    ``warning`` and never stops training.
    """

    def __init__(self, folder: Path) -> None:
        self._file = MetricsFile(folder)
        self._rows: deque[MetricRow] = deque(maxlen=_REMEMBERED)
        self._leads = False
        self.warning = ""

    def lead(self, step: int, *, leads: bool) -> None:
        """Set whether this member writes. Called when the group has formed at ``step``."""
        if leads and not self._leads:
            self._try(lambda: self._file.cut(step))
        self._leads = leads
        while self._rows and self._rows[-1].step > step:
            # This member has taken the state of a group that has not done these steps.
            self._rows.pop()

    def add(self, row: MetricRow) -> None:
        """Remember a row or complete the last one; the leader writes all that is not written."""
        if self._rows and self._rows[-1].step == row.step:
            row = self._rows.pop().with_more(row)
        self._rows.append(row)
        if self._leads:
            self._try(self._write)

    def _write(self) -> None:
        # Rows that were written are remembered, too: a member that was alone for a moment and
        # behind may have cut them.
        last = self._file.last_step()
        for row in tuple(self._rows):
            if row.step >= last:
                self._file.record(row)

    def _try(self, work: Callable[[], None]) -> None:
        try:
            work()
        except OSError as error:
            self.warning = f"{METRICS} could not be written: {error}"
        else:
            self.warning = ""


def read_metrics(path: Path) -> list[MetricRow]:
    """Return the rows in the order of steps; none if there is no file. A torn line is skipped."""
    try:
        content = path.read_bytes()
    except OSError:
        return []
    rows = [row for line in content.splitlines() if (row := _row(line)) is not None]
    if any(one.step >= other.step for one, other in pairwise(rows)):
        rows = sorted({row.step: row for row in rows}.values(), key=lambda row: row.step)
    return rows


def sampled_losses(path: Path, count: int) -> tuple[float, ...]:
    """Return at most ``count`` losses from the whole run, without reading the whole file."""
    found: dict[int, float] = {}
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            for number in range(count):
                place = size * number // count
                file.seek(max(0, place - 1))
                if place:
                    file.readline(_MOST_LINE)
                row = _row(file.readline(_MOST_LINE))
                if row is not None and row.loss is not None and math.isfinite(row.loss):
                    found[row.step] = row.loss
    except OSError:
        return ()
    return tuple(found[step] for step in sorted(found))


def _identity(path: Path) -> tuple[int, int]:
    try:
        found = path.stat()
    except FileNotFoundError:
        return 0, 0
    return found.st_ino, found.st_size


def _row(line: bytes) -> MetricRow | None:
    try:
        return msgspec.json.decode(line, type=MetricRow)
    except (msgspec.MsgspecError, ValueError):
        return None


def _line(row: MetricRow) -> bytes:
    # JSON has no NaN; msgspec writes it as null.
    return msgspec.json.encode(row) + b"\n"
