"""The folder of a new job: its spec, its secrets and its task, and what its nodes run.

``submit`` writes it before the journal names the job.
"""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from duetune.core.fleet import Task
from duetune.core.node_contract import CHECKPOINT_DIR, CHECKPOINT_KEEP, JOB_DIR, LOGS
from duetune.files import OWNER, remove_tree, write_whole
from duetune.fleets.embedded.node_assignment import SECRETS_FILE
from duetune.jobs.training_settings import training_task
from duetune.storage import deposit, is_url, open_storage
from duetune.storage.job_layout import INPUTS, WORKDIR
from duetune.training.task import write_task

if TYPE_CHECKING:
    from collections.abc import Iterable

    from duetune.jobs.configure import TrainingPlan
    from duetune.jobs.spec.job_spec import JobSpec

TRAINER = "duetune.training.worker"
SPEC_FILE = "job.yaml"


def write_job_folder(
    folder: Path,
    spec: JobSpec,
    plan: TrainingPlan,
    *,
    storage: str,
    without: Iterable[Path] = (),
) -> Task:
    """Write all files of a new job, and return what each of its nodes runs.

    With a ``storage``, what the nodes need is put there, too; if that fails, there is no folder.
    ``without``: what is not sent, although it may be in the folder of the user's command.
    """
    folder.mkdir(parents=True, mode=0o700)
    (folder / LOGS).mkdir(mode=0o700)
    (folder / SPEC_FILE).write_text(spec.to_yaml(), "utf-8")
    _write_secrets(folder, spec)
    if spec.run is None:
        write_task(folder, training_task(spec, plan))
    if storage:
        _deposit(spec, folder, storage, without)
    return _node_task(spec, folder, storage, plan.gpus_per_member)


def _deposit(spec: JobSpec, folder: Path, place: str, without: Iterable[Path]) -> None:
    """Put what the nodes need into the job's storage; remove the job's folder if that fails."""
    # What earlier jobs have in the same storage is not sent either.
    storages = () if is_url(place) else (Path(place).parent,)
    try:
        workdir = None if spec.workdir is None else Path(spec.workdir)
        deposit(open_storage(place), folder, workdir, without=(*without, *storages))
    except BaseException:
        remove_tree(folder)
        raise


def _node_task(spec: JobSpec, folder: Path, storage: str, gpus: int) -> Task:
    """Return what each node of the job runs, with its environment."""
    environment = spec.environment(os.environ)
    if spec.checkpoint.dir is not None:
        # One folder per job, so that two jobs never read each other's checkpoints.
        environment[CHECKPOINT_DIR] = str(Path(spec.checkpoint.dir) / folder.name)
    environment[CHECKPOINT_KEEP] = str(spec.checkpoint.keep)
    if spec.run is None:
        return Task(
            folder=str(folder),
            module=TRAINER,
            environment=environment,
            coordinated=True,
            gpus=gpus,
            storage=storage,
        )
    start = f"cd {shlex.quote(spec.workdir)}\n" if spec.workdir else ""
    if storage:
        start = f'cd "${JOB_DIR}/{INPUTS}/{WORKDIR}"\n'
    # Without the trap, SIGTERM would end the shell before the command has reported its exit.
    script = f"set -e\ntrap : TERM\n{start}{spec.setup or ''}\n{spec.run}\n"
    return Task(
        folder=str(folder),
        command=("bash", "-c", script),
        environment=environment,
        coordinated=spec.has_members,
        gpus=gpus,
        storage=storage,
    )


def _write_secrets(folder: Path, spec: JobSpec) -> None:
    """Write the secrets beside the job, readable by the owner only. They are never in the journal
    or a log.
    """
    if not spec.secrets:
        return
    secrets = msgspec.json.encode({name: os.environ[name] for name in spec.secrets})
    write_whole(folder / SECRETS_FILE, secrets, mode=OWNER)
