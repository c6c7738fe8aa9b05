"""Connections among the members of a group: NCCL if each has its own GPU, otherwise gloo.

A connection never outlives a change of members. After any failure it is closed, and a new one is
made under another name, which takes about 10 ms. Who the members are is decided in ``membership``.
"""

from __future__ import annotations

import os
import socket
from datetime import timedelta
from typing import TYPE_CHECKING, Protocol, cast

import torch
from torch._C._distributed_c10d import (
    AllgatherOptions,
    AllreduceOptions,
    PrefixStore,
    ProcessGroupGloo,
    TCPStore,
)

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store


class Collective(Protocol):
    """Operations over all members. They block until done and raise the library's own errors."""

    def gather(self, part: torch.Tensor) -> list[torch.Tensor]:
        """Return every member's ``part``, in the order of ranks."""

    def add_up(self, part: torch.Tensor) -> None:
        """Replace ``part`` by the sum over all members."""

    def abort(self) -> None:
        """Close the connections, also while an operation is running."""


class Rendezvous:
    """The store through which members connect. Every member has one; that of rank 0 is used."""

    def __init__(self, bind: str) -> None:
        # Only a socket opened here restricts the store to one network interface.
        listener = socket.create_server((bind, 0), backlog=1024)
        port = listener.getsockname()[1]
        fd = listener.detach()
        self._store = TCPStore(
            bind, port, is_master=True, wait_for_workers=False, master_listen_fd=fd
        )
        self.address = f"{bind}:{port}"


def device_name(device: torch.device) -> str:
    """Return a name of the GPU that is the same in every process; "" for a CPU."""
    if device.type != "cuda":
        return ""
    return f"cuda:{torch.cuda.get_device_properties(device).uuid}"


def connect(
    *,
    nccl: bool,
    store: str,
    group: str,
    rank: int,
    world: int,
    bind: str,
    connect_s: float,
    operation_s: float,
) -> Collective:
    """Connect to the other members of ``group``; raise if one is missing after ``connect_s``."""
    if nccl:
        return NcclCollective(store, group, rank, world, operation_s)
    host, _, port = store.rpartition(":")
    limit = timedelta(seconds=connect_s)
    shared = TCPStore(host, int(port), is_master=False, wait_for_workers=False, timeout=limit)
    return GlooCollective(PrefixStore(group, shared), rank, world, bind, connect_s, operation_s)


class _Work(Protocol):
    def wait(self) -> bool: ...


class _ProcessGroup(Protocol):
    """The part of a process group that is used here; torch's type stubs omit it."""

    def allgather(
        self, output: list[list[torch.Tensor]], part: list[torch.Tensor], options: AllgatherOptions
    ) -> _Work: ...

    def allreduce(self, parts: list[torch.Tensor], options: AllreduceOptions) -> _Work: ...

    def _set_default_timeout(self, timeout: timedelta) -> None: ...


class GlooCollective:
    """Operations over gloo, on the CPU.

    Gloo cannot abort an operation: it ends by timeout or when a peer closes. If none is running,
    ``abort`` closes the connections, and the other members notice that at once.
    """

    def __init__(
        self, store: Store, rank: int, world: int, bind: str, connect_s: float, operation_s: float
    ) -> None:
        # torch offers these options only under names with underscores.
        options = ProcessGroupGloo._Options()  # type: ignore[attr-defined]  # noqa: SLF001
        options._devices = [ProcessGroupGloo.create_device(hostname=bind)]  # noqa: SLF001
        options._threads = 1  # noqa: SLF001
        options._timeout = timedelta(seconds=connect_s)  # noqa: SLF001
        self._world = world
        group = cast("_ProcessGroup", ProcessGroupGloo(store, rank, world, options))
        group._set_default_timeout(timedelta(seconds=operation_s))  # noqa: SLF001
        # The only lasting reference: without it the connections close.
        self._group: _ProcessGroup | None = group

    def gather(self, part: torch.Tensor) -> list[torch.Tensor]:
        """Return every member's ``part``, in the order of ranks."""
        sent = part.cpu()
        received = [torch.empty_like(sent) for _ in range(self._world)]
        self._open.allgather([received], [sent], AllgatherOptions()).wait()
        return [tensor.to(part.device) for tensor in received]

    def add_up(self, part: torch.Tensor) -> None:
        """Replace ``part`` by the sum over all members."""
        sent = part.cpu()
        self._open.allreduce([sent], AllreduceOptions()).wait()
        part.copy_(sent)

    def abort(self) -> None:
        """Close the connections as soon as no operation is running."""
        self._group = None

    @property
    def _open(self) -> _ProcessGroup:
        if self._group is None:
            raise ConnectionAbortedError("the connections are closed")
        return self._group


class NcclCollective:
    """Operations over NCCL, by torchft's group, which can abort an operation that hangs."""

    def __init__(self, store: str, group: str, rank: int, world: int, operation_s: float) -> None:
        from torchft.process_group import ProcessGroupNCCL  # noqa: PLC0415

        os.environ.setdefault("TORCH_NCCL_NONBLOCKING_TIMEOUT", str(operation_s))
        self._world = world
        self._group = ProcessGroupNCCL(timeout=timedelta(seconds=operation_s))
        self._group.configure(f"{store}/{group}", f"{rank}", rank, world)

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
