"""Who may write a pool's recording, and what is put into it at once: traces and our own jobs."""

from __future__ import annotations

import contextlib
import logging
import os
import time
from typing import TYPE_CHECKING

from duetune.core.events import Submitted
from duetune.errors import InvalidInput
from duetune.files import make_folder
from duetune.fleets.process_lock import hold, holder
from duetune.market.feeds.experience import Experience
from duetune.market.feeds.recording import Recording, recorded_slots
from duetune.market.resample import resample
from duetune.market.slot_grid import grid_of
from duetune.market.traces import load_grid
from duetune.wall_clock import wall_now

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator
    from pathlib import Path

    from duetune.core.market import MarketTrace, Pool
    from duetune.store.store import Store


NEW_SLOT_S = 1800.0
"""The seconds of a slot of a new recording, unless a feed or a trace has others."""


BRIEF_S = 3.0
"""A controller that records a slot is done sooner; who writes for longer is a recorder."""
_RETRY_S = 0.05

log = logging.getLogger(__name__)


class RecordingTaken(InvalidInput):
    """Another process writes the recording."""


@contextlib.contextmanager
def opened_recording(
    path: Path,
    pool: Pool,
    slot_s: float | None,
    *,
    wait_s: float = BRIEF_S,
    anew: bool = False,
) -> Iterator[Recording]:
    """Yield the recording for writing; nobody else can write it meanwhile.

    Without ``slot_s`` the slots are those of the file, or of half an hour in a new one. If another
    process writes it for longer than ``wait_s``, ``RecordingTaken`` is raised. With ``anew``, a
    file that cannot be continued is renamed with a warning, and another begins.
    """
    if path.suffix.lower() != ".csv" or path.is_dir():
        raise InvalidInput("recording", str(path), "a file whose name ends in .csv")
    try:
        make_folder(path.parent)
        lock = path.with_suffix(".lock")
        descriptor = _held(lock, wait_s)
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise InvalidInput(
            "recording", str(path), f"a file that can be written ({reason})"
        ) from None
    if descriptor is None:
        other = holder(lock)
        writer = "another process" if other is None else f"process {other.pid}"
        raise RecordingTaken("recording", str(path), f"a file that nobody writes; {writer} does")
    try:
        slot_s = _slot_s(path) if slot_s is None else slot_s
        try:
            recording = Recording(path, pool, slot_s)
        except InvalidInput as error:
            if not anew:
                raise
            _set_aside(path, error)
            recording = Recording(path, pool, slot_s)
        yield recording
    finally:
        os.close(descriptor)


def _held(lock: Path, wait_s: float) -> int | None:
    """Take the lock and return its descriptor; None if another process keeps it for ``wait_s``."""
    until = time.monotonic() + wait_s
    while (descriptor := hold(lock)) is None and time.monotonic() < until:
        time.sleep(_RETRY_S)
    return descriptor


def _set_aside(path: Path, why: InvalidInput) -> None:
    """Rename a recording that cannot be continued; nobody reads it under the new name."""
    aside = path.with_name(f"{path.name}.{round(wall_now())}.old")
    try:
        path.rename(aside)
    except OSError as error:
        allowed = f"a file that can be written ({error.strerror})"
        raise InvalidInput("recording", str(path), allowed) from None
    log.warning("%s; it is now %s, and a new recording begins", why, aside.name)


def _slot_s(path: Path) -> float:
    """Return the seconds of a slot of a file; a file without rows has those of a new one."""
    try:
        return load_grid(path).slot_hours * 3600
    except InvalidInput:
        return NEW_SLOT_S


def import_trace(trace: MarketTrace, recording: Recording) -> int:
    """Add a trace of one pool to a recording, and return how many slots have changed."""
    if trace.start is None:
        raise InvalidInput("trace", trace.name, "a trace with times, to add it to a recording")
    grid = grid_of(resample(trace, recording.slot_s / 3600))
    return recording.merge(recorded_slots(grid), grid.start / 1e6)


def import_jobs(store: Store, recording: Recording, fleets: Collection[str]) -> int:
    """Add what all jobs of a fleet have learned about availability; return the changed slots.

    ``fleets`` are the names of that fleet in rows of jobs.
    """
    stories = [
        [each.event for each in store.journal.read(row.id)]
        for row in reversed(store.jobs())
        if row.fleet in fleets
    ]
    if not stories:
        return 0
    origins = (event.origin for story in stories for event in story if isinstance(event, Submitted))
    start = next(origins, 0.0) if recording.start is None else recording.start
    seen = Experience(recording.slot_s, start)
    for story in stories:
        seen.add(story)
    return recording.merge(seen.slots(), start)


def slot_s_of_jobs(store: Store, fleets: Collection[str]) -> float | None:
    """Return the seconds of a slot of the newest job of a fleet; None if it has no jobs."""
    for row in [row for row in store.jobs() if row.fleet in fleets][:1]:
        for each in store.journal.read(row.id):
            if isinstance(each.event, Submitted):
                return each.event.slot_s
    return None
