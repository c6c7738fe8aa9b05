"""A node's local copy of a job whose files are in storage, not in a shared folder.

Layout below the job's URL:

    task.json, secrets.json, inputs/...      what a node needs; written when the job is launched
    nodes/NODE/progress.json                 what a node reports; only this node writes there
    nodes/NODE/metrics.jsonl/000000          files that grow, in parts of 1 MiB
    nodes/NODE/logs/NODE.log/000000
    outputs/NODE-TOKEN/...                   results; the one that ``output.json`` names counts
    checkpoints/...                          see ``duetune.training.object_checkpoints``

Two nodes never write the same name, except ``output.json``, which is created once.
"""

from __future__ import annotations

import hashlib
import logging
import secrets
import threading
import time
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

import msgspec

from duetune.core.node_contract import LOGS, OUTPUT, PROGRESS
from duetune.errors import DuetuneError, StorageError
from duetune.files import OWNER, make_folder, write_whole

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from duetune.storage.storage_port import Storage

_log = logging.getLogger(__name__)

# The names are those that the training process uses in the job's folder.
TASK, SECRETS, METRICS, RESULT = "task.json", "secrets.json", "metrics.jsonl", "duetune.json"
INPUTS = "inputs"
INPUT_PREFIX = "input:"
"""A text in ``task.json`` that begins so is the name of a file below ``inputs``."""
PART_BYTES = 1 << 20
_NODES, _OUTPUTS, _WINNER = "nodes", "outputs", "output.json"


class OutputFile(msgspec.Struct, frozen=True):
    """One file of a result; ``path`` is relative, with '/' as separator."""

    path: str
    size: int
    sha256: str


class StoredOutput(msgspec.Struct, frozen=True):
    """The file ``output.json``: which folder of the storage holds the result of the job."""

    folder: str
    files: tuple[OutputFile, ...]


def deposit(storage: Storage, folder: Path, inputs: Mapping[str, Path]) -> None:
    """Put what the nodes of a job need into its storage. Called when the job is launched.

    ``folder`` has ``task.json`` and, if the job has secrets, ``secrets.json``. ``inputs`` are local
    files such as datasets by their name below ``inputs``; the task names them ``input:NAME``.
    """
    for name, path in inputs.items():
        storage.upload(path, f"{INPUTS}/{name}")
    if (secret := folder / SECRETS).is_file():
        storage.upload(secret, SECRETS)
    # The task comes last: a node that finds it finds everything.
    storage.upload(folder / TASK, TASK)


def fetch_output(storage: Storage, folder: Path) -> bool:
    """Download the job's result into ``folder``; False if there is none yet.

    Every file is compared with its hash. ``StorageError`` if one is missing or differs.
    """
    if (found := _output(storage)) is None:
        return False
    for file in found.files:
        path, name = folder / file.path, f"{found.folder}/{file.path}"
        make_folder(path.parent)
        if storage.download(name, path) != file.sha256:
            path.unlink(missing_ok=True)
            raise StorageError(storage.url, f"{name} is missing or damaged", retry=True)
    return True


def reported(storage: Storage, name: str) -> dict[str, bytes]:
    """Return what every node has reported under a name (``progress.json``, ``metrics.jsonl``,
    ``logs/NODE.log``), by node.
    """
    found: dict[str, bytes] = {}
    for stored in sorted(storage.sizes(_NODES)):
        _, node, rest = stored.split("/", 2)
        if _of(rest, name):
            found[node] = found.get(node, b"") + (storage.read(stored) or b"")
    return found


