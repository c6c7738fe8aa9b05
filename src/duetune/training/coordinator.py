"""``python -m duetune.training.coordinator``: decides who is in a job's elastic group.

It runs torchft's lighthouse, writes its address to a file, and ends when its parent process ends.
It may be restarted on the same port at any time: members wait for it. Torch is not imported. The
members' side is in ``lighthouse``.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

from duetune.core.node_contract import HOPELESS
from duetune.errors import DuetuneError, InvalidInput, MissingExtra
from duetune.files import write_whole
from duetune.training.lighthouse import lighthouse_server

if TYPE_CHECKING:
    from duetune.training.lighthouse import LighthouseServer

# A member without a heartbeat for HEARTBEAT_TIMEOUT_MS counts as gone. A member that sends
# heartbeats but has not asked for the quorum is waited for up to JOIN_TIMEOUT_MS.
HEARTBEAT_TIMEOUT_MS = 600
JOIN_TIMEOUT_MS = 10_000
TICK_MS = 20
_WATCH_S = 0.5
_BIND_TRIES = 50
_BIND_PAUSE_S = 0.1


def main(arguments: list[str] | None = None) -> int:
    """Run the coordinator until it is stopped or its parent is gone; return the exit status."""
    options = _parser().parse_args(arguments)
    parent = os.getppid()
    stopped = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopped.set())
    try:
        server = _server(options)
    except DuetuneError as error:
        print(error, file=sys.stderr)  # noqa: T201
        return HOPELESS if isinstance(error, MissingExtra) else error.exit_code
    host = options.bind.rpartition(":")[0]
    # The server reports the host's name, which may resolve to another address than it listens on.
    port = server.address().rpartition(":")[2]
    write_whole(options.port_file, f"http://{host}:{port}")
    while not stopped.wait(_WATCH_S):
        if os.getppid() != parent:
            break
    server.shutdown()
    return 0


def _server(options: argparse.Namespace) -> LighthouseServer:
    attempts = 0
    while True:
        attempts += 1
        try:
            return lighthouse_server(
                options.bind,
                heartbeat_timeout_ms=options.heartbeat_timeout_ms,
                join_timeout_ms=options.join_timeout_ms,
                tick_ms=TICK_MS,
            )
        except RuntimeError as error:
            # The previous coordinator may not have released the port yet.
            if attempts == _BIND_TRIES:
                raise InvalidInput("--bind", options.bind, f"a free address ({error})") from None
            time.sleep(_BIND_PAUSE_S)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m duetune.training.coordinator")
    parser.add_argument("--port-file", type=Path, required=True, help="where to write the address")
    parser.add_argument("--bind", default="127.0.0.1:0", metavar="ADDRESS:PORT")
    parser.add_argument("--heartbeat-timeout-ms", type=int, default=HEARTBEAT_TIMEOUT_MS)
    parser.add_argument("--join-timeout-ms", type=int, default=JOIN_TIMEOUT_MS)
    return parser


if __name__ == "__main__":
    sys.exit(main())
