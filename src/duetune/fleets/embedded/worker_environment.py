"""What a worker finds in its environment: the contract between a node and what it runs."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from duetune.core import node_contract
from duetune.fleets.embedded.channel import Assignment
from duetune.fleets.embedded.devices import VISIBLE

if TYPE_CHECKING:
    from duetune.core.fleet import Launch

COORDINATOR = "duetune.training.coordinator"
SECRETS_FILE = "secrets.json"


def notice_file(launch: Launch) -> Path:
    return Path(launch.task.folder) / f"notice-{launch.node}.json"


def assignment_of(
    launch: Launch,
    *,
    url: str,
    secret: str,
    lighthouse: str,
    device: str | None,
    heartbeat_timeout_s: float,
) -> Assignment:
    """What the agent of this node is told. ``secret`` opens the job's address for progress."""
    task, folder = launch.task, Path(launch.task.folder)
    environment = {
        **os.environ,
        "PYTHONUNBUFFERED": "1",
        node_contract.CHECKPOINT_DIR: str(folder / node_contract.CHECKPOINTS),
        node_contract.OUTPUT_DIR: str(folder / node_contract.OUTPUT),
        node_contract.PROGRESS_FILE: str(folder / node_contract.PROGRESS),
        node_contract.HAZARD_FILE: str(folder / node_contract.HAZARD),
        **({} if device is None else {VISIBLE: device}),
        **task.environment,
        **_secrets(folder),
        node_contract.JOB_ID: launch.job,
        node_contract.NODE_ID: launch.node,
        node_contract.EPOCH: str(launch.epoch),
        node_contract.JOB_DIR: str(folder),
        node_contract.NOTICE_FILE: str(notice_file(launch)),
        node_contract.NOTICE_URL: f"{url}/nodes/{launch.node}/notice",
    }
    if task.command:
        environment[node_contract.PROGRESS_URL] = f"{url}/jobs/{launch.job}/progress/{secret}"
    if lighthouse:
        environment[node_contract.LIGHTHOUSE] = lighthouse
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


def _secrets(folder: Path) -> dict[str, str]:
    """Values that are in no journal and no ledger: only in a file beside the job."""
    try:
        return msgspec.json.decode((folder / SECRETS_FILE).read_bytes(), type=dict[str, str])
    except (OSError, msgspec.MsgspecError):
        return {}


def coordinator_of(launch: Launch, port: int) -> Assignment:
    """The coordinator of the node's job. It is started again on the same port when it dies."""
    folder = Path(launch.task.folder)
    return Assignment(
        name="coordinator",
        folder=str(folder),
        log=str(folder / node_contract.LOGS / "coordinator.log"),
        environment={**os.environ, **launch.task.environment, "PYTHONUNBUFFERED": "1"},
        module=COORDINATOR,
        arguments=(
            "--port-file",
            str(folder / "coordinator.port"),
            "--bind",
            f"127.0.0.1:{port}",
        ),
        tireless=True,
    )
