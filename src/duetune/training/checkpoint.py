"""Checkpoints that stay whole even if their writer is killed at any moment.

A checkpoint is a folder ``step-00000120.epoch-000007``. It holds the state of the whole job, which
does not depend on the number of members, and a manifest with the size and hash of each file. The
writer prepares it in its own folder, syncs every file, and publishes it by one rename, so a reader
never sees an incomplete one. Readers take the newest by (epoch, step), check every byte, and fall
back to the previous one if something is damaged.

``fence`` explains why an older writer cannot interfere; ``manifest`` has the files' format. Nothing
here needs locks, so a network file system is sufficient. Torch is imported only to save or load
tensors.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import json
import logging
import platform
import re
import time
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import msgspec

from duetune.errors import InvalidInput
from duetune.files import PRIVATE_FOLDER, remove_tree, sync_folder
from duetune.training import manifest as manifests
from duetune.training.fence import Claim, Fence, StaleEpoch
from duetune.training.manifest import Damaged, Manifest, ManifestEntry, pieces, write_entry

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    import torch

__all__ = ["Checkpoint", "CheckpointStore", "Damaged", "Json", "StaleEpoch"]

Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"

_log = logging.getLogger(__name__)

_NAME = re.compile(r"step-(\d{8,15})\.epoch-(\d{6,15})")
_ARRAYS = "arrays-"
_DOCUMENT = "document.json"
_FILES = "files"
_GONE = frozenset({errno.ENOENT, errno.ESTALE})
_SOFTWARE = ("duetune", "torch", "transformers", "safetensors")


class Checkpoint(msgspec.Struct, frozen=True, order=True):
    """A published checkpoint. Checkpoints are ordered by epoch first, then by step."""

    epoch: int
    step: int
    path: Path

    @property
    def files(self) -> Path:
        """Return the copy of the folder that was given to ``publish``."""
        return self.path / _FILES

    def verify(self) -> None:
        """Raise ``Damaged`` unless every byte is as it was written."""
        manifest = manifests.read_manifest(self.path)
        if (manifest.step, manifest.epoch) != (self.step, self.epoch):
            raise Damaged(f"{self.path.name}: the manifest belongs to another checkpoint")
        manifests.check_content(self.path, manifest)

    def document(self) -> dict[str, Json]:
        """Return the JSON document that was saved with the arrays or files."""
        manifest = manifests.read_manifest(self.path)
        (entry,) = (entry for entry in manifest.files if entry.path == _DOCUMENT)
        content = b"".join(manifests.checked_pieces(self.path, entry))
        try:
            found = json.loads(content)
        except ValueError as error:
            raise Damaged(f"{self.path.name}: {_DOCUMENT}: {error}") from error
        if not isinstance(found, dict):
            raise Damaged(f"{self.path.name}: {_DOCUMENT} is not a JSON object")
        return found

    def load(self) -> tuple[dict[str, torch.Tensor], dict[str, Json]]:
        """Return the arrays (on the CPU) and the document as they were saved."""
        arrays: dict[str, torch.Tensor] = {}
        for entry in manifests.read_manifest(self.path).files:
            if entry.path.startswith(_ARRAYS):
                try:
                    arrays |= manifests.decoded(
                        b"".join(manifests.checked_pieces(self.path, entry))
                    )
                except ValueError as error:
                    raise Damaged(f"{self.path.name}: {entry.path}: {error}") from error
        return arrays, self.document()


class CheckpointStore:
    """The checkpoints of one job, as seen by a process of launch ``epoch``.

    Any process may read. ``save`` and ``publish`` need a claim. ``claim`` makes one; otherwise the
    first ``save`` or ``publish`` makes one for a process that works alone. ``pinned`` are steps
    whose newest checkpoint is never removed, besides the newest ``keep``.
    """

    def __init__(self, folder: Path, epoch: int, keep: int = 2) -> None:
        if keep < 1:
            raise InvalidInput("keep", keep, "a whole number from 1 on")
        if epoch < 0:
            raise InvalidInput("epoch", epoch, "a whole number from 0 on")
        self._folder = Path(folder).absolute()
        self._keep = keep
        self._fence = Fence(self._folder, epoch)
        self._claim: Claim | None = None
        self.pinned: frozenset[int] = frozenset()

    @property
    def folder(self) -> Path:
        """Return the folder of the job's checkpoints."""
        return self._folder

    def claim(self, *, alone: bool = False) -> int:
        """Become the only writer and return the new epoch; earlier writers lose their claim.

        A member of a group calls this only after the quorum has made it the leader. A process
        without a group passes ``alone``: it gets ``StaleEpoch`` if a later launch has a claim.
        """
        return self._claimed(alone=alone).epoch

    def save(
        self,
        step: int,
        arrays: Mapping[str, torch.Tensor],
        document: Mapping[str, Json] | msgspec.Struct,
    ) -> Path:
        """Publish a state and return its folder.

        After an ``OSError`` (such as a full disk) nothing is left behind. ``StaleEpoch`` is raised
        if another writer has taken over. Each step is published once per epoch; a second call
        returns the first folder.
        """

        def write(folder: Path) -> Iterable[ManifestEntry]:
            for number, content in enumerate(manifests.encoded(arrays), start=1):
                yield write_entry(folder, f"{_ARRAYS}{number:05d}.safetensors", (content,))

        return self._publish(step, write, document)

    def publish(
        self,
        step: int,
        source: Path,
        document: Mapping[str, Json] | msgspec.Struct | None = None,
    ) -> Path:
        """Publish a copy of a file or folder; otherwise like ``save``."""

        def write(folder: Path) -> Iterable[ManifestEntry]:
            target = folder / _FILES
            target.mkdir(mode=PRIVATE_FOLDER)
            yield from _copy(Path(source), folder, target)

        return self._publish(step, write, {} if document is None else document)

    def latest(self) -> Checkpoint | None:
        """Return the newest whole checkpoint; damaged ones are skipped with a warning."""
        passed: set[Checkpoint] = set()
        # List the folder each time: a writer may remove and publish checkpoints meanwhile.
        while candidates := set(self._all()) - passed:
            newest = max(candidates)
            try:
                newest.verify()
            except Damaged as damage:
                passed.add(newest)
                if newest.path.exists():
                    _log.warning("skipping a damaged checkpoint: %s", damage)
            else:
                return newest
        return None

    def named(self, name: str) -> Checkpoint | None:
        """Return the checkpoint of this name if its files are there; ``load`` checks the bytes."""
        for checkpoint in self._all():
            if checkpoint.path.name == name:
                with contextlib.suppress(Damaged):
                    manifests.check_sizes(checkpoint.path, manifests.read_manifest(checkpoint.path))
                    return checkpoint
        return None

    def at(self, step: int) -> Checkpoint | None:
        """Return the newest whole checkpoint of a step; every byte is checked."""
        for checkpoint in sorted(self._all(), reverse=True):
            if checkpoint.step == step:
                with contextlib.suppress(Damaged):
                    checkpoint.verify()
                    return checkpoint
        return None

    def _publish(
        self,
        step: int,
        write: Callable[[Path], Iterable[ManifestEntry]],
        document: Mapping[str, Json] | msgspec.Struct,
    ) -> Path:
        if step < 0:
            raise InvalidInput("step", step, "a whole number from 0 on")
        claim = self._claim or self._claimed(alone=True)
        self._fence.check(claim)
        target = self._folder / f"step-{step:08d}.epoch-{claim.epoch:06d}"
        if self._there(Checkpoint(claim.epoch, step, target), claim):
            return target
        draft = claim.place / target.name
        try:
            for remains in claim.place.iterdir():
                remove_tree(remains)
            draft.mkdir(mode=PRIVATE_FOLDER)
            files = (*write(draft), write_entry(draft, _DOCUMENT, (_json(document),)))
            manifest = Manifest(
                step=step,
                epoch=claim.epoch,
                files=files,
                created=time.time(),
                software=_software(),
            )
            write_entry(draft, manifests.NAME, (msgspec.json.encode(manifest),))
            for folder in (draft, *(path for path in draft.rglob("*") if path.is_dir())):
                sync_folder(folder)
            self._fence.check(claim)
            draft.rename(target)
            sync_folder(self._folder)
        except Exception as error:
            with contextlib.suppress(OSError):
                remove_tree(draft)
            if isinstance(error, OSError) and error.errno in _GONE:
                # The likely cause is a lost claim, which ``check`` reports instead.
                self._fence.check(claim)
            raise
        self._prune(claim)
        return target

    def _claimed(self, *, alone: bool) -> Claim:
        published = max((checkpoint.epoch for checkpoint in self._all()), default=0)
        self._claim = self._fence.claim(published=published, alone=alone)
        return self._claim

    def _there(self, checkpoint: Checkpoint, claim: Claim) -> bool:
        """Return whether this claim has already published the step; remove a damaged one."""
        if not checkpoint.path.exists():
            return False
        try:
            checkpoint.verify()
        except Damaged as damage:
            _log.warning("replacing a damaged checkpoint: %s", damage)
            self._remove(checkpoint, claim)
            return False
        return True

    def _all(self) -> list[Checkpoint]:
        try:
            names = [path.name for path in self._folder.iterdir()]
        except FileNotFoundError:
            return []
        return [
            Checkpoint(epoch=int(found[2]), step=int(found[1]), path=self._folder / name)
            for name in names
            if (found := _NAME.fullmatch(name))
        ]

    def _prune(self, claim: Claim) -> None:
        """Remove all but the newest ``keep`` and the pinned whole ones. A failure is ignored."""
        whole, pinned = 0, set(self.pinned)
        for checkpoint in sorted(self._all(), reverse=True):
            if whole >= self._keep and checkpoint.step not in pinned:
                with contextlib.suppress(OSError):
                    self._remove(checkpoint, claim)
                continue
            with contextlib.suppress(Damaged):
                manifests.check_sizes(checkpoint.path, manifests.read_manifest(checkpoint.path))
                whole += 1
                pinned.discard(checkpoint.step)

    def _remove(self, checkpoint: Checkpoint, claim: Claim) -> None:
        # Move it away by one rename first, so that no reader finds half of it.
        away = claim.place / f"removed-{checkpoint.path.name}"
        remove_tree(away)
        checkpoint.path.rename(away)
        remove_tree(away)


def _copy(source: Path, folder: Path, target: Path) -> Iterator[ManifestEntry]:
    """Copy into ``target``. Links would not do: the source may be overwritten in place."""
    if source.is_file():
        path = target / source.name
        yield write_entry(folder, path.relative_to(folder).as_posix(), pieces(source))
        return
    if not source.is_dir():
        source.stat()
        raise InvalidInput("source", str(source), "a file, or a folder of files and folders")
    for child in sorted(source.iterdir()):
        if child.is_dir():
            (target / child.name).mkdir(mode=PRIVATE_FOLDER)
            yield from _copy(child, folder, target / child.name)
        else:
            yield from _copy(child, folder, target)


def _json(document: Mapping[str, Json] | msgspec.Struct) -> bytes:
    # The standard library keeps NaN and integers of any size; msgspec does not.
    return json.dumps(msgspec.to_builtins(document)).encode()


@functools.cache
def _software() -> dict[str, str]:
    versions = {"python": platform.python_version()}
    for package in _SOFTWARE:
        with contextlib.suppress(metadata.PackageNotFoundError):
            versions[package] = metadata.version(package)
    return versions
