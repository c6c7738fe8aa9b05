"""The controller processes and their supervisors: one of each per fleet, started when there is a
job on it.

The supervisor (``duetune.jobs.supervisor``) starts the controller again when it dies. A fleet that
hangs keeps its own controller waiting and no other.
"""

from __future__ import annotations

import hashlib
import os
import re
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

from duetune.errors import FleetError
from duetune.fleets.process_lock import hold, holder, note_in
from duetune.settings import EMBEDDED

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from duetune.fleets.process_lock import ProcessIdentity
    from duetune.settings import Settings

START_S = 20.0


class ControllerFiles(NamedTuple):
    """The files of a fleet's controller in a home: its lock, its supervisor's lock, their log.

    Each lock file names the fleet in its second line. Files of releases with one fleet do not.
    """

    lock: Path
    supervisor: Path
    log: Path

    @classmethod
    def of(cls, home: Path, fleet: str) -> ControllerFiles:
        """Return the files for a fleet; those of the embedded one have the names of old."""
        end = "" if fleet == EMBEDDED else f"-{_file_name(fleet)}"
        return cls(
            home / f"controller{end}.lock",
            home / f"supervisor{end}.lock",
            home / f"controller{end}.log",
        )


def _file_name(fleet: str) -> str:
    """Return the name of a fleet as part of a file name; two fleets never have the same."""
    safe = re.sub(r"[^A-Za-z0-9._-]", "-", fleet)
    if safe == fleet:
        return safe
    return f"{safe[:40]}.{hashlib.sha256(fleet.encode()).hexdigest()[:8]}"


def controller_files(settings: Settings) -> ControllerFiles:
    """Return the files of the controller of the settings' fleet."""
    return ControllerFiles.of(settings.home, settings.fleet_name)


@contextmanager
def sole_controller(settings: Settings) -> Iterator[bool]:
    """Yield whether this process is the only controller of the settings' fleet. The kernel frees
    the lock when the process dies.

    The lock only saves work; the journal is what keeps two controllers apart.
    """
    settings.home.mkdir(parents=True, exist_ok=True, mode=0o700)
    first = ControllerFiles.of(settings.home, EMBEDDED)
    # Its supervisor may be our parent, and ends by itself when the old controller has ended.
    _end(lambda: _unnamed(first.lock))
    descriptor = hold(controller_files(settings).lock, settings.fleet_name)
    if descriptor is None:
        yield False
        return
    try:
        yield True
    finally:
        os.close(descriptor)


def controller_pid(settings: Settings) -> int | None:
    """Return the process id of the fleet's running controller; None if there is none."""
    found = holder(controller_files(settings).lock)
    return None if found is None else found.pid


def supervisor_of(settings: Settings) -> ProcessIdentity | None:
    """Return the process that starts the controller again when it dies; None if there is none."""
    return holder(controller_files(settings).supervisor)


def fleets_with_locks(home: Path) -> list[str]:
    """Return the fleets that have or had a controller in this home, sorted."""
    return sorted({note for path in home.glob("controller*.lock") if (note := note_in(path))})


def start_controller(settings: Settings) -> int:
    """Return the process id of the fleet's running controller; start one if there is none.

    A controller of a release with one fleet would run the jobs of all fleets, so it is replaced.
    """
    settings.home.mkdir(parents=True, exist_ok=True, mode=0o700)
    first = ControllerFiles.of(settings.home, EMBEDDED)
    if _unnamed(first.lock) or controller_pid(settings) is None:
        _end(lambda: _unnamed(first.supervisor) + _unnamed(first.lock))
    log = controller_files(settings).log
    child = None
    asked: ProcessIdentity | None = None
    waited_until = time.monotonic() + START_S
    while time.monotonic() < waited_until:
        pid = controller_pid(settings)
        if pid is not None:
            return pid
        supervisor = supervisor_of(settings)
        if supervisor is None:
            if child is None or child.poll() is not None:
                child = _spawned(settings, log)
        elif supervisor != asked:
            # It may be waiting before its next try.
            asked = supervisor
            supervisor.send(signal.SIGUSR1)
        time.sleep(0.05)
    raise FleetError(f"the controller did not start within {START_S:g} s; see {log}", retry=False)


def stop_controller(settings: Settings) -> None:
    """Stop the fleet's controller and its supervisor; the next controller continues the work."""
    files = controller_files(settings)
    _end(lambda: [each for each in map(holder, (files.supervisor, files.lock)) if each])


def _end(running: Callable[[], list[ProcessIdentity]]) -> None:
    """End the processes that ``running`` finds, in their order, until it finds none."""
    number = signal.SIGTERM
    end = time.monotonic() + START_S
    while found := running():
        for process in found:
            process.send(number)
        if time.monotonic() > end:
            number = signal.SIGKILL
        time.sleep(0.05)


def _unnamed(lock: Path) -> list[ProcessIdentity]:
    """Return the holder of a lock that names no fleet: a process of a release with one fleet."""
    found = holder(lock)
    return [] if found is None or note_in(lock) else [found]


def _spawned(settings: Settings, log: Path) -> subprocess.Popen[bytes]:
    with log.open("ab") as output:
        return subprocess.Popen(  # noqa: S603 - our own module
            [sys.executable, "-m", "duetune.jobs.supervisor", settings.fleet_name],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            env={**os.environ, "DUETUNE_HOME": str(settings.home)},
            cwd=settings.home,
        )
