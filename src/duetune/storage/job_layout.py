"""The names of a job's files in its storage, and the records of sets of files.

Layout below the job's URL:

    task.json, secrets.json, inputs.json, inputs/...   what a node needs; written by ``launch``
    lease.json, hazard.json                            what the controller tells all nodes
    nodes/NODE/order.json                              what a node runs; gone if it is withdrawn
    nodes/NODE/report.json, progress.json              what a node says; only this node writes there
    nodes/NODE/metrics.jsonl/000000                    files that grow, in parts of 1 MiB
    nodes/NODE/logs/NAME.log/000000
    coordinators/000001                                which nodes have run the coordinator
    outputs/NODE-TOKEN/..., output.json                results, and which one of them counts
    checkpoints/...                                    see ``duetune.training.object_checkpoints``

``deposit`` writes the first line, ``JobMirror`` is the node's side and ``JobCopy`` that of the
controller. Two nodes never write the same name, except ``output.json``, which is created once.
"""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import TYPE_CHECKING

import msgspec

from duetune.errors import StorageError
from duetune.files import make_folder

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from duetune.storage.storage_port import Storage

# The names are those that the training process uses in the job's folder.
TASK, SECRETS, METRICS, RESULT = "task.json", "secrets.json", "metrics.jsonl", "duetune.json"
NODES, OUTPUTS, WINNER = "nodes", "outputs", "output.json"
INPUTS, INPUT_RECORD = "inputs", "inputs.json"
INPUT_PREFIX = "input:"
"""A text in ``task.json`` that begins so is the name of a file or folder below ``inputs``."""
WORKDIR = "workdir"
"""The folder below ``inputs`` in which a user's own command starts."""
PART_BYTES = 1 << 20


class StoredFile(msgspec.Struct, frozen=True):
    """One file of a set; ``path`` is relative, with '/' as separator."""

    path: str
    size: int
    sha256: str


class StoredFiles(msgspec.Struct, frozen=True):
    """A set of files and the folder of the storage that holds it, as in ``output.json``."""

    folder: str
    files: tuple[StoredFile, ...]


def read_record(storage: Storage, name: str) -> StoredFiles | None:
    """Return the record ``output.json`` or ``inputs.json``; None if there is none."""
    content = storage.read(name)
    return None if content is None else msgspec.json.decode(content, type=StoredFiles)


def uploaded(storage: Storage, path: Path, name: str) -> StoredFile:
    """Send a local file, and return its record with ``name`` as path."""
    return StoredFile(name, path.stat().st_size, storage.upload(path, name))


def files_below(folder: Path) -> dict[str, Path]:
    """Return all files below a folder by their relative names; names with a dot are left out."""
    found = {path.relative_to(folder): path for path in sorted(folder.rglob("*"))}
    return {
        name.as_posix(): path
        for name, path in found.items()
        if not any(part.startswith(".") for part in name.parts) and path.is_file()
    }


def fetch_file(storage: Storage, stored: str, path: Path, file: StoredFile) -> None:
    """Download a file of a set; ``StorageError`` if it is missing or not the one that was sent."""
    make_folder(path.parent)
    if storage.download(stored, path) != file.sha256:
        path.unlink(missing_ok=True)
        raise StorageError(storage.url, f"{stored} is missing or damaged", retry=True)


def fetch_output(storage: Storage, folder: Path) -> bool:
    """Download the job's result into ``folder``; False if there is none yet.

    Every file is compared with its hash. ``StorageError`` if one is missing or differs.
    """
    if (found := read_record(storage, WINNER)) is None:
        return False
    make_folder(folder)
    for file in found.files:
        fetch_file(storage, f"{found.folder}/{file.path}", folder / file.path, file)
    return True


def is_part(stored: str, name: str) -> bool:
    """Return whether a stored name is that of a file or of one of its parts."""
    return stored == name or PurePosixPath(stored).parent == PurePosixPath(name)


def reported(storage: Storage, name: str) -> dict[str, bytes]:
    """Return what every node has reported under a name (``progress.json``, ``metrics.jsonl``,
    ``logs/NODE.log``), by node.
    """
    found: dict[str, bytes] = {}
    for stored in sorted(storage.sizes(NODES)):
        _, node, rest = stored.split("/", 2)
        if is_part(rest, name):
            found[node] = found.get(node, b"") + (storage.read(stored) or b"")
    return found


def total_size(files: Iterable[Path]) -> int:
    """Return the bytes of local files."""
    return sum(path.stat().st_size for path in files)
