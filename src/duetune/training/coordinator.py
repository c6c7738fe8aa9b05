"""``python -m duetune.training.coordinator``: says who is in a job's elastic group.

It runs torchft's lighthouse, writes its address to a file, and ends with the process that started
it. It may be stopped and started again at the same place at any time: members wait for it.
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

# A member is gone after so long without a heartbeat; one that is there but late is waited for.
HEARTBEAT_TIMEOUT_MS = 600
JOIN_TIMEOUT_MS = 10_000
TICK_MS = 20
_WATCH_S = 0.5
_BIND_TRIES = 50
_BIND_PAUSE_S = 0.1


def main(arguments: list[str] | None = None) -> int:
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
    # The server tells the name of the host, which need not lead to where it listens.
    port = server.address().rpartition(":")[2]
    write_whole(options.port_file, f"http://{host}:{port}")
    while not stopped.wait(_WATCH_S):
        if os.getppid() != parent:
            break
    server.shutdown()
    return 0


def _server(options: argparse.Namespace) -> LighthouseServer:
    for attempt in range(_BIND_TRIES):
        try:
            return lighthouse_server(
                options.bind,
                heartbeat_timeout_ms=options.heartbeat_timeout_ms,
                join_timeout_ms=options.join_timeout_ms,
                tick_ms=TICK_MS,
            )
        except RuntimeError as error:
            # The one before it may not be quite gone.
            if attempt == _BIND_TRIES - 1:
                raise InvalidInput("--bind", options.bind, f"a free address ({error})") from None
            time.sleep(_BIND_PAUSE_S)
    raise AssertionError


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m duetune.training.coordinator")
    parser.add_argument("--port-file", type=Path, required=True, help="where to write the address")
    parser.add_argument("--bind", default="127.0.0.1:0", metavar="ADDRESS:PORT")
    parser.add_argument("--heartbeat-timeout-ms", type=int, default=HEARTBEAT_TIMEOUT_MS)
    parser.add_argument("--join-timeout-ms", type=int, default=JOIN_TIMEOUT_MS)
    return parser


if __name__ == "__main__":
    sys.exit(main())
