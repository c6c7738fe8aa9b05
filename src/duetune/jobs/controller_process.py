"""The controller process and its supervisor: one of each per home, started when there is a job.

The supervisor (``duetune.jobs.supervisor``) starts the controller again when it dies.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from duetune.errors import FleetError
from duetune.fleets.process_lock import hold, holder

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from duetune.fleets.process_lock import ProcessIdentity
    from duetune.settings import Settings

LOCK_FILE = "controller.lock"
SUPERVISOR_LOCK_FILE = "supervisor.lock"
LOG_FILE = "controller.log"
START_S = 20.0


@contextmanager
def sole_controller(settings: Settings) -> Iterator[bool]:
    """Yield whether this process is the home's only controller. The kernel frees the lock when the
    process dies.

    The lock only saves work; the journal is what keeps two controllers apart.
    """
    settings.home.mkdir(parents=True, exist_ok=True, mode=0o700)
    descriptor = hold(settings.home / LOCK_FILE)
    if descriptor is None:
        yield False
        return
    try:
        yield True
    finally:
        os.close(descriptor)


def controller_pid(settings: Settings) -> int | None:
    """Return the process id of the running controller; None if there is none."""
    found = holder(settings.home / LOCK_FILE)
    return None if found is None else found.pid


def supervisor_of(settings: Settings) -> ProcessIdentity | None:
    """Return the process that starts the controller again when it dies; None if there is none."""
    return holder(settings.home / SUPERVISOR_LOCK_FILE)


def start_controller(settings: Settings) -> int:
    """Return the process id of the running controller; start one if there is none."""
    settings.home.mkdir(parents=True, exist_ok=True, mode=0o700)
    log = settings.home / LOG_FILE
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
    """Stop the controller and its supervisor; the next controller continues the work."""
    number = signal.SIGTERM
    end = time.monotonic() + START_S
    while running := _running(settings):
        for process in running:
            process.send(number)
        if time.monotonic() > end:
            number = signal.SIGKILL
        time.sleep(0.05)


def _running(settings: Settings) -> list[ProcessIdentity]:
    """Return the supervisor, if there is one, and the controller, in this order."""
    found = (supervisor_of(settings), holder(settings.home / LOCK_FILE))
    return [process for process in found if process is not None]


def _spawned(settings: Settings, log: Path) -> subprocess.Popen[bytes]:
    with log.open("ab") as output:
        return subprocess.Popen(
            [sys.executable, "-m", "duetune.jobs.supervisor"],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            env={**os.environ, "DUETUNE_HOME": str(settings.home)},
            cwd=settings.home,
        )