class JobMirror:
    """The local folder of one job on one node. The agent of a node owns one per job.

        mirror = JobMirror(storage, folder, node)
        mirror.fetch()      # before the training process starts
        mirror.start()      # uploads reports in the background
        ...                 # the training process runs in ``folder``
        mirror.close()      # the last reports, and the result if there is one

    - ``folder``: the local scratch folder; it becomes the job's folder of the training process.
    - ``every_s``: the least number of seconds between two uploads.
    - ``warning``: why the last upload failed; "" if it succeeded.
    """

    def __init__(self, storage: Storage, folder: Path, node: str, *, every_s: float = 5.0) -> None:
        self._storage = storage
        self._folder = folder
        self._node = node
        self._every_s = every_s
        self._sent: dict[str, str] = {}
        self._seen: dict[Path, tuple[int, int]] = {}
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="mirror", daemon=True)
        self.warning = ""

    def fetch(self) -> None:
        """Download the task, the secrets and all inputs; files that are there are kept.

        Raises ``StorageError`` if there is no task or the storage cannot be reached. It may be
        called again.
        """
        make_folder(self._folder)
        for name, size in self._storage.sizes(INPUTS).items():
            path = self._folder / name
            if not path.is_file() or path.stat().st_size != size:
                make_folder(path.parent)
                self._storage.download(name, path)
        if (content := self._storage.read(SECRETS)) is not None:
            write_whole(self._folder / SECRETS, content, mode=OWNER)
        task = self._storage.read(TASK)
        if task is None:
            raise StorageError(self._storage.url, f"there is no {TASK}", retry=False)
        write_whole(self._folder / TASK, self._localised(task), mode=OWNER)
        self._fetch_result()

    def start(self) -> None:
        """Begin to upload reports in a background thread, one round every ``every_s`` seconds."""
        self._thread.start()

    def close(self) -> None:
        """Stop the thread, then upload the last reports and the result of the job, if any.

        Called after the training process has ended. ``StorageError`` if something is missing in
        the storage afterwards; it may then be called again.
        """
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join()
        self.sync()
        self._publish()

    def sync(self) -> None:
        """Upload what has changed since the last call, and look for a result of another node."""
        for path, grows in self._reports():
            try:
                found = path.stat()
                if self._seen.get(path) == (state := (found.st_mtime_ns, found.st_size)):
                    continue
                content = path.read_bytes()
            except FileNotFoundError:
                continue
            name = f"{_NODES}/{self._node}/{path.relative_to(self._folder).as_posix()}"
            self._send(name, dict(_parts(name, content) if grows else ((name, content),)))
            self._seen[path] = state
        self._fetch_result()

    def _run(self) -> None:
        while not self._stopped.wait(self._every_s):
            began = time.monotonic()
            try:
                self.sync()
            except (DuetuneError, OSError) as error:
                if not self.warning:
                    _log.warning("cannot upload reports: %s", error)
                self.warning = str(error)
            else:
                self.warning = ""
            # A slow storage is not asked more often than it can answer.
            self._stopped.wait(time.monotonic() - began)

    def _send(self, name: str, parts: Mapping[str, bytes]) -> None:
        """Write the parts of a file that have changed, and delete those that it no longer has."""
        for part, piece in parts.items():
            digest = hashlib.sha256(piece).hexdigest()
            if self._sent.get(part) != digest:
                self._storage.write(part, piece)
                self._sent[part] = digest
        if gone := [part for part in self._sent if _of(part, name) and part not in parts]:
            self._storage.delete(gone)
            for part in gone:
                del self._sent[part]

    def _reports(self) -> Iterator[tuple[Path, bool]]:
        """Yield the files that a node reports, and whether they grow."""
        yield self._folder / PROGRESS, False
        yield self._folder / METRICS, True
        for path in sorted((self._folder / LOGS).glob("*.log")):
            yield path, True

    def _localised(self, task: bytes) -> bytes:
        """Return the task with the paths of the local inputs."""
        values = msgspec.json.decode(task, type=dict[str, msgspec.Raw])
        for key, raw in values.items():
            text = msgspec.json.decode(raw)
            if isinstance(text, str) and text.startswith(INPUT_PREFIX):
                place = self._folder / INPUTS / text.removeprefix(INPUT_PREFIX)
                values[key] = msgspec.Raw(msgspec.json.encode(str(place)))
        return msgspec.json.encode(values)

    def _fetch_result(self) -> None:
        """Make a result that another node has published known to this node's training process."""
        marker = self._folder / OUTPUT / RESULT
        if not marker.exists() and (found := _output(self._storage)) is not None:
            make_folder(marker.parent)
            self._storage.download(f"{found.folder}/{RESULT}", marker)

    def _publish(self) -> None:
        """Upload the result of this node, unless another node has published one."""
        output = self._folder / OUTPUT
        if not (output / RESULT).is_file() or _output(self._storage) is not None:
            return
        folder = f"{_OUTPUTS}/{self._node}-{secrets.token_hex(4)}"
        names = {
            path.relative_to(output).as_posix(): path
            for path in sorted(output.rglob("*"))
            if path.is_file()
        }
        files = tuple(
            OutputFile(name, path.stat().st_size, self._storage.upload(path, f"{folder}/{name}"))
            for name, path in names.items()
        )
        record = StoredOutput(folder, files)
        created = self._storage.create(_WINNER, msgspec.json.encode(record))
        if not created and _output(self._storage) != record:
            self._storage.delete(f"{folder}/{name}" for name in names)


def _parts(name: str, content: bytes) -> Iterator[tuple[str, bytes]]:
    for number, begin in enumerate(range(0, len(content), PART_BYTES)):
        yield f"{name}/{number:06d}", content[begin : begin + PART_BYTES]


def _of(stored: str, name: str) -> bool:
    """Return whether a stored name is that of a file or of one of its parts."""
    return stored == name or PurePosixPath(stored).parent == PurePosixPath(name)


def _output(storage: Storage) -> StoredOutput | None:
    content = storage.read(_WINNER)
    return None if content is None else msgspec.json.decode(content, type=StoredOutput)
