"""Checkpoints in a bucket, with the promises of a folder.

    head.json                                   who may write, and which checkpoints there are
    manifests/step-00000120.epoch-000007.json   size, hash and blob of each file; created once
    blobs/<sha256>.<epoch>                      the content of a file, and the epoch that sent it

1. *One writer.* ``claim`` replaces the head by its version (compare-and-swap) and puts a new epoch
   and a random writer's name there. Each epoch is held by one process only.
2. *Publishing is one swap.* A writer sends blobs, then the manifest, then swaps the head for one
   that lists the checkpoint. If another process has claimed meanwhile, the swap fails, the writer
   gets ``StaleEpoch``, and no reader ever looks at what it has sent.
3. *Nothing that is needed is deleted.* First a swap takes a checkpoint off the list, then its files
   are deleted. A writer deletes only blobs that no listed checkpoint names and that are of its own
   or an earlier epoch. A later writer uses blobs of earlier epochs only if a checkpoint in the head
   names them; all others it sends again under its own epoch. So a writer that was suspended while
   it deleted cannot take away a blob that its successor needs.
4. *A crash at any point* leaves the previous head and some files that no checkpoint names. The next
   save deletes them.

The answer to a swap may get lost. As every head differs from all others, its writer then finds out
by reading it. Readers download a checkpoint to a local folder and compare every byte.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import re
import secrets
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import msgspec

from duetune.errors import StorageError
from duetune.files import PRIVATE_FOLDER, remove_tree, write_whole
from duetune.training import manifest as manifests
from duetune.training.checkpoint_backend import (
    Checkpoint,
    checkpoint_name,
    named_checkpoints,
    software,
    superfluous,
)
from duetune.training.fence import StaleEpoch
from duetune.training.manifest import Damaged, Manifest, ManifestEntry

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from duetune.storage import Storage
    from duetune.training.checkpoint_backend import CheckpointFile

_Blobs: TypeAlias = "dict[tuple[str, int], str]"
"""Names of blobs by the hash and size of their content."""

_log = logging.getLogger(__name__)

HEAD = "head.json"
_MANIFEST = re.compile(r"manifests/(step-\d{8,15}\.epoch-(\d{6,15}))\.json")
_BLOB = re.compile(r"blobs/([0-9a-f]{64})\.(\d{6,15})")
_DOWNLOADS = 4


class Head(msgspec.Struct, frozen=True):
    """The file ``head.json``.

    - ``epoch``, ``writer``: the claim that may write.
    - ``launch``: the greatest launch that has ever claimed.
    - ``change``: counts the swaps of this claim, so that no two heads are equal.
    - ``checkpoints``: the names of the published checkpoints.
    """

    epoch: int = 0
    writer: str = ""
    launch: int = 0
    change: int = 0
    checkpoints: tuple[str, ...] = ()


class ObjectCheckpoints:
    """The checkpoints in ``storage``, as seen by a process of launch ``launch``.

    ``scratch`` is the local folder into which checkpoints are downloaded.
    """

    def __init__(self, storage: Storage, launch: int, scratch: Path) -> None:
        self._storage = storage
        self._launch = launch
        self._scratch = scratch.absolute()
        self._writer = ""
        self._epoch = 0
        # Blobs that were found damaged must be sent again, although they have the right size.
        self._suspect: set[str] = set()

    def claim(self, *, alone: bool) -> int:
        """Become the only writer and return the new epoch."""
        writer = secrets.token_hex(16)
        while True:
            head, version = self._head()
            if alone and head.launch > self._launch:
                raise StaleEpoch(self._launch, head.launch)
            published = (found.epoch for found in self._checkpoints(head))
            claimed = Head(
                epoch=max(head.epoch, self._launch - 1, *published) + 1,
                writer=writer,
                launch=max(head.launch, self._launch),
                checkpoints=head.checkpoints,
            )
            if self._swapped(claimed, version):
                # A store without conditional writes would accept this and could not be trusted.
                if self._conditional_write(claimed, version):
                    reason = "it ignores conditions such as If-Match, which checkpoints need"
                    raise StorageError(self._storage.url, reason, retry=False)
                self._epoch, self._writer = claimed.epoch, writer
                return claimed.epoch

    def all(self) -> list[Checkpoint]:
        """Return the published checkpoints, whole or damaged."""
        return self._checkpoints(self._head()[0])

    def present(self, checkpoint: Checkpoint) -> bool:
        """Return whether the manifest is there; the head lists only what was whole."""
        return self._manifest_or_none(checkpoint) is not None

    def verify(self, checkpoint: Checkpoint) -> None:
        """Download the files that are not here and compare every byte with the manifest."""
        manifest = self._manifest(checkpoint)
        folder = checkpoint.path
        self._scratch.mkdir(parents=True, exist_ok=True, mode=PRIVATE_FOLDER)
        parents = ((folder / entry.path).parent for entry in manifest.files)
        for path in (*parents, *(folder / name for name in manifest.folders)):
            path.mkdir(parents=True, exist_ok=True)
        with ThreadPoolExecutor(_DOWNLOADS) as pool:
            list(pool.map(lambda entry: self._receive(folder, entry), manifest.files))
        write_whole(folder / manifests.NAME, msgspec.json.encode(manifest))
        checkpoint.manifest()
        self._tidy()

    def fetch(self, checkpoint: Checkpoint) -> None:
        """Download the files that are not here; ``Damaged`` if one is missing or differs."""
        self.verify(checkpoint)

    def publish(
        self, step: int, files: Iterable[CheckpointFile], keep: int, pinned: frozenset[int]
    ) -> str:
        """Publish a checkpoint, remove old ones, and return the name of the new one."""
        if not self._writer:
            self.claim(alone=True)
        head, version = self._own_head()
        name = checkpoint_name(step, head.epoch)
        new = Checkpoint(head.epoch, step, self._scratch / name)
        stored = self._storage.sizes()
        listed = {found: self._manifest_or_none(found) for found in self._checkpoints(head)}
        if new in listed:
            try:
                self.verify(new)
            except Damaged as damage:
                _log.warning("replacing a damaged checkpoint: %s", damage)
                del listed[new]
            else:
                return name
        usable = self._usable(stored, [found for found in listed.values() if found])
        manifest = self._sent(step, files, usable)
        self._create(f"manifests/{name}.json", manifest)
        listed[new] = manifest

        def whole(checkpoint: Checkpoint) -> bool:
            found = listed[checkpoint]
            return checkpoint == new or (
                found is not None
                and all(stored.get(entry.blob) == entry.size for entry in found.files)
            )

        for old in superfluous(listed, keep, pinned, whole):
            del listed[old]
        kept = tuple(checkpoint.path.name for checkpoint in sorted(listed))
        swap = msgspec.structs.replace(head, change=head.change + 1, checkpoints=kept)
        if not self._swapped(swap, version):
            self._own_head()
            raise StorageError(self._storage.url, "the head did not change", retry=True)
        with contextlib.suppress(StorageError):
            self._sweep(stored, listed)
        return name

    def _head(self) -> tuple[Head, str | None]:
        """Return the head and its version; a head that is lost follows from the manifests."""
        found = self._storage.read_version(HEAD)
        if found is not None:
            with contextlib.suppress(msgspec.MsgspecError):
                return msgspec.json.decode(found.content, type=Head), found.version
        manifests_there = map(_MANIFEST.fullmatch, self._storage.sizes("manifests"))
        names = tuple(name[1] for name in manifests_there if name)
        return Head(checkpoints=names), None if found is None else found.version

    def _own_head(self) -> tuple[Head, str | None]:
        """Return the head if this process holds the claim; ``StaleEpoch`` if not."""
        head, version = self._head()
        if head.writer != self._writer:
            raise StaleEpoch(self._epoch, head.epoch)
        return head, version

    def _swapped(self, head: Head, version: str | None) -> bool:
        # Perhaps only the answer was lost, and a second attempt was refused.
        return self._conditional_write(head, version) or self._storage.read(
            HEAD
        ) == msgspec.json.encode(head)

    def _conditional_write(self, head: Head, version: str | None) -> bool:
        content = msgspec.json.encode(head)
        if version is None:
            return self._storage.create(HEAD, content)
        return self._storage.replace(HEAD, content, version) is not None

    def _checkpoints(self, head: Head) -> list[Checkpoint]:
        return list(named_checkpoints(head.checkpoints, self._scratch))

    def _manifest(self, checkpoint: Checkpoint) -> Manifest:
        name = checkpoint.path.name
        content = self._storage.read(f"manifests/{name}.json")
        if content is None:
            raise Damaged(f"{name}: the manifest is missing")
        manifest = manifests.decoded_manifest(name, content)
        checkpoint.check_owner(manifest)
        for entry in manifest.files:
            found = _BLOB.fullmatch(entry.blob)
            if found is None or found[1] != entry.sha256:
                raise Damaged(f"{name}: the manifest names the blob {entry.blob!r}")
        return manifest

    def _manifest_or_none(self, checkpoint: Checkpoint) -> Manifest | None:
        try:
            return self._manifest(checkpoint)
        except Damaged:
            return None

    def _usable(self, stored: Mapping[str, int], listed: Iterable[Manifest]) -> _Blobs:
        """Return the blobs that need not be sent again; see point 3 above."""
        named = {entry.blob for manifest in listed for entry in manifest.files}
        return {
            (found[1], size): name
            for name, size in stored.items()
            if (found := _BLOB.fullmatch(name))
            and (name in named or int(found[2]) == self._epoch)
            and name not in self._suspect
        }

    def _sent(self, step: int, files: Iterable[CheckpointFile], usable: _Blobs) -> Manifest:
        """Send the files whose content is not there, and return the manifest."""
        entries: list[ManifestEntry] = []
        folders: list[str] = []
        for file in files:
            if file.content is None:
                folders.append(file.path)
                continue
            digest, size = known = _digest(file.content)
            if known not in usable:
                blob = f"blobs/{digest}.{self._epoch:06d}"
                if isinstance(file.content, bytes):
                    self._storage.write(blob, file.content)
                elif self._storage.upload(file.content, blob) != digest:
                    self._storage.delete([blob])
                    raise OSError(f"{file.content} has changed while it was being read")
                usable[known] = blob
                self._suspect.discard(blob)
            entries.append(ManifestEntry(file.path, size, digest, usable[known]))
        return Manifest(
            step=step,
            epoch=self._epoch,
            files=tuple(entries),
            created=time.time(),
            software=software(),
            folders=tuple(folders),
        )

    def _create(self, name: str, manifest: Manifest) -> None:
        """Create a manifest. One that is there comes from an attempt of this claim that failed."""
        content = msgspec.json.encode(manifest)
        while not self._storage.create(name, content):
            if self._storage.read(name) == content:
                return
            self._storage.delete([name])

    def _sweep(self, stored: Iterable[str], listed: Mapping[Checkpoint, Manifest | None]) -> None:
        """Delete files of this claim and earlier ones that no listed checkpoint needs."""
        needed = {entry.blob for found in listed.values() if found for entry in found.files}
        needed |= {f"manifests/{checkpoint.path.name}.json" for checkpoint in listed}
        garbage = [
            name
            for name in sorted(stored, reverse=True)
            if name not in needed
            and (found := _MANIFEST.fullmatch(name) or _BLOB.fullmatch(name))
            and int(found[2]) <= self._epoch
        ]
        if garbage:
            self._storage.delete(garbage)

    def _receive(self, folder: Path, entry: ManifestEntry) -> None:
        """Download one file unless the right one is here."""
        path = folder / entry.path
        with contextlib.suppress(OSError):
            if path.stat().st_size == entry.size and _digest(path)[0] == entry.sha256:
                return
        if self._storage.download(entry.blob, path) != entry.sha256:
            self._suspect.add(entry.blob)
            raise Damaged(f"{folder.name}: the content of {entry.path} is missing or has changed")

    def _tidy(self) -> None:
        """Remove local copies of checkpoints that are no longer published."""
        with contextlib.suppress(OSError):
            names = [path.name for path in self._scratch.iterdir()]
            for copy in set(named_checkpoints(names, self._scratch)) - set(self.all()):
                remove_tree(copy.path)


def _digest(content: bytes | Path) -> tuple[str, int]:
    digest, size = hashlib.sha256(), 0
    for piece in manifests.pieces(content) if isinstance(content, Path) else (content,):
        digest.update(piece)
        size += len(piece)
    return digest.hexdigest(), size
