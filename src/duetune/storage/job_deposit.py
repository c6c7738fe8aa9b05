"""Puts what the nodes of a job need into its storage, when the job is launched."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from duetune.errors import InvalidInput
from duetune.storage.job_layout import (
    INPUT_PREFIX,
    INPUT_RECORD,
    INPUTS,
    SECRETS,
    TASK,
    WORKDIR,
    StoredFiles,
    files_below,
    total_size,
    uploaded,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from duetune.storage.storage_port import Storage

PLACES = ("model", "dataset", "eval_dataset")
"""The fields of a task that may name a file or folder."""
MOST_WORKDIR = 1 << 30
"""The most bytes of a folder in which a user's own command starts."""


def deposit(
    storage: Storage, folder: Path, workdir: Path | None = None, *, without: Iterable[Path] = ()
) -> None:
    """Put what the nodes of a job need into its storage. ``launch`` calls it.

    ``folder`` has ``task.json`` if duetune's trainer runs, and ``secrets.json`` if the job has
    secrets. A model or dataset that the task names by the path of a local file or folder is sent,
    and the task in the storage names it ``input:NAME``; names on the hub stay as they are. So do
    paths that only the nodes have. ``workdir`` is sent for a user's own command, except what is in
    ``without``.
    """
    inputs: dict[str, Path] = {}
    if workdir is not None:
        inputs |= _workdir(workdir, [each.resolve() for each in without])
    task = folder / TASK
    fields: dict[str, object] | None = None
    if task.is_file():
        fields = msgspec.json.decode(task.read_bytes(), type=dict[str, object])
        for name in PLACES:
            place = fields.get(name)
            if isinstance(place, str) and Path(place).is_absolute() and Path(place).exists():
                fields[name], found = _input(name, Path(place))
                inputs |= found
    sent = tuple(uploaded(storage, path, f"{INPUTS}/{name}") for name, path in inputs.items())
    storage.write(INPUT_RECORD, msgspec.json.encode(StoredFiles(INPUTS, sent)))
    if (secret := folder / SECRETS).is_file():
        storage.upload(secret, SECRETS)
    if fields is not None:
        storage.write(TASK, msgspec.json.encode(fields))


def forget_secrets(storage: Storage) -> None:
    """Delete the secrets of a job that is over."""
    storage.delete([SECRETS])


def _input(field: str, path: Path) -> tuple[str, dict[str, Path]]:
    """Return how the task names an input, and its files by their names below ``inputs``."""
    if path.is_dir():
        files = {f"{field}/{name}": file for name, file in files_below(path).items()}
        return f"{INPUT_PREFIX}{field}", files
    name = f"{field}/{path.name.lstrip('.')}"
    return f"{INPUT_PREFIX}{name}", {name: path}


def _workdir(folder: Path, without: list[Path]) -> dict[str, Path]:
    found = files_below(folder) if folder.is_dir() else {}
    # Not even opened: SQLite loses its locks on a database that its own process opens and closes.
    files = {
        name: path
        for name, path in found.items()
        if not any(path.resolve().is_relative_to(each) for each in without)
    }
    if total_size(files.values()) > MOST_WORKDIR:
        allowed = "a folder of at most 1 GiB, because it is sent to the nodes through the storage"
        raise InvalidInput("workdir", str(folder), allowed)
    return {f"{WORKDIR}/{name}": file for name, file in files.items()}
