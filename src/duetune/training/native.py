"""The compiled part of torchft, without the rest of it.

Importing torchft imports torch, which takes seconds and hundreds of megabytes that a coordinator
has no use for; members wait for it when it is started again.
"""

from __future__ import annotations

import functools
import importlib.machinery
import importlib.util
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from duetune.errors import MissingExtra

if TYPE_CHECKING:
    from datetime import timedelta
    from types import ModuleType
    from typing import Protocol

    class Participant(Protocol):
        data: dict[str, object]

    class Quorum(Protocol):
        participants: list[Participant]

    class LighthouseClient(Protocol):
        def quorum(
            self,
            replica_id: str,
            timeout: timedelta,
            *,
            address: str,
            store_address: str,
            step: int,
            world_size: int,
            data: dict[str, object],
        ) -> Quorum: ...

        def heartbeat(self, replica_id: str, timeout: timedelta) -> None: ...

    class LighthouseServer(Protocol):
        def address(self) -> str: ...

        def shutdown(self) -> None: ...


_NAME = "torchft._torchft"


def lighthouse_client(address: str, connect_timeout: timedelta) -> LighthouseClient:
    client: LighthouseClient = _native().LighthouseClient(address, connect_timeout)
    return client


def lighthouse_server(
    bind: str, *, heartbeat_timeout_ms: int, join_timeout_ms: int, tick_ms: int
) -> LighthouseServer:
    """One member is enough for a quorum: a job goes on with whoever is left."""
    server: LighthouseServer = _native().LighthouseServer(
        bind=bind,
        min_replicas=1,
        join_timeout_ms=join_timeout_ms,
        quorum_tick_ms=tick_ms,
        heartbeat_timeout_ms=heartbeat_timeout_ms,
    )
    return server


@functools.cache
def _native() -> ModuleType:
    # Read when it is loaded; it would tell of every step.
    os.environ.setdefault("RUST_LOG", "error")
    if _NAME in sys.modules:
        return sys.modules[_NAME]
    found = importlib.util.find_spec("torchft")
    for folder in (found.submodule_search_locations or ()) if found is not None else ():
        for suffix in importlib.machinery.EXTENSION_SUFFIXES:
            file = Path(folder) / f"_torchft{suffix}"
            spec = importlib.util.spec_from_file_location(_NAME, file)
            if file.exists() and spec is not None and spec.loader is not None:
                module = importlib.util.module_from_spec(spec)
                spec.loader.exec_module(module)
                # It cannot be loaded twice: what imports all of torchft later finds it here.
                sys.modules[_NAME] = module
                return module
    raise MissingExtra("training in a group", "train")
