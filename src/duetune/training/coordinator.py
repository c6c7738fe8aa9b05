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

from duetune.errors import MissingExtra

# A member is gone after so long without a heartbeat; one that is there but late is waited for.
HEARTBEAT_TIMEOUT_MS = 600
JOIN_TIMEOUT_MS = 10_000
TICK_MS = 20
_WATCH_S = 0.5
_BIND_TRIES = 50


def main(arguments: list[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    os.environ.setdefault("RUST_LOG", "off")
    parent = os.getppid()
    stopped = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopped.set())
    try:
        from torchft.coordination import LighthouseServer  # noqa: PLC0415 - heavy
    except ImportError:
        print(MissingExtra("training", "train"), file=sys.stderr)  # noqa: T201
        return 78
    server = None
    for attempt in range(_BIND_TRIES):
        try:
            server = LighthouseServer(
                bind=options.bind,
                min_replicas=1,
                join_timeout_ms=options.join_timeout_ms,
                quorum_tick_ms=TICK_MS,
                heartbeat_timeout_ms=options.heartbeat_timeout_ms,
            )
            break
        except RuntimeError as error:
            # The one before it may not be quite gone.
            if attempt == _BIND_TRIES - 1:
                print(f"--bind {options.bind}: {error}", file=sys.stderr)  # noqa: T201
                return 4
            time.sleep(0.1)
    if server is None:
        return 4
    host = options.bind.rpartition(":")[0]
    # The server tells the name of the host, which need not lead to where it listens.
    port = server.address().rpartition(":")[2]
    _write(options.port_file, f"http://{host}:{port}")
    while not stopped.wait(_WATCH_S):
        if os.getppid() != parent:
            break
    server.shutdown()
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m duetune.training.coordinator")
    parser.add_argument("--port-file", type=Path, required=True, help="where to write the address")
    parser.add_argument("--bind", default="127.0.0.1:0", metavar="ADDRESS:PORT")
    parser.add_argument("--heartbeat-timeout-ms", type=int, default=HEARTBEAT_TIMEOUT_MS)
    parser.add_argument("--join-timeout-ms", type=int, default=JOIN_TIMEOUT_MS)
    return parser


def _write(path: Path, address: str) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    temporary.write_text(address, encoding="utf-8")
    temporary.replace(path)


if __name__ == "__main__":
    sys.exit(main())
