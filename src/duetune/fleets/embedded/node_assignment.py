"""What a node runs: the assignment, the channel on which its agent gets it, and the GPU it sees.

The provider builds an ``Assignment`` from a ``Launch`` and sends it over a socket pair as one JSON
line. Only these two processes hold the ends of the pair, so each notices when the other dies.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from duetune.core import node_contract
from duetune.fleets.embedded.node_environment import inherited, storage_variables
from duetune.storage import place_below

if TYPE_CHECKING:
    import socket
    from collections.abc import Mapping, Sequence

    from duetune.core.fleet import Launch, Task

COORDINATOR = "duetune.training.coordinator"
SECRETS_FILE = "secrets.json"
VISIBLE = "CUDA_VISIBLE_DEVICES"


class Assignment(msgspec.Struct, frozen=True, tag="assignment"):
    """The first message to an agent: what to run, in which environment, and where its output goes.

    - ``module`` with ``arguments``, or ``command``: what to run.
    - ``heartbeat``: a file that the worker touches; a worker that stops doing so is killed.
    - ``tireless``: restart it whatever its exit status is, as for a coordinator.
    """

    name: str
    folder: str
    log: str
    environment: dict[str, str]
    module: str = ""
    arguments: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    heartbeat: str = ""
    heartbeat_timeout_s: float = 60.0
    tireless: bool = False


class Leave(msgspec.Struct, frozen=True, tag="leave"):
    """Ask the agent to end its worker and not to restart it."""


class Gone(msgspec.Struct, frozen=True, tag="gone"):
    """The worker has ended for good. A negative ``code`` is the signal that killed it."""

    code: int


Message = Assignment | Leave | Gone


class Channel:
    """One end of the socket pair between the provider and an agent."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self._rest = b""

    def fileno(self) -> int:
        """Return the socket's descriptor, for selectors."""
        return self.connection.fileno()

    def send(self, message: Message) -> bool:
        """Send a message; return whether the other end is still there."""
        try:
            self.connection.sendall(msgspec.json.encode(message) + b"\n")
        except OSError:
            return False
        return True

    def receive(self) -> list[Message] | None:
        """Wait for data and return the complete messages; None if the other end is gone."""
        try:
            chunk = self.connection.recv(65536)
        except OSError:
            return None
        if not chunk:
            return None
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        return [msgspec.json.decode(line, type=Message) for line in lines]

    def close(self) -> None:
        """Close this end."""
        with contextlib.suppress(OSError):
            self.connection.close()


def notice_file(launch: Launch) -> Path:
    """Return the file in which a worker reads when its node will be taken."""
    return Path(launch.task.folder) / f"notice-{launch.node}.json"


class JobSecrets(msgspec.Struct, frozen=True):
    """The secrets of one job: ``group`` for the doors of its members, ``calls`` for the provider's.

    Both are random to everyone but the provider, which derives them from its token.
    """

    group: str
    calls: str


def assignment_of(
    launch: Launch,
    *,
    url: str,
    secrets: JobSecrets,
    device: str | None,
    heartbeat_timeout_s: float,
) -> Assignment:
    """Return the assignment of a node."""
    task, folder = launch.task, Path(launch.task.folder)
    environment = {
        **inherited(os.environ),
        **storage_variables(task.storage, os.environ),
        **_checkpoint_url(task),
        "PYTHONUNBUFFERED": "1",
        node_contract.CHECKPOINT_DIR: str(folder / node_contract.CHECKPOINTS),
        node_contract.OUTPUT_DIR: str(folder / node_contract.OUTPUT),
        node_contract.PROGRESS_FILE: str(folder / node_contract.PROGRESS),
        node_contract.HAZARD_FILE: str(folder / node_contract.HAZARD),
        **({} if device is None else {VISIBLE: device}),
        **task.environment,
        **_own_secrets(folder),
        node_contract.JOB_ID: launch.job,
        node_contract.NODE_ID: launch.node,
        node_contract.EPOCH: str(launch.epoch),
        node_contract.GPUS: str(task.gpus),
        node_contract.JOB_DIR: str(folder),
        node_contract.NOTICE_FILE: str(notice_file(launch)),
        node_contract.NOTICE_URL: f"{url}/jobs/{launch.job}/notice/{launch.node}/{secrets.calls}",
    }
    if task.command:
        progress = f"{url}/jobs/{launch.job}/progress/{secrets.calls}"
        environment[node_contract.PROGRESS_URL] = progress
    if task.coordinated:
        environment[node_contract.COORDINATOR_FILE] = str(folder / node_contract.COORDINATOR)
        environment[node_contract.JOB_SECRET] = secrets.group
    return Assignment(
        name=launch.node,
        folder=str(folder),
        log=str(folder / node_contract.LOGS / f"{launch.node}.log"),
        environment=environment,
        module=task.module,
        command=task.command,
        heartbeat=str(folder / "heartbeats" / launch.node),
        heartbeat_timeout_s=heartbeat_timeout_s,
    )


