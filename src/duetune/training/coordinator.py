"""``python -m duetune.training.coordinator``: decides who is in a job's elastic group.

It writes the address of its door to a file and ends when its parent process ends. It may be
restarted at any time: members wait for it and read the file again. Torch is not imported. The
members' side is in ``coordinator_client``; who is in a quorum is decided in ``quorum``.
"""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from duetune.core.node_contract import CHECKPOINT_DIR, CHECKPOINT_URL, CHECKPOINTS, JOB_DIR
from duetune.errors import DuetuneError, InvalidInput
from duetune.files import OWNER, write_whole
from duetune.training.authentication import Door, job_secret, receive, send
from duetune.training.checkpoint import CheckpointStore
from duetune.training.coordinator_client import Ask, Beat
from duetune.training.quorum import Quorum, QuorumTimes

if TYPE_CHECKING:
    import socket
    from collections.abc import Mapping

    from duetune.training.membership import Member

_log = logging.getLogger(__name__)

_WATCH_S = 0.5
_MESSAGES = msgspec.json.Decoder(Ask | Beat)


class Coordinator:
    """The coordinator's door. It listens as soon as it is created.

    ``checkpoints`` is the folder or URL of the job's checkpoints.
    """

    def __init__(
        self,
        secret: bytes,
        checkpoints: Path | str,
        *,
        bind: str = "127.0.0.1",
        port: int = 0,
        times: QuorumTimes | None = None,
    ) -> None:
        self._store = CheckpointStore(checkpoints, epoch=0)
        self._quorum = Quorum(times or QuorumTimes(), self._vouch)
        self._door = Door(bind, port, secret, self._serve)

    @property
    def address(self) -> str:
        """Return the address at which members reach this coordinator."""
        return self._door.address

    def close(self) -> None:
        """Stop listening."""
        self._door.close()

    def _serve(self, connection: socket.socket) -> bool:
        connection.settimeout(None)
        beating = None
        try:
            while True:
                message = _MESSAGES.decode(receive(connection))
                match message:
                    case Beat():
                        beating = message.member
                        self._quorum.beat(beating)
                    case Ask():
                        send(connection, msgspec.json.encode(self._quorum.ask(message.member)))
        finally:
            if beating is not None:
                self._quorum.gone(beating)

    def _vouch(self, member: Member) -> Member:
        """Return the member without the checkpoint it names, unless there is such a checkpoint."""
        if not member.fresh or not member.restored:
            return member
        if self._store.holds(member.restored, member.step):
            return member
        _log.warning("%s names a checkpoint that is not there: %s", member.id, member.restored)
        return msgspec.structs.replace(member, restored="")


def main(arguments: list[str] | None = None) -> int:
    """Run the coordinator until it is stopped or its parent is gone; return the exit status."""
    options = _parser().parse_args(arguments)
    parent = os.getppid()
    stopped = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopped.set())
    logging.basicConfig(stream=sys.stdout, level=logging.WARNING, format="%(asctime)s %(message)s")
    try:
        coordinator = _listening(options.bind, os.environ)
    except DuetuneError as error:
        print(error, file=sys.stderr)  # noqa: T201
        return error.exit_code
    write_whole(options.address_file, coordinator.address, mode=OWNER)
    while not stopped.wait(_WATCH_S):
        if os.getppid() != parent:
            break
    coordinator.close()
    return 0


def _listening(bind: str, environ: Mapping[str, str]) -> Coordinator:
    secret = job_secret(environ)
    host, _, port = bind.rpartition(":")
    if not host or not port.isdigit():
        raise InvalidInput("--bind", bind, "ADDRESS:PORT")
    try:
        return Coordinator(secret, _checkpoints(environ), bind=host, port=int(port))
    except OSError as error:
        raise InvalidInput("--bind", bind, f"a free address ({error})") from None


def _checkpoints(environ: Mapping[str, str]) -> Path | str:
    if url := environ.get(CHECKPOINT_URL):
        return url
    if given := environ.get(CHECKPOINT_DIR):
        return Path(given)
    if folder := environ.get(JOB_DIR):
        return Path(folder) / CHECKPOINTS
    raise InvalidInput(JOB_DIR, None, "the job's folder, set by the node")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m duetune.training.coordinator")
    parser.add_argument(
        "--address-file", type=Path, required=True, help="where to write the address"
    )
    parser.add_argument("--bind", default="127.0.0.1:0", metavar="ADDRESS:PORT")
    return parser


if __name__ == "__main__":
    sys.exit(main())
