"""Sums over the members of a group: NCCL if each has its own GPU, otherwise our own links.

A connection never outlives a change of members. After any failure it is closed, and a new one is
made under another name, which takes about 10 ms. Who the members are is decided in ``membership``;
``transfer`` makes the links.
"""

from __future__ import annotations

import os
import selectors
import ssl
import threading
from datetime import timedelta
from typing import TYPE_CHECKING, Protocol

import torch
from torch._C._distributed_c10d import AllgatherOptions, AllreduceOptions

from duetune.training.authentication import cut
from duetune.training.transfer import bytes_of

if TYPE_CHECKING:
    import socket
    from collections.abc import Mapping

    from duetune.training.group_store import GroupStore

_MARK_BYTES = 16
# An encrypted link must be given the same bytes again if it could not send them.
_CHUNK_BYTES = 1 << 20
_NOT_YET = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


class Collective(Protocol):
    """Operations over all members. They block until done and raise the library's own errors."""

    def gather(self, part: torch.Tensor) -> list[torch.Tensor]:
        """Return every member's ``part``, in the order of ranks."""

    def add_up(self, part: torch.Tensor) -> None:
        """Replace ``part`` by the sum over all members."""

    def abort(self) -> None:
        """Close the connections, also while an operation is running."""


def device_name(device: torch.device) -> str:
    """Return a name of the GPU that is the same in every process; "" for a CPU."""
    if device.type != "cuda":
        return ""
    return f"cuda:{torch.cuda.get_device_properties(device).uuid}"


class LinkedCollective:
    """Operations over one link to every other member, on the CPU.

    Members that are late are waited for up to ``stall_s``. Sums are added in the order of ranks.
    """

    def __init__(self, rank: int, links: Mapping[int, socket.socket], stall_s: float) -> None:
        self._rank = rank
        self._world = len(links) + 1
        self._links = dict(links)
        self._stall_s = stall_s
        self._operations = 0
        self._running = threading.Lock()
        for link in self._links.values():
            link.setblocking(False)

    def gather(self, part: torch.Tensor) -> list[torch.Tensor]:
        """Return every member's ``part``, in the order of ranks."""
        sent = part.detach().cpu().contiguous()
        received = [torch.empty_like(sent) for _ in range(self._world)]
        received[self._rank] = sent
        self._exchange(dict.fromkeys(self._links, sent), received)
        return [tensor.to(part.device) for tensor in received]

    def add_up(self, part: torch.Tensor) -> None:
        """Replace ``part`` by the sum over all members."""
        # Each member adds up one piece, so that nobody sends more than twice the whole.
        whole = part.detach().cpu().contiguous()
        pieces = list(torch.tensor_split(whole.flatten(), self._world))
        own = pieces[self._rank]
        parts = [torch.empty_like(own) for _ in range(self._world)]
        parts[self._rank] = own
        self._exchange({rank: pieces[rank] for rank in self._links}, parts)
        total = torch.zeros_like(own)
        for piece in parts:
            total += piece
        pieces[self._rank] = total
        self._exchange(dict.fromkeys(self._links, total), pieces)
        part.copy_(torch.cat(pieces).view_as(part))

    def abort(self) -> None:
        """Close the links; an operation that is running in another thread fails."""
        for link in self._links.values():
            cut(link)
        # A link that is closed under a waiting selector would never wake it.
        with self._running:
            for link in self._links.values():
                link.close()

    def _exchange(self, sent: Mapping[int, torch.Tensor], received: list[torch.Tensor]) -> None:
        """Send one tensor to every other member and fill one from each, both at the same time."""
        self._operations += 1
        # The mark shows that both sides mean the same operation and the same size.
        marks = {rank: bytearray(_MARK_BYTES) for rank in self._links}
        outgoing = {
            rank: [memoryview(self._mark(tensor)), bytes_of(tensor)]
            for rank, tensor in sent.items()
        }
        incoming = {
            rank: [memoryview(marks[rank]), bytes_of(received[rank])] for rank in self._links
        }
        with self._running, selectors.DefaultSelector() as waiting:
            # An encrypted link may hold bytes already, of which the selector would not know.
            ready = list(self._links)
            while True:
                for rank in ready:
                    link = self._links[rank]
                    _advance(outgoing[rank], link.send)
                    _advance(incoming[rank], link.recv_into)
                    self._check(marks[rank], incoming[rank], received[rank])
                    _await(waiting, link, rank, outgoing=outgoing[rank], incoming=incoming[rank])
                if not waiting.get_map():
                    return
                ready = [key.data for key, _ in waiting.select(self._stall_s)]
                if not ready:
                    raise TimeoutError(f"no member has sent anything for {self._stall_s:g} s")

    def _check(self, mark: bytearray, left: list[memoryview], tensor: torch.Tensor) -> None:
        """Raise if the mark has come and is that of another operation."""
        if len(left) < 2 and bytes(mark) != self._mark(tensor):
            raise ConnectionError("a member is in another operation")

    def _mark(self, tensor: torch.Tensor) -> bytes:
        return self._operations.to_bytes(8, "big") + tensor.nbytes.to_bytes(8, "big")


