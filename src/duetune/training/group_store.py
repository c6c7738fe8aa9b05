"""A store of keys that members share while NCCL connects them: rank 0 holds it.

Torch's own stores need a folder that all machines share, or a port without a secret. This one uses
connections that have proved the job's secret (``transfer`` makes them). NCCL puts the random number
into it by which its own connections know each other.
"""

from __future__ import annotations

import threading
import time
from datetime import timedelta
from typing import TYPE_CHECKING

import msgspec
from torch._C._distributed_c10d import Store

from duetune.training.authentication import cut, receive, send

if TYPE_CHECKING:
    import socket
    from collections.abc import Mapping

_LOOK_S = 0.01


class Put(msgspec.Struct, frozen=True, tag="put"):
    """Set a key."""

    key: str
    value: bytes


class Swap(msgspec.Struct, frozen=True, tag="swap"):
    """Set a key if it has the expected value, or if it is new and none is expected."""

    key: str
    expected: bytes
    value: bytes


class Add(msgspec.Struct, frozen=True, tag="add"):
    """Add to the number of a key, which begins at 0."""

    key: str
    amount: int


class Drop(msgspec.Struct, frozen=True, tag="drop"):
    """Remove a key; the answer is its last value."""

    key: str


class Read(msgspec.Struct, frozen=True, tag="read"):
    """Return the value of a key."""

    key: str


class Count(msgspec.Struct, frozen=True, tag="count"):
    """Return the number of keys."""


_Request = Put | Swap | Add | Drop | Read | Count
_REQUESTS = msgspec.msgpack.Decoder(Put | Swap | Add | Drop | Read | Count)
_ANSWERS = msgspec.msgpack.Decoder(bytes | None)


class _Keys:
    """The keys themselves, which rank 0 holds. No request waits."""

    def __init__(self) -> None:
        self._values: dict[str, bytes] = {}
        self._lock = threading.Lock()

    def do(self, request: _Request) -> bytes | None:
        """Do what is asked and return the key's value; None if there is no such key."""
        with self._lock:
            values = self._values
            match request:
                case Put(key, value):
                    values[key] = value
                case Swap(key, expected, value):
                    if values.get(key, b"") == expected:
                        values[key] = value
                    return values.get(key, expected)
                case Add(key, amount):
                    values[key] = str(int(values.get(key, b"0")) + amount).encode()
                case Drop(key):
                    return values.pop(key, None)
                case Count():
                    return str(len(values)).encode()
                case Read(key):
                    pass
            return values.get(request.key)


class GroupStore(Store):
    """One member's view of the store.

    ``links`` are rank 0's connections to all other members, or a member's one connection to rank 0.
    ``limit_s`` is how long ``get`` and ``wait`` wait for a key.
    """

    def __init__(self, links: Mapping[int, socket.socket], limit_s: float) -> None:
        super().__init__()
        self._links = dict(links)
        self._limit = timedelta(seconds=limit_s)
        self._turn = threading.Lock()
        self._first = self._links.get(0)
        self._keys = _Keys()
        for link in self._links.values():
            link.settimeout(limit_s if self._first else None)
        if self._first is None:
            for link in self._links.values():
                threading.Thread(
                    target=self._serve, args=(link,), name="group-store", daemon=True
                ).start()

    def set(self, key: str, value: str | bytes) -> None:
        """Set a key."""
        self._do(Put(key, _as_bytes(value)))

    def get(self, key: str) -> bytes:
        """Wait for a key and return its value."""
        until = time.monotonic() + self._limit.total_seconds()
        while (value := self._do(Read(key))) is None:
            _pause(until, [key])
        return value

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        """Wait until all keys are there."""
        until = time.monotonic() + (timeout or self._limit).total_seconds()
        while not all(self._do(Read(key)) is not None for key in keys):
            _pause(until, keys)

    def check(self, keys: list[str]) -> bool:
        """Return whether all keys are there; a closed store has none."""
        # NCCL's own threads ask, also after rank 0 has left.
        try:
            return all(self._do(Read(key)) is not None for key in keys)
        except OSError:
            return False

    def add(self, key: str, amount: int) -> int:
        """Add to a key and return the sum."""
        return int(self._do(Add(key, amount)) or b"0")

    def compare_set(self, key: str, expected: str | bytes, desired: str | bytes) -> bytes:
        """Set a key if it has the expected value; return its value then."""
        return self._do(Swap(key, _as_bytes(expected), _as_bytes(desired))) or b""

    def delete_key(self, key: str) -> bool:
        """Remove a key and return whether it was there."""
        return self._do(Drop(key)) is not None

    def num_keys(self) -> int:
        """Return the number of keys."""
        return int(self._do(Count()) or b"0")

    # The names that torch's own code calls.
    deleteKey = delete_key  # noqa: N815
    getNumKeys = num_keys  # noqa: N815

    def clone(self) -> GroupStore:
        """Return this store: any thread may use it."""
        return self

    def set_timeout(self, timeout: timedelta) -> None:
        """Change how long ``get`` and ``wait`` wait for a key."""
        self._limit = timeout

    def close(self) -> None:
        """Close the connections; a call that waits in another thread fails."""
        for link in self._links.values():
            cut(link)
        with self._turn:
            for link in self._links.values():
                link.close()

    def _do(self, request: _Request) -> bytes | None:
        if self._first is None:
            return self._keys.do(request)
        with self._turn:
            send(self._first, msgspec.msgpack.encode(request))
            answer: bytes | None = _ANSWERS.decode(receive(self._first))
            return answer

    def _serve(self, link: socket.socket) -> None:
        try:
            while True:
                answer = self._keys.do(_REQUESTS.decode(receive(link)))
                send(link, msgspec.msgpack.encode(answer))
        except (OSError, ValueError):
            # The member has left, or this store was closed.
            cut(link)


def _pause(until: float, keys: list[str]) -> None:
    if time.monotonic() > until:
        raise TimeoutError(f"nobody has set {', '.join(keys)}")
    time.sleep(_LOOK_S)


def _as_bytes(value: str | bytes) -> bytes:
    return value.encode() if isinstance(value, str) else bytes(value)
