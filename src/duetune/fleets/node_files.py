"""The files through which a fleet and the nodes' own processes talk.

They are in the job's folder, or in its storage if nodes do not see that folder.
``nodes/NAME/order.json`` says what the node runs, ``nodes/NAME/report.json`` how it goes, and
``lease.json`` until when the job's nodes may run. ``engine_fleet`` writes the first and the last,
``remote_node`` the second. Orders hold the secret of the job's group: only the owner may read them.
"""

from __future__ import annotations

import contextlib
import hmac
import re
import time
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from duetune.core.fleet import Launch
from duetune.core.node_contract import LOGS
from duetune.errors import DuetuneError, FleetError, InvalidInput
from duetune.files import make_folder
from duetune.fleets.driver import NodeOrder
from duetune.fleets.job_copies import JobCopies
from duetune.storage import is_url, open_storage, place_below
from duetune.storage.job_copy import REPORT
from duetune.storage.job_layout import NODES
from duetune.wall_clock import wall_now

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from duetune.storage import Storage

LEASE = "lease.json"
ORDER = "order.json"
EXCHANGE_S = 10.0
"""Seconds between two exchanges of a node with the storage, unless slots are short."""
RETRY_S = 5.0
"""Seconds for which the controller waits for the storage; it has other jobs to look after."""
AWAY_S = 30.0
"""Seconds for which a storage that did not answer is not asked again."""
_RENEW_S = 60.0  # a lease that would be longer by less is not written again
_ORDER_PLACE = re.compile(rf"(?P<place>.+)/{NODES}/(?P<name>[^/]+)/{re.escape(ORDER)}")


class NodeWork(msgspec.Struct, frozen=True, kw_only=True):
    """What a node runs: the launch, its name in the engine, and the secret of the job's group.

    ``every_s``: seconds between two exchanges with the storage.
    """

    launch: Launch
    name: str
    secret: str
    every_s: float = EXCHANGE_S


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


class StorageFiles:
    """The ``NodeFiles`` of all engines, for jobs in a shared folder and for jobs in storage.

    - ``agent``: the command that runs a node; the path or URL of its order is added to it.
    - ``token``: the fleet's secret, from which those of the jobs are derived.
    - ``every_s``: seconds between two exchanges of a node with the storage.
    """

    def __init__(self, agent: Sequence[str], token: bytes, *, every_s: float = EXCHANGE_S) -> None:
        self._agent = tuple(agent)
        self._token = token
        self._every_s = every_s
        self._copies = JobCopies(every_s)
        self._storages: dict[str, Storage] = {}
        self._leases: dict[str, float] = {}
        self._withdrawn: set[str] = set()
        self._away: dict[str, float] = {}

    def order(self, launch: Launch, name: str, withdraw_at: float) -> NodeOrder:
        """Write the order of a node, and return the order for the driver."""
        place = place_of(launch)
        work = NodeWork(
            launch=launch, name=name, secret=self._secret(launch.job), every_s=self._every_s
        )
        try:
            with self._asked(place) as storage:
                if not launch.task.storage:
                    make_folder(Path(launch.task.folder) / LOGS)
                storage.write(f"{NODES}/{name}/{ORDER}", msgspec.json.encode(work))
        except (DuetuneError, OSError) as error:
            raise FleetError(f"cannot write the order of {name}: {error}", retry=True) from None
        folder = f"{launch.task.folder}/{LOGS}/{launch.node}.engine"
        return NodeOrder(
            name=name,
            job=launch.job,
            kind=launch.kind,
            command=(*self._agent, order_place(place, name)),
            gpus=launch.task.gpus,
            # A node without the job's folder keeps the output of its own process.
            log=f"/tmp/{name}.log" if launch.task.storage else f"{folder}.log",  # noqa: S108
            withdraw_at=withdraw_at,
            priority=launch.priority,
            max_price=launch.max_price,
        )

    def report(self, launch: Launch, name: str) -> NodeReport | None:
        """Return the last report of a node; None if there is none that can be read."""
        content = None
        if launch.task.storage:
            content = self._copies.of(launch).report(name)
        else:
            with contextlib.suppress(OSError), self._asked(place_of(launch)) as storage:
                content = storage.read(f"{NODES}/{name}/{REPORT}")
        with contextlib.suppress(msgspec.MsgspecError):
            return None if content is None else msgspec.json.decode(content, type=NodeReport)
        return None

    def settled(self, launch: Launch, name: str) -> bool:
        """Return whether all that an ended node had to say has arrived."""
        return not launch.task.storage or self._copies.of(launch).settled(name)

    def withdraw(self, launch: Launch, name: str) -> None:
        """Remove the order of a node. If that fails, the engine still stops the node."""
        if name not in self._withdrawn:
            with contextlib.suppress(OSError), self._asked(place_of(launch)) as storage:
                storage.delete([f"{NODES}/{name}/{ORDER}"])
                self._withdrawn.add(name)
        if launch.task.storage:
            self._copies.of(launch)

    def lease(self, launch: Launch, until: float) -> None:
        """Write the lease of a job, if it has changed much. If that fails, the last one counts."""
        last = self._leases.get(launch.job, float("-inf"))
        if -1.0 <= until - last < min(_RENEW_S, (until - wall_now()) / 20):
            return
        with contextlib.suppress(OSError), self._asked(place_of(launch)) as storage:
            storage.write(LEASE, msgspec.json.encode(Lease(until)))
            self._leases[launch.job] = until

    @contextlib.contextmanager
    def _asked(self, place: str) -> Iterator[Storage]:
        """Yield a storage; after a failure, refuse for a while instead of waiting again."""
        if time.monotonic() < self._away.get(place, 0.0):
            raise OSError(f"the storage {place} has just failed")
        if place not in self._storages:
            self._storages[place] = open_storage(place, retry_s=RETRY_S)
        try:
            yield self._storages[place]
        except OSError:
            if is_url(place):
                self._away[place] = time.monotonic() + AWAY_S
            raise

    def _secret(self, job: str) -> str:
        """Return the secret of a job's group, which nobody can tell from that of another job."""
        return hmac.digest(self._token, f"group {job}".encode(), "sha256").hex()


def place_of(launch: Launch) -> str:
    """Return the path or URL of the files of a node's job."""
    return launch.task.storage or launch.task.folder


def order_place(place: str, name: str) -> str:
    """Return the path or URL of a node's order; ``place`` is that of the job's files."""
    return place_below(place, f"{NODES}/{name}/{ORDER}")


def parted_order(order: str) -> tuple[str, str]:
    """Return the place of the job's files and the node's name from the place of its order."""
    bare, mark, options = order.partition("?") if is_url(order) else (order, "", "")
    found = _ORDER_PLACE.fullmatch(bare)
    if found is None:
        raise InvalidInput("ORDER", order, f"an order that a fleet has written, .../{ORDER}")
    return f"{found['place']}{mark}{options}", found["name"]
