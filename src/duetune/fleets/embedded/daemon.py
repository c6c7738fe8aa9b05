"""Starts the provider as a background process: ``python -m duetune.fleets.embedded.daemon FOLDER``.

The command reads an ``Order`` (JSON) from standard input and forks the provider. It exits with 0
once the provider answers calls. Otherwise it writes the reason to standard error. A lock file
ensures that a folder has at most one provider.
"""

from __future__ import annotations

import fcntl
import os
import sys
import time
import traceback
from pathlib import Path
from typing import NoReturn

LOCK_FILE = "lock"
LOG_FILE = "provider.log"
READY = b"ready"
BUSY = b"busy"
LOCK_PATIENCE_S = 2.0


def main() -> int:
    """Start the provider of the folder on the command line and return the exit status."""
    folder, order = Path(sys.argv[1]), sys.stdin.buffer.read()
    listener, speaker = os.pipe()
    # Fork before the heavy imports: libraries that have started threads break in a fork.
    if os.fork() == 0:
        os.close(listener)
        _detached(folder, order, speaker)
    os.close(speaker)
    with open(listener, "rb") as answers:  # noqa: PTH123 - a descriptor
        answer = answers.read()
    if answer == READY:
        return 0
    problem = answer.decode(errors="replace") or f"the process died; see {folder / LOG_FILE}"
    sys.stderr.write(problem)
    return 1


def locked(folder: Path) -> int | None:
    """Take the folder's provider lock and return its descriptor; None if it is taken."""
    descriptor = os.open(folder / LOCK_FILE, os.O_RDWR | os.O_CREAT, 0o600)
    deadline = time.monotonic() + LOCK_PATIENCE_S
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            # ``is_locked`` of another process may hold it for a moment.
            if time.monotonic() > deadline:
                os.close(descriptor)
                return None
            time.sleep(0.02)
        else:
            return descriptor


def is_locked(folder: Path) -> bool:
    """Return whether a provider of the folder runs."""
    try:
        descriptor = os.open(folder / LOCK_FILE, os.O_RDWR)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def _detached(folder: Path, order: bytes, speaker: int) -> NoReturn:
    code = 1
    try:
        os.setsid()
        os.umask(0o077)
        os.chdir("/")
        log = os.open(folder / LOG_FILE, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        empty = os.open(os.devnull, os.O_RDONLY)
        for source, target in ((empty, 0), (log, 1), (log, 2)):
            os.dup2(source, target)
        if locked(folder) is None:
            os.write(speaker, BUSY)
        else:
            code = _serve(folder, order, speaker)
    except BaseException:  # noqa: BLE001 - the last resort before the process ends
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def _serve(folder: Path, order: bytes, speaker: int) -> int:
    from duetune.errors import DuetuneError  # noqa: PLC0415 - after the fork
    from duetune.fleets.embedded.provider_service import serve  # noqa: PLC0415 - after the fork

    def ready() -> None:
        os.write(speaker, READY)
        os.close(speaker)

    try:
        serve(folder, order, ready)
    except DuetuneError as error:
        sys.stderr.write(f"{error}\n")
        os.write(speaker, str(error).encode())
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
