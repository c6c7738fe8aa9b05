"""The files through which a fleet and the nodes' own processes talk, in the job's folder.

``nodes/NAME.order.json`` says what the node runs, ``nodes/NAME.report.json`` how it goes, and
``lease.json`` until when the job's nodes may run. ``engine_fleet`` writes the first and the last,
``remote_node`` the second. Orders hold the secret of the job's group, so only the owner reads them.
"""

from __future__ import annotations

import contextlib
import hmac
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from duetune.core.fleet import Launch
from duetune.core.node_contract import LOGS
from duetune.errors import FleetError
from duetune.files import OWNER, make_folder, write_whole
from duetune.fleets.driver import NodeOrder

if TYPE_CHECKING:
    from collections.abc import Sequence

NODES = "nodes"
LEASE = "lease.json"


class NodeWork(msgspec.Struct, frozen=True, kw_only=True):
    """What a node runs: the launch, its name in the engine, and the secret of the job's group."""

    launch: Launch
    name: str
    secret: str


class NodeReport(msgspec.Struct, frozen=True, kw_only=True):
    """What a node's process says about itself. Times are wall seconds since the epoch.

    - ``at``: when it was written; a living process writes one every few seconds.
    - ``notice_at``: when the node will be taken, as the engine told the process.
    - ``code``, ``ended_at``: the exit status of the node's work, and when it ended.
    - ``limited``: it left because its lease was over.
    """

    at: float
    started_at: float
    host: str = ""
    notice_at: float | None = None
    code: int | None = None
    ended_at: float | None = None
    limited: bool = False


class Lease(msgspec.Struct, frozen=True):
    """Until when the nodes of a job may run, in wall seconds since the epoch."""

    until: float


class FolderFiles:
    """The ``NodeFiles`` of fleets whose nodes see the job's folder at the same path.

    - ``agent``: the command that runs a node; the path of its order is added to it.
    - ``token``: the fleet's secret, from which those of the jobs are derived.
    """

    def __init__(self, agent: Sequence[str], token: bytes) -> None:
        self._agent = tuple(agent)
        self._token = token

    def order(self, launch: Launch, name: str, withdraw_at: float) -> NodeOrder:
        """Write the order file of a node, and return the order for the driver."""
        folder = Path(launch.task.folder)
        path = order_file(folder, name)
        try:
            for place in (folder / NODES, folder / LOGS):
                make_folder(place)
            work = NodeWork(launch=launch, name=name, secret=self._secret(launch.job))
            write_whole(path, msgspec.json.encode(work), durable=True, mode=OWNER)
        except OSError as error:
            raise FleetError(f"cannot write {path}: {error.strerror}", retry=True) from None
        return NodeOrder(
            name=name,
            job=launch.job,
            kind=launch.kind,
            command=(*self._agent, str(path)),
            gpus=launch.task.gpus,
            log=str(folder / LOGS / f"{launch.node}.engine.log"),
            withdraw_at=withdraw_at,
            priority=launch.priority,
            max_price=launch.max_price,
        )

    def report(self, launch: Launch, name: str) -> NodeReport | None:
        """Return the last report of a node; None if there is none that can be read."""
        with contextlib.suppress(OSError, msgspec.MsgspecError):
            content = report_file(Path(launch.task.folder), name).read_bytes()
            return msgspec.json.decode(content, type=NodeReport)
        return None

    def withdraw(self, launch: Launch, name: str) -> None:
        """Remove the order file of a node. If that fails, the engine still stops the node."""
        with contextlib.suppress(OSError):
            order_file(Path(launch.task.folder), name).unlink(missing_ok=True)

    def lease(self, launch: Launch, until: float) -> None:
        """Write the lease of a job. If that fails, the last one counts."""
        with contextlib.suppress(OSError):
            path = Path(launch.task.folder) / LEASE
            write_whole(path, msgspec.json.encode(Lease(until)), mode=OWNER)

    def _secret(self, job: str) -> str:
        """Return the secret of a job's group, which nobody can tell from that of another job."""
        return hmac.digest(self._token, f"group {job}".encode(), "sha256").hex()


def order_file(folder: Path, name: str) -> Path:
    """Return the order file of a node."""
    return folder / NODES / f"{name}.order.json"


def report_file(folder: Path, name: str) -> Path:
    """Return the report file of a node."""
    return folder / NODES / f"{name}.report.json"
