"""Starts the provider as a background process: ``python -m duetune.fleets.embedded.daemon FOLDER``.

The command reads an ``Order`` (JSON) from standard input and forks the provider. It exits with 0
once the provider answers calls. Otherwise it writes the reason to standard error. A lock file
ensures that a folder has at most one provider.
"""

from __future__ import annotations

import os
import sys
import traceback
from pathlib import Path
from typing import NoReturn

from duetune.fleets.process_lock import ProcessIdentity, hold, holder

LOCK_FILE = "lock"
LOG_FILE = "provider.log"
READY = b"ready"
BUSY = b"busy"


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


def running(folder: Path) -> ProcessIdentity | None:
    """Return the provider process of the folder; None if none runs."""
    return holder(folder / LOCK_FILE)


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
        if hold(folder / LOCK_FILE) is None:
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
