"""``python -m duetune.training.coordinator``: decides who is in a job's elastic group.

It writes the address of its door to a file and ends when its parent process ends. It may be
restarted at any time: members wait for it and read the file again. With ``--seats`` every node runs
it, but only the one that has the newest seat serves (``coordinator_seat``); the others write that
one's address. Torch is not imported. The members' side is in ``coordinator_client``; who is in a
quorum is decided in ``quorum``.
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
from duetune.storage import is_url, open_storage
from duetune.training.authentication import (
    Door,
    cut,
    expect_reader,
    job_secret,
    receive,
    send,
)
from duetune.training.checkpoint import CheckpointStore
from duetune.training.coordinator_client import Ask, Beat
from duetune.training.coordinator_seat import CoordinatorSeat, StorageSeats, answers
from duetune.training.group_times import QuorumTimes, SeatTimes
from duetune.training.network_address import Interface
from duetune.training.quorum import Quorum

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Mapping

    from duetune.training.membership import Member

_log = logging.getLogger(__name__)

_WATCH_S = 0.5
_BUCKET_SEAT_S = 5.0
_MESSAGES = msgspec.json.Decoder(Ask | Beat)


class Coordinator:
    """The coordinator's door. It listens as soon as it is created.

    - ``checkpoints``: the folder or URL of the job's checkpoints.
    - ``again``: the job had a coordinator before, so members may be looking for this one.
    """

    def __init__(
        self,
        secret: bytes,
        checkpoints: Path | str,
        *,
        interface: Interface | None = None,
        port: int = 0,
        times: QuorumTimes | None = None,
        again: bool = False,
    ) -> None:
        self._store = CheckpointStore(checkpoints, epoch=0)
        limits = times or QuorumTimes()
        self._quorum = Quorum(limits, self._vouch, limits.settle_s if again else 0.0)
        self._connections: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._open = True
        self._door = Door(interface or Interface(), secret, self._serve, port=port)

    @property
    def address(self) -> str:
        """Return the address at which members reach this coordinator."""
        return self._door.address

    def close(self) -> None:
        """Stop listening and end all connections, so that members look for another coordinator."""
        self._door.close()
        with self._lock:
            self._open = False
            for connection in self._connections:
                cut(connection)
        self._quorum.close()

    def _serve(self, connection: socket.socket) -> bool:
        connection.settimeout(None)
        expect_reader(connection)
        beating = None
        with self._lock:
            self._connections.add(connection)
        try:
            while self._open:
                message = _MESSAGES.decode(receive(connection))
                match message:
                    case Beat():
                        beating = message.member
                        self._quorum.beat(beating)
                    case Ask():
                        send(connection, msgspec.json.encode(self._quorum.ask(message.member)))
        finally:
            with self._lock:
                self._connections.discard(connection)
            if beating is not None:
                self._quorum.gone(beating)
        return False

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
        secret, checkpoints = job_secret(os.environ), _checkpoints(os.environ)
        interface, port = _interface(options.bind, os.environ)
        times = QuorumTimes.from_environment(interface, os.environ)

        seats = None if options.seats is None else _seats(options.seats)

        def start() -> Coordinator:
            before = options.address_file.exists() if seats is None else seats.newest()
            return Coordinator(
                secret,
                checkpoints,
                interface=interface,
                port=port,
                times=times,
                again=bool(before),
            )

        def ended(pause_s: float) -> bool:
            return stopped.wait(pause_s) or os.getppid() != parent

        if seats is None:
            _serve_alone(start(), options.address_file, ended)
        else:
            looks = SeatTimes.from_environment(interface, os.environ)
            seat = CoordinatorSeat(
                seats,
                start,
                lambda address: answers(address, secret, looks.dial_s),
                looks,
            )
            stand_by(seat, options.address_file, lambda: ended(looks.look_s))
    except DuetuneError as error:
        print(error, file=sys.stderr)  # noqa: T201
        return error.exit_code
    return 0


def _serve_alone(coordinator: Coordinator, file: Path, ended: Callable[[float], bool]) -> None:
    write_whole(file, coordinator.address, mode=OWNER)
    while not ended(_WATCH_S):
        pass
    coordinator.close()


def stand_by(seat: CoordinatorSeat, file: Path, ended: Callable[[], bool]) -> None:
    """Keep the newest coordinator's address in ``file`` and serve if this node has the seat.

    A node's agent calls this in a thread or runs this module. ``ended`` waits between two looks and
    returns true once the node leaves the job.
    """
    written = None
    while True:
        try:
            address = seat.tick()
            if address is not None and address != written:
                write_whole(file, address, mode=OWNER)
                written = address
        except OSError as error:
            # The list or the disk is away for a while. Members keep the coordinator they have.
            _log.warning("cannot look for the coordinator: %s", error)
        if ended():
            break
    seat.close()


def _interface(bind: str | None, environ: Mapping[str, str]) -> tuple[Interface, int]:
    """Return the interface and port of ``--bind``, or the interface of the environment."""
    found = Interface.from_environment(environ)
    if bind is None:
        return found, 0
    host, _, port = bind.rpartition(":")
    if not host or not port.isdigit():
        raise InvalidInput("--bind", bind, "ADDRESS:PORT")
    return msgspec.structs.replace(found, bind=host.strip("[]")), int(port)


def _seats(place: str) -> StorageSeats:
    """Return the list at a path or URL. A bucket is asked less often, because requests cost."""
    return StorageSeats(open_storage(place), fresh_s=_BUCKET_SEAT_S if is_url(place) else 0.0)


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
    parser.add_argument(
        "--bind", metavar="ADDRESS:PORT", help="where to listen; by default DUETUNE_BIND"
    )
    parser.add_argument(
        "--seats", metavar="PLACE", help="path or URL of a list shared by all nodes of the job"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
