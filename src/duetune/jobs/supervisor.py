"""The supervisor: runs the controller of one fleet and starts it again when it dies.

    python -m duetune.jobs.supervisor FLEET

It ends when the controller ends by itself: all jobs are over, it was told to stop, or only the user
can help. It imports little, because it lives as long as the jobs.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from duetune.core.node_contract import HOPELESS
from duetune.fleets.process_lock import hold
from duetune.jobs.controller_process import ControllerFiles
from duetune.settings import HOME

FIRST_PAUSE_S = 0.5
LONGEST_PAUSE_S = 60.0
SOUND_S = 60.0
"""After a controller has run this many seconds, its next death counts as the first one again."""

FINAL = {0, 2, HOPELESS}
"""Exit statuses after which another controller would end as well, or is not needed."""

_STOPS = {signal.SIGTERM, signal.SIGINT}
_RETRY = signal.SIGUSR1
_AWAITED = {*_STOPS, _RETRY, signal.SIGCHLD}


def main() -> int:
    """Supervise the controller of a fleet of the home in the environment.

    ``start_controller`` calls it, with the fleet as the program's argument.
    """
    home, fleet = Path(os.environ[HOME]), sys.argv[1]
    # Blocked before the lock is taken: whoever finds the supervisor may signal it.
    signal.pthread_sigmask(signal.SIG_BLOCK, _AWAITED)
    if hold(ControllerFiles.of(home, fleet).supervisor, fleet) is not None:
        supervise(home, fleet)
    return 0


def supervise(home: Path, fleet: str) -> None:
    """Run controllers of a fleet, one after the other, until one ends with a final status."""
    pause_s = FIRST_PAUSE_S
    while home.is_dir():
        begun = time.monotonic()
        status = _run(home, fleet)
        if status is None or status in FINAL or _crash_was_asked_for():
            return
        if time.monotonic() - begun > SOUND_S:
            pause_s = FIRST_PAUSE_S
        _say(f"the controller ended with status {status}; the next one starts in {pause_s:g} s")
        received = signal.sigtimedwait({*_STOPS, _RETRY}, pause_s)
        if received is not None and received.si_signo in _STOPS:
            return
        pause_s = min(2 * pause_s, LONGEST_PAUSE_S)


def _run(home: Path, fleet: str) -> int | None:
    """Run one controller; return its exit status, or None if it was told to stop."""
    child = subprocess.Popen(  # noqa: S603 - our own program
        [sys.executable, "-m", "duetune.cli", "controller", "run", "--fleet", fleet],
        cwd=home,
        preexec_fn=lambda: signal.pthread_sigmask(signal.SIG_UNBLOCK, _AWAITED),  # noqa: PLW1509 - there is one thread
    )
    stopped = False
    while (status := child.poll()) is None:
        number = signal.sigwait(_AWAITED)
        if number in _STOPS:
            stopped = True
            child.send_signal(signal.SIGTERM)
    return None if stopped else status


def _crash_was_asked_for() -> bool:
    """Return whether a test named a crash point, at which the next controller would die as well."""
    from duetune.control.crash_points import VARIABLE  # noqa: PLC0415 - only after a death

    return bool(os.environ.get(VARIABLE))


def _say(message: str) -> None:
    sys.stderr.write(f"{time.strftime('%H:%M:%S')} WARNING {message}\n")
    sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(main())
