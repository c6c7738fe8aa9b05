"""The controller process: one per home, started when there is a job to run."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager, suppress
from typing import IO, TYPE_CHECKING

from duetune.errors import FleetError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from duetune.settings import Settings

LOCK_FILE = "controller.lock"
LOG_FILE = "controller.log"
START_S = 20.0


@contextmanager
def sole_controller(settings: Settings) -> Iterator[bool]:
    """Yield whether this process is the home's only controller. The kernel frees the lock when the
    process dies.

    The lock only saves work; the journal is what keeps two controllers apart.
    """
    settings.home.mkdir(parents=True, exist_ok=True, mode=0o700)
    with (settings.home / LOCK_FILE).open("a+") as file:
        if not _locked(file):
            yield False
            return
        file.seek(0)
        file.truncate()
        file.write(f"{os.getpid()}\n")
        file.flush()
        yield True


def controller_pid(settings: Settings) -> int | None:
    """Return the process id of the running controller; None if there is none."""
    path = settings.home / LOCK_FILE
    try:
        with path.open("r+") as file:
            if _locked(file):
                return None
            text = file.read().strip()
    except OSError:
        return None
    return int(text) if text.isdecimal() else None


def start_controller(settings: Settings) -> int:
    """Return the process id of the running controller; start one if there is none."""
    settings.home.mkdir(parents=True, exist_ok=True, mode=0o700)
    log = settings.home / LOG_FILE
    child = None
    waited_until = time.monotonic() + START_S
    while time.monotonic() < waited_until:
        pid = controller_pid(settings)
        if pid is not None:
            return pid
        if child is None or child.poll() is not None:
            child = _spawned(settings, log)
        time.sleep(0.05)
    raise FleetError(f"the controller did not start within {START_S:g} s; see {log}", retry=False)


def stop_controller(settings: Settings) -> None:
    """Stop the controller; the next one continues its work."""
    pid = controller_pid(settings)
    if pid is None:
        return
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGTERM)
    end = time.monotonic() + START_S
    while controller_pid(settings) == pid:
        if time.monotonic() > end:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.05)


def _spawned(settings: Settings, log: Path) -> subprocess.Popen[bytes]:
    with log.open("ab") as output:
        return subprocess.Popen(
            [sys.executable, "-m", "duetune.cli", "controller", "run"],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            env={**os.environ, "DUETUNE_HOME": str(settings.home)},
            cwd=settings.home,
        )


def _locked(file: IO[str]) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
