"""A node's local copy of a job whose files are in storage, not in a shared folder.

``job_layout`` has the names in the storage. The controller's side is ``job_copy``.
"""

from __future__ import annotations

import hashlib
import secrets
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from duetune.core.node_contract import HAZARD, LOGS, OUTPUT, PROGRESS
from duetune.core.progress import Phase
from duetune.files import OWNER, make_folder, write_whole
from duetune.storage.job_layout import (
    INPUT_PREFIX,
    INPUT_RECORD,
    INPUTS,
    METRICS,
    NODES,
    OUTPUTS,
    PART_BYTES,
    RESULT,
    SECRETS,
    TASK,
    WINNER,
    WORKDIR,
    StoredFile,
    StoredFiles,
    fetch_file,
    files_below,
    is_part,
    read_record,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from duetune.storage.storage_port import Storage

HAZARD_S = 60.0
"""Seconds between two looks at the loss rate of nodes, which changes slowly."""
_DOWNLOADS = 4


class JobMirror:
    """The local folder of one job on one node. The process of a node owns one.

        mirror = JobMirror(storage, folder, node)
        mirror.fetch()            # before the training process starts
        mirror.sync()             # again and again while it runs in ``folder``
        mirror.close(done=True)   # after it has ended

    - ``folder``: the local scratch folder; it becomes the job's folder of the training process.
    - ``home``: the job's folder on the controller's machine. A progress report that says where the
      result is names that one.
    - ``part_bytes``: the size of the parts in which files that grow are sent.
    """

    def __init__(
        self,
        storage: Storage,
        folder: Path,
        node: str,
        *,
        home: str = "",
        part_bytes: int = PART_BYTES,
    ) -> None:
        self._storage = storage
        self._folder = folder
        self._node = node
        self._home = home
        self._part_bytes = part_bytes
        self._sent: dict[str, str] = {}
        self._seen: dict[Path, tuple[int, int]] = {}
        self._hazard_at = -HAZARD_S

    def fetch(self) -> None:
        """Download the task, the secrets and all inputs; files that are there are kept.

        Raises ``StorageError`` if the storage cannot be reached or an input is damaged. It may be
        called again.
        """
        for name in (LOGS, f"{INPUTS}/{WORKDIR}"):
            make_folder(self._folder / name)
        inputs = read_record(self._storage, INPUT_RECORD) or StoredFiles(INPUTS, ())
        with ThreadPoolExecutor(_DOWNLOADS) as pool:
            list(pool.map(self._fetch_input, inputs.files))
        if (content := self._storage.read(SECRETS)) is not None:
            write_whole(self._folder / SECRETS, content, mode=OWNER)
        if (task := self._storage.read(TASK)) is not None:
            write_whole(self._folder / TASK, self._localised(task), mode=OWNER)
        self._fetch_result()
        self._fetch_hazard()

    def sync(self) -> None:
        """Upload what has changed since the last call, and look for a result of another node.

        A report that training has finished comes last: who reads it finds the result.
        """
        for path in (self._folder / METRICS, *sorted((self._folder / LOGS).glob("*.log"))):
            self._upload(path)
        progress = self._folder / PROGRESS
        if (found := self._changed(progress)) is not None:
            state, content = found
            if _said(content).phase == Phase.FINISHED:
                self._publish()
            name = self._name(progress)
            self._send(name, {name: self._from_here(content)})
            self._seen[progress] = state
        self._fetch_result()
        self._fetch_hazard()

    def close(self, *, done: bool) -> None:
        """Upload the last reports and, if the work is ``done``, the result.

        Called after the training process has ended. ``StorageError`` if something is missing in
        the storage afterwards; it may then be called again.
        """
        if done or (self._folder / OUTPUT / RESULT).is_file():
            self._publish()
        self.sync()

    def _name(self, path: Path) -> str:
        return f"{NODES}/{self._node}/{path.relative_to(self._folder).as_posix()}"

    def _upload(self, path: Path) -> None:
        """Send the parts of a file that grows, as far as they have changed."""
        if (found := self._changed(path)) is not None:
            state, content = found
            name = self._name(path)
            self._send(name, dict(_parts(name, content, self._part_bytes)))
            self._seen[path] = state

    def _changed(self, path: Path) -> tuple[tuple[int, int], bytes] | None:
        """Return the state and content of a file; None if it was sent so, or is not there.

        The state is older than the content, so what comes in between is sent in the next round.
        """
        try:
            found = path.stat()
            state = (found.st_mtime_ns, found.st_size)
            return None if self._seen.get(path) == state else (state, path.read_bytes())
        except FileNotFoundError:
            return None

    def _send(self, name: str, parts: Mapping[str, bytes]) -> None:
        """Write the parts of a file that have changed, and delete those that it no longer has."""
        for part, piece in parts.items():
            digest = hashlib.sha256(piece).hexdigest()
            if self._sent.get(part) != digest:
                self._storage.write(part, piece)
                self._sent[part] = digest
        if gone := [part for part in self._sent if is_part(part, name) and part not in parts]:
            self._storage.delete(gone)
            for part in gone:
                del self._sent[part]

    def _fetch_input(self, file: StoredFile) -> None:
        path = self._folder / file.path
        if not path.is_file() or path.stat().st_size != file.size:
            fetch_file(self._storage, file.path, path, file)

    def _localised(self, task: bytes) -> bytes:
        """Return the task with the paths of the local inputs."""
        values = msgspec.json.decode(task, type=dict[str, msgspec.Raw])
        for key, raw in values.items():
            text = msgspec.json.decode(raw)
            if isinstance(text, str) and text.startswith(INPUT_PREFIX):
                place = self._folder / INPUTS / text.removeprefix(INPUT_PREFIX)
                values[key] = msgspec.Raw(msgspec.json.encode(str(place)))
        return msgspec.json.encode(values)

    def _from_here(self, progress: bytes) -> bytes:
        """Return a progress report with the controller's path of the result."""
        output = Path(_said(progress).output)
        if not self._home or not output.is_relative_to(self._folder):
            return progress
        values = msgspec.json.decode(progress, type=dict[str, msgspec.Raw])
        there = Path(self._home) / output.relative_to(self._folder)
        values["output"] = msgspec.Raw(msgspec.json.encode(str(there)))
        return msgspec.json.encode(values)

    def _fetch_result(self) -> None:
        """Make a result that another node has published known to this node's training process."""
        marker = self._folder / OUTPUT / RESULT
        if marker.exists() or (found := read_record(self._storage, WINNER)) is None:
            return
        if any(file.path == RESULT for file in found.files):
            make_folder(marker.parent)
            self._storage.download(f"{found.folder}/{RESULT}", marker)

    def _fetch_hazard(self) -> None:
        """Tell the training process the loss rate of nodes, which decides when it saves."""
        if time.monotonic() - self._hazard_at >= HAZARD_S:
            if (content := self._storage.read(HAZARD)) is not None:
                write_whole(self._folder / HAZARD, content)
            self._hazard_at = time.monotonic()

    def _publish(self) -> None:
        """Upload the result of this node, unless another node has published one."""
        folder = f"{OUTPUTS}/{self._node}-{secrets.token_hex(4)}"
        files: list[StoredFile] = []
        for name, path in files_below(self._folder / OUTPUT).items():
            if read_record(self._storage, WINNER) is not None:
                break
            sent = self._storage.upload(path, f"{folder}/{name}")
            files.append(StoredFile(name, path.stat().st_size, sent))
        record = StoredFiles(folder, tuple(files))
        created = read_record(self._storage, WINNER) is None and self._storage.create(
            WINNER, msgspec.json.encode(record)
        )
        # After a lost answer the record is this node's own.
        if not created and files and read_record(self._storage, WINNER) != record:
            self._storage.delete(f"{folder}/{file.path}" for file in files)


class _Said(msgspec.Struct):
    """What this module reads in a progress report."""

    phase: str = ""
    output: str = ""


def _said(progress: bytes) -> _Said:
    try:
        return msgspec.json.decode(progress, type=_Said)
    except (msgspec.MsgspecError, ValueError):
        return _Said()


def _parts(name: str, content: bytes, size: int) -> Iterator[tuple[str, bytes]]:
    for number, begin in enumerate(range(0, len(content), size)):
        yield f"{name}/{number:06d}", content[begin : begin + size]