class _Move(Protocol):
    def __call__(self, place: memoryview, /) -> int: ...


def _await(
    waiting: selectors.BaseSelector,
    link: socket.socket,
    rank: int,
    *,
    outgoing: list[memoryview],
    incoming: list[memoryview],
) -> None:
    """Wait for what the link still has to do."""
    left = (selectors.EVENT_READ if incoming else 0) | (selectors.EVENT_WRITE if outgoing else 0)
    known = waiting.get_map().get(link)
    if known is None:
        if left:
            waiting.register(link, left, rank)
    elif not left:
        waiting.unregister(link)
    elif left != known.events:
        waiting.modify(link, left, rank)


def _advance(pieces: list[memoryview], move: _Move) -> None:
    """Send or fill as much of the pieces as the link takes now."""
    while pieces:
        if len(pieces[0]):
            try:
                count = move(pieces[0][:_CHUNK_BYTES])
            except _NOT_YET:
                return
            except ssl.SSLEOFError:
                count = 0
            if not count:
                raise ConnectionError("a member has closed its connection")
            pieces[0] = pieces[0][count:]
        else:
            pieces.pop(0)


class NcclCollective:
    """Operations over NCCL, by torchft's group, which can abort an operation that hangs.

    Members meet through ``store``. NCCL's own connections are not encrypted; they are guarded by
    the random number that rank 0 hands out there.
    """

    def __init__(self, store: GroupStore, rank: int, world: int, operation_s: float) -> None:
        from torchft.process_group import ProcessGroupNCCL  # noqa: PLC0415

        os.environ.setdefault("TORCH_NCCL_NONBLOCKING_TIMEOUT", str(operation_s))
        self._world = world
        self._store = store
        self._group = ProcessGroupNCCL(timeout=timedelta(seconds=operation_s))
        # ``configure`` would connect to a TCP store, which anyone on the network can use.
        self._group._pg = self._group._create_pg(store, rank, world)  # noqa: SLF001

    def gather(self, part: torch.Tensor) -> list[torch.Tensor]:
        """Return every member's ``part``, in the order of ranks."""
        received = [torch.empty_like(part) for _ in range(self._world)]
        self._group.allgather([received], [part], AllgatherOptions()).wait()
        self._finish()
        return received

    def add_up(self, part: torch.Tensor) -> None:
        """Replace ``part`` by the sum over all members."""
        self._group.allreduce([part], AllreduceOptions()).wait()
        self._finish()

    def _finish(self) -> None:
        torch.cuda.current_stream().synchronize()
        if (error := self._group.errored()) is not None:
            raise error

    def abort(self) -> None:
        """Abort the running operation and close the connections."""
        self._group.abort()
        self._store.close()