def _checkpoint_url(task: Task) -> dict[str, str]:
    """Return where checkpoints are if not in a folder: in the storage, unless one is named."""
    if not task.storage or node_contract.CHECKPOINT_DIR in task.environment:
        return {}
    return {node_contract.CHECKPOINT_URL: place_below(task.storage, node_contract.CHECKPOINTS)}


def _own_secrets(folder: Path) -> dict[str, str]:
    """Read the job's secret variables. They are in this file only, not in journal or ledger."""
    try:
        return msgspec.json.decode((folder / SECRETS_FILE).read_bytes(), type=dict[str, str])
    except (OSError, msgspec.MsgspecError):
        return {}


def coordinator_of(
    launch: Launch, secrets: JobSecrets, *, file: Path | None = None, seats: str | None = None
) -> Assignment:
    """Return the assignment of the job's coordinator, which is always restarted.

    Its address is written to ``file``, by default in the job's folder. With ``seats``, the list at
    that path or URL says on which node it serves.
    """
    folder = Path(launch.task.folder)
    place = folder / node_contract.COORDINATOR if file is None else file
    checkpoints = launch.task.environment.get(node_contract.CHECKPOINT_DIR)
    return Assignment(
        name="coordinator",
        folder=str(folder),
        log=str(folder / node_contract.LOGS / "coordinator.log"),
        environment={
            **inherited(os.environ),
            **storage_variables(launch.task.storage, os.environ),
            **_checkpoint_url(launch.task),
            "PYTHONUNBUFFERED": "1",
            node_contract.JOB_DIR: str(folder),
            node_contract.CHECKPOINT_DIR: checkpoints or str(folder / node_contract.CHECKPOINTS),
            node_contract.JOB_SECRET: secrets.group,
        },
        module=COORDINATOR,
        arguments=(
            *("--address-file", str(place)),
            *(() if seats is None else ("--seats", seats)),
        ),
        tireless=True,
    )


def visible_devices(environ: Mapping[str, str], place: Path = Path("/dev")) -> list[str]:
    """Return the GPUs that the environment allows, or all GPUs of the machine if it names none."""
    if VISIBLE in environ:
        return [name.strip() for name in environ[VISIBLE].split(",") if name.strip()]
    names = [file.name.removeprefix("nvidia") for file in place.glob("nvidia[0-9]*")]
    return sorted((name for name in names if name.isdigit()), key=int)


class Devices:
    """Assigns GPUs of the machine to each node; extra nodes share GPUs evenly."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = list(names)
        self._taken: dict[tuple[str, str], list[str]] = {}

    def take(self, key: tuple[str, str], count: int = 1) -> str | None:
        """Return the GPUs with the fewest nodes for a new node; None if the machine has no GPU.

        A node gets fewer than ``count`` if the machine has fewer; its processes then share them.
        """
        if not self._names:
            return None
        users = [name for names in self._taken.values() for name in names]
        self._taken[key] = sorted(self._names, key=users.count)[:count]
        return ",".join(self._taken[key])

    def give_back(self, key: tuple[str, str]) -> None:
        """Free the GPU of a node that has ended."""
        self._taken.pop(key, None)
