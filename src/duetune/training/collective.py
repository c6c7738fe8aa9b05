"""Connections among the members of one formation: NCCL between GPUs, one for each; else gloo.

They never outlive a change of members: after any failure they are abandoned and made anew under
another name, which costs some ten milliseconds.
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
    """Both verbs block until done and raise whatever the library raises."""

    def gather(self, part: torch.Tensor) -> list[torch.Tensor]: ...

    def add_up(self, part: torch.Tensor) -> None: ...

    def abort(self) -> None: ...


class Rendezvous:
    """Where members of a formation find each other: every member keeps one, the first one's is
    used."""

    def __init__(self, bind: str) -> None:
        # Listening on a socket of our own is the only way to keep it off the other interfaces.
        listener = socket.create_server((bind, 0), backlog=1024)
        port = listener.getsockname()[1]
        self._store = TCPStore(
            bind,
            port,
            is_master=True,
            wait_for_workers=False,
            master_listen_fd=listener.detach(),
        )
        self.address = f"{bind}:{port}"


def device_name(device: torch.device) -> str:
    """Which accelerator this is, the same in every process; "" for the processor."""
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
    """Meet the others of ``group``; raises if not all come within ``connect_s``."""
    if nccl:
        return NcclCollective(store, group, rank, world, operation_s)
    host, _, port = store.rpartition(":")
    meeting = TCPStore(
        host,
        int(port),
        is_master=False,
        wait_for_workers=False,
        timeout=timedelta(seconds=connect_s),
    )
    return GlooCollective(PrefixStore(group, meeting), rank, world, bind, connect_s, operation_s)


class _Work(Protocol):
    def wait(self) -> bool: ...


class _ProcessGroup(Protocol):
    """What is used of a process group; torch's own description leaves it out."""

    def allgather(
        self,
        output: list[list[torch.Tensor]],
        part: list[torch.Tensor],
        options: AllgatherOptions,
    ) -> _Work: ...

    def allreduce(self, parts: list[torch.Tensor], options: AllreduceOptions) -> _Work: ...

    def _set_default_timeout(self, timeout: timedelta) -> None: ...


class GlooCollective:
    """Gloo cannot abort: what is under way ends by its timeout or when a peer goes. Without such,
    ``abort`` closes the connections, which the others notice at once."""

    def __init__(
        self,
        store: Store,
        rank: int,
        world: int,
        bind: str,
        connect_s: float,
        operation_s: float,
    ) -> None:
        # torch names these options with underscores; there are no others.
        options = ProcessGroupGloo._Options()  # type: ignore[attr-defined]  # noqa: SLF001
        options._devices = [ProcessGroupGloo.create_device(hostname=bind)]  # noqa: SLF001
        options._threads = 1  # noqa: SLF001
        options._timeout = timedelta(seconds=connect_s)  # noqa: SLF001
        self._world = world
        made = ProcessGroupGloo(store, rank, world, options)
        group = cast("_ProcessGroup", made)
        group._set_default_timeout(timedelta(seconds=operation_s))  # noqa: SLF001
        # The only lasting reference: without it the connections close.
        self._group: _ProcessGroup | None = group

    def gather(self, part: torch.Tensor) -> list[torch.Tensor]:
        sent = part.cpu()
        found = [torch.empty_like(sent) for _ in range(self._world)]
        self._open.allgather([found], [sent], AllgatherOptions()).wait()
        return [each.to(part.device) for each in found]

    def add_up(self, part: torch.Tensor) -> None:
        sent = part.cpu()
        self._open.allreduce([sent], AllreduceOptions()).wait()
        part.copy_(sent)

    def abort(self) -> None:
        self._group = None

    @property
    def _open(self) -> _ProcessGroup:
        if self._group is None:
            raise ConnectionAbortedError("the connections were given up")
        return self._group


class NcclCollective:
    """By torchft's group, which aborts what hangs instead of ending the process."""

    def __init__(self, store: str, group: str, rank: int, world: int, operation_s: float) -> None:
        from torchft.process_group import ProcessGroupNCCL  # noqa: PLC0415

        os.environ.setdefault("TORCH_NCCL_NONBLOCKING_TIMEOUT", str(operation_s))
        self._world = world
        self._group = ProcessGroupNCCL(timeout=timedelta(seconds=operation_s))
        self._group.configure(f"{store}/{group}", f"{rank}", rank, world)

    def gather(self, part: torch.Tensor) -> list[torch.Tensor]:
        found = [torch.empty_like(part) for _ in range(self._world)]
        self._group.allgather([found], [part], AllgatherOptions()).wait()
        self._finish()
        return found

    def add_up(self, part: torch.Tensor) -> None:
        self._group.allreduce([part], AllreduceOptions()).wait()
        self._finish()

    def _finish(self) -> None:
        torch.cuda.current_stream().synchronize()
        if (error := self._group.errored()) is not None:
            raise error

    def abort(self) -> None:
        self._group.abort()
