"""A member's door: it copies the member's state, answers pings, and accepts links of the group.

A state is sent as a JSON header and the bytes of the arrays. Nothing is unpickled, so a wrong peer
can send a wrong state but cannot run code. Only peers that know the job's secret are heard
(``authentication``). Links carry the sums of ``collective``.
"""

from __future__ import annotations

import json
import threading
import time
from typing import TYPE_CHECKING, Protocol

import msgspec
import torch

from duetune.training.authentication import Door, dial, fill, receive, send

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

    from duetune.training.checkpoint import Json
    from duetune.training.network_address import Interface

# A transfer fails if the peer sends or reads nothing for this long.
_STALL_S = 10.0
# Links of peers that have formed the group before this member has.
_MOST_EARLY_LINKS = 256
_DTYPES = {
    str(dtype): dtype
    for dtype in (
        *(torch.float32, torch.float64, torch.bfloat16, torch.float16),
        *(torch.int64, torch.int32, torch.int8, torch.uint8, torch.bool),
    )
}
_YES, _NO = b"yes", b""


class TransferFailed(Exception):
    """The state of another member could not be copied."""


class State(Protocol):
    """The state of a member, as it is copied and saved."""

    @property
    def lock(self) -> threading.Lock:
        """Return the lock to hold while the state is read or changed."""

    @property
    def step(self) -> int:
        """Return the number of steps done."""

    def arrays(self) -> dict[str, torch.Tensor]:
        """Return the tensors of the state, by name; not copies."""

    def document(self) -> dict[str, Json]:
        """Return the rest of the state as JSON."""

    def load(self, arrays: dict[str, torch.Tensor], document: dict[str, Json]) -> None:
        """Replace the state."""


class Ping(msgspec.Struct, frozen=True, tag="ping"):
    """Ask whether the member is alive."""


class Fetch(msgspec.Struct, frozen=True, tag="fetch"):
    """Ask for the state of one step."""

    step: int


class Link(msgspec.Struct, frozen=True, tag="link"):
    """Make this connection the link of ``rank`` in a group."""

    group: str
    rank: int


_REQUESTS = msgspec.json.Decoder(Ping | Fetch | Link)


class MemberDoor:
    """Serves the state, pings (``alive`` is asked) and links of one member."""

    def __init__(
        self, interface: Interface, secret: bytes, state: State, alive: Callable[[], bool]
    ) -> None:
        self._state = state
        self._alive = alive
        self._secret = secret
        self._links: dict[Link, socket.socket] = {}
        self._linked = threading.Condition()
        self._door = Door(interface, secret, self._serve)

    @property
    def address(self) -> str:
        """Return the address at which other members reach this one."""
        return self._door.address

    def links(
        self,
        group: str,
        rank: int,
        addresses: list[str],
        limit_s: float,
        *,
        first_only: bool = False,
    ) -> dict[int, socket.socket]:
        """Return a connection to every other member of ``group``, by rank.

        Members dial those of lower rank. With ``first_only`` rank 0 has a connection to every other
        member, and they have one to rank 0. ``OSError`` is raised if one is missing after
        ``limit_s``.
        """
        until = time.monotonic() + limit_s
        found: dict[int, socket.socket] = {}
        lower = addresses[: min(rank, 1) if first_only else rank]
        higher = range(rank + 1, 0 if first_only and rank else len(addresses))
        try:
            for other, address in enumerate(lower):
                found[other] = dial(address, self._secret, limit_s)
                send(found[other], msgspec.json.encode(Link(group, rank)))
            for other in higher:
                found[other] = self._link(Link(group, other), until)
        except BaseException:
            for connection in found.values():
                connection.close()
            raise
        finally:
            self._forget(group)
        return found

    def close(self) -> None:
        """Stop serving."""
        self._door.close()
        self._forget("")

    def _link(self, wanted: Link, until: float) -> socket.socket:
        with self._linked:
            while wanted not in self._links:
                if not self._linked.wait(until - time.monotonic()):
                    raise TimeoutError(f"rank {wanted.rank} has not connected")
            return self._links.pop(wanted)

    def _forget(self, group: str) -> None:
        """Close the links of ``group`` that nobody has taken, and the oldest of too many others."""
        with self._linked:
            many = max(0, len(self._links) - _MOST_EARLY_LINKS)
            for number, link in enumerate(list(self._links)):
                if link.group == group or number < many:
                    self._links.pop(link).close()

    def _serve(self, connection: socket.socket) -> bool:
        connection.settimeout(_STALL_S)
        match request := _REQUESTS.decode(receive(connection)):
            case Ping():
                send(connection, _YES if self._alive() else _NO)
            case Fetch():
                self._send_state(connection, request.step)
            case Link():
                with self._linked:
                    self._links[request] = connection
                    self._linked.notify_all()
                return True
        return False

    def _send_state(self, connection: socket.socket, step: int) -> None:
        # The state must not change while it is sent, so the lock is held until the last byte. A
        # reader that stops reading is disconnected after ``_STALL_S``.
        with self._state.lock:
            if self._state.step != step:
                send(connection, _NO)
                return
            arrays = self._state.arrays()
            send(connection, _header(arrays, self._state.document()))
            for array in arrays.values():
                connection.sendall(bytes_of(array.detach().to("cpu").contiguous()))


def fetch_state(
    address: str, secret: bytes, step: int
) -> tuple[dict[str, torch.Tensor], dict[str, Json]]:
    """Return arrays and document of the member at ``address``, which must be at ``step``."""
    try:
        with dial(address, secret, _STALL_S) as connection:
            send(connection, msgspec.json.encode(Fetch(step)))
            content = receive(connection)
            if content == _NO:
                raise TransferFailed(f"{address} has no state of step {step}")
            header = json.loads(content)
            arrays = {}
            for name, dtype, shape in header["arrays"]:
                arrays[name] = torch.empty(shape, dtype=_DTYPES[dtype])
                fill(connection, bytes_of(arrays[name]))
            return arrays, header["document"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise TransferFailed(f"{address}: {error or type(error).__name__}") from error


def alive(address: str, secret: bytes, timeout_s: float) -> bool | None:
    """Return whether a member is alive; False if it is not or says so, None on a timeout."""
    try:
        with dial(address, secret, timeout_s) as connection:
            send(connection, msgspec.json.encode(Ping()))
            return receive(connection) == _YES
    except TimeoutError:
        return None
    except OSError:
        return False


def bytes_of(array: torch.Tensor) -> memoryview:
    """Return the bytes of a contiguous tensor on the CPU; not a copy."""
    return array.flatten().view(torch.uint8).numpy().data


def _header(arrays: dict[str, torch.Tensor], document: dict[str, Json]) -> bytes:
    described = [(name, str(array.dtype), list(array.shape)) for name, array in arrays.items()]
    return json.dumps({"arrays": described, "document": document}).encode()
