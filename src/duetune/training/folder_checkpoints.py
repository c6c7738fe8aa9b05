"""Checkpoints in a folder, which several machines may share.

A checkpoint is a folder ``step-00000120.epoch-000007``. The writer prepares it in its own folder,
syncs every file, and publishes it by one rename, so a reader never sees an incomplete one.
``fence`` explains why an older writer cannot interfere. Nothing here needs locks, so a network file
system is sufficient.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import time
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from duetune.files import PRIVATE_FOLDER, remove_tree, sync_folder
from duetune.training import manifest as manifests
from duetune.training.checkpoint_backend import (
    Checkpoint,
    checkpoint_name,
    named_checkpoints,
    software,
    superfluous,
)
from duetune.training.fence import Claim, Fence
from duetune.training.manifest import Damaged, Manifest, ManifestEntry, pieces, write_entry

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from duetune.training.checkpoint_backend import CheckpointFile

_log = logging.getLogger(__name__)

_GONE = frozenset({errno.ENOENT, errno.ESTALE})


class FolderCheckpoints:
    """The checkpoints in ``folder``, as seen by a process of launch ``launch``."""

    def __init__(self, folder: Path, launch: int) -> None:
        self._folder = folder.absolute()
        self._fence = Fence(self._folder, launch)
        self._claim: Claim | None = None

    def claim(self, *, alone: bool) -> int:
        """Become the only writer and return the new epoch."""
        return self._claimed(alone=alone).epoch

    def all(self) -> list[Checkpoint]:
        """Return the published checkpoints, whole or damaged, in any order."""
        try:
            names = [path.name for path in self._folder.iterdir()]
        except FileNotFoundError:
            return []
        return list(named_checkpoints(names, self._folder))

    def present(self, checkpoint: Checkpoint) -> bool:
        """Return whether every file is there and has its size."""
        try:
            self.fetch(checkpoint)
        except Damaged:
            return False
        return True

    def verify(self, checkpoint: Checkpoint) -> None:
        """Compare every byte; ``Damaged`` if one differs."""
        checkpoint.verify()

    def fetch(self, checkpoint: Checkpoint) -> None:
        """Check that every file is there; ``Damaged`` if one is missing or has another size."""
        manifests.check_sizes(checkpoint.path, manifests.read_manifest(checkpoint.path))

    def publish(
        self, step: int, files: Iterable[CheckpointFile], keep: int, pinned: frozenset[int]
    ) -> str:
        """Publish a checkpoint, remove old ones, and return the name of the new one."""
        claim = self._claim or self._claimed(alone=True)
        self._fence.check(claim)
        target = self._folder / checkpoint_name(step, claim.epoch)
        if self._there(Checkpoint(claim.epoch, step, target), claim):
            return target.name
        draft = claim.place / target.name
        try:
            for remains in claim.place.iterdir():
                remove_tree(remains)
            draft.mkdir(mode=PRIVATE_FOLDER)
            manifest = Manifest(
                step=step,
                epoch=claim.epoch,
                files=tuple(_written(draft, files)),
                created=time.time(),
                software=software(),
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
        self._prune(claim, keep, pinned)
        return target.name

    def _claimed(self, *, alone: bool) -> Claim:
        published = max((checkpoint.epoch for checkpoint in self.all()), default=0)
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

    def _prune(self, claim: Claim, keep: int, pinned: frozenset[int]) -> None:
        """Remove what need not be kept. A failure is ignored."""
        for checkpoint in superfluous(self.all(), keep, pinned, self.present):
            with contextlib.suppress(OSError):
                self._remove(checkpoint, claim)

    def _remove(self, checkpoint: Checkpoint, claim: Claim) -> None:
        # Move it away by one rename first, so that no reader finds half of it.
        away = claim.place / f"removed-{checkpoint.path.name}"
        remove_tree(away)
        checkpoint.path.rename(away)
        remove_tree(away)


def _written(draft: Path, files: Iterable[CheckpointFile]) -> Iterator[ManifestEntry]:
    """Write the files and yield their entries. Links would not do: the source may change."""
    for file in files:
        if file.content is None:
            (draft / file.path).mkdir(mode=PRIVATE_FOLDER)
        else:
            content = pieces(file.content) if isinstance(file.content, Path) else (file.content,)
            yield write_entry(draft, file.path, content)
