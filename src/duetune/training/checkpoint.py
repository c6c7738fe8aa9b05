"""Checkpoints that stay whole even if their writer is killed at any moment.

A checkpoint holds the state of the whole job, which does not depend on the number of members, and a
manifest with the size and hash of each file. Readers take the newest by (epoch, step), check every
byte, and fall back to the previous one if something is damaged. Only one process at a time can
publish.

Checkpoints are in a folder (``folder_checkpoints``) or in a bucket (``object_checkpoints``), with
the same promises. ``manifest`` has the files' format. Torch is imported only to save or load
tensors.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import logging
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from duetune.core.node_contract import CHECKPOINT_URL
from duetune.errors import InvalidInput
from duetune.storage import open_storage
from duetune.storage.folder_storage import FolderStorage
from duetune.training import manifest as manifests
from duetune.training.checkpoint_backend import (
    ARRAYS,
    DOCUMENT,
    FILES,
    Checkpoint,
    CheckpointFile,
    Json,
)
from duetune.training.fence import StaleEpoch
from duetune.training.folder_checkpoints import FolderCheckpoints
from duetune.training.manifest import Damaged
from duetune.training.object_checkpoints import ObjectCheckpoints

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import torch

    from duetune.storage import Storage
    from duetune.training.checkpoint_backend import CheckpointBackend
    from duetune.training.worker_contract import Contract

__all__ = [
    "Checkpoint",
    "CheckpointStore",
    "Damaged",
    "Json",
    "StaleEpoch",
    "job_checkpoints",
]

_log = logging.getLogger(__name__)

_FETCHED = "fetched"


class CheckpointStore:
    """The checkpoints of one job, as seen by a process of launch ``epoch``.

    Any process may read. ``save`` and ``publish`` need a claim. ``claim`` makes one; otherwise the
    first ``save`` or ``publish`` makes one for a process that works alone. ``pinned`` are steps
    whose newest checkpoint is never removed, besides the newest ``keep``.

    ``place`` is a folder, a URL or a storage. ``scratch`` is the local folder into which
    checkpoints from a bucket are downloaded; without one it is a temporary folder.
    """

    def __init__(
        self, place: Path | str | Storage, epoch: int, keep: int = 2, scratch: Path | None = None
    ) -> None:
        if keep < 1:
            raise InvalidInput("keep", keep, "a whole number from 1 on")
        if epoch < 0:
            raise InvalidInput("epoch", epoch, "a whole number from 0 on")
        self._keep = keep
        storage = open_storage(place) if isinstance(place, str | Path) else place
        self._backend: CheckpointBackend
        if isinstance(storage, FolderStorage):
            self._backend = FolderCheckpoints(storage.root, epoch)
        else:
            if scratch is None:
                scratch = Path(tempfile.mkdtemp(prefix="duetune-"))
                # Checkpoints that were found there may outlive this object.
                atexit.register(shutil.rmtree, scratch, ignore_errors=True)
            self._backend = ObjectCheckpoints(storage, epoch, scratch)
        self.pinned: frozenset[int] = frozenset()

    def claim(self, *, alone: bool = False) -> int:
        """Become the only writer and return the new epoch; earlier writers lose their claim.

        A member of a group calls this only after the quorum has made it the leader. A process
        without a group passes ``alone``: it gets ``StaleEpoch`` if a later launch has a claim.
        """
        return self._backend.claim(alone=alone)

    def save(
        self,
        step: int,
        arrays: Mapping[str, torch.Tensor],
        document: Mapping[str, Json] | msgspec.Struct,
    ) -> str:
        """Publish a state and return the checkpoint's name.

        After an ``OSError`` (a full disk, a bucket that is away) no checkpoint is published.
        ``StaleEpoch`` is raised if another writer has taken over. Each step is published once per
        epoch; a second call returns the same name.
        """
        contents = (
            CheckpointFile(f"{ARRAYS}{number:05d}.safetensors", content)
            for number, content in enumerate(manifests.encoded(arrays), start=1)
        )
        return self._publish(step, contents, document)

    def publish(
        self,
        step: int,
        source: Path,
        document: Mapping[str, Json] | msgspec.Struct | None = None,
    ) -> str:
        """Publish a copy of a file or folder; otherwise like ``save``."""
        return self._publish(step, _copied(Path(source)), {} if document is None else document)

    def latest(self) -> Checkpoint | None:
        """Return the newest whole checkpoint; damaged ones are skipped with a warning."""
        passed: set[Checkpoint] = set()
        # List them each time: a writer may remove and publish checkpoints meanwhile.
        while candidates := set(self._backend.all()) - passed:
            newest = max(candidates)
            try:
                self._backend.verify(newest)
            except Damaged as damage:
                passed.add(newest)
                if newest in self._backend.all():
                    _log.warning("skipping a damaged checkpoint: %s", damage)
            else:
                return newest
        return None

    def holds(self, name: str, step: int) -> bool:
        """Return whether there is a checkpoint of this name and step; no byte of it is read."""
        return any(
            checkpoint.path.name == name
            and checkpoint.step == step
            and self._backend.present(checkpoint)
            for checkpoint in self._backend.all()
        )

    def named(self, name: str) -> Checkpoint | None:
        """Return the checkpoint of this name if its files are there; ``load`` checks the bytes."""
        for checkpoint in self._backend.all():
            if checkpoint.path.name == name:
                with contextlib.suppress(Damaged):
                    self._backend.fetch(checkpoint)
                    return checkpoint
        return None

    def at(self, step: int) -> Checkpoint | None:
        """Return the newest whole checkpoint of a step; every byte is checked."""
        for checkpoint in sorted(self._backend.all(), reverse=True):
            if checkpoint.step == step:
                with contextlib.suppress(Damaged):
                    self._backend.verify(checkpoint)
                    return checkpoint
        return None

    def _publish(
        self,
        step: int,
        contents: Iterator[CheckpointFile],
        document: Mapping[str, Json] | msgspec.Struct,
    ) -> str:
        if step < 0:
            raise InvalidInput("step", step, "a whole number from 0 on")

        def files() -> Iterator[CheckpointFile]:
            yield from contents
            # The standard library keeps NaN and integers of any size; msgspec does not.
            yield CheckpointFile(DOCUMENT, json.dumps(msgspec.to_builtins(document)).encode())

        return self._backend.publish(step, files(), self._keep, self.pinned)


def job_checkpoints(contract: Contract, environ: Mapping[str, str], keep: int) -> CheckpointStore:
    """Return the checkpoints of the job of a training process: at a URL or in a folder."""
    place = environ.get(CHECKPOINT_URL) or contract.checkpoints
    return CheckpointStore(place, contract.epoch, keep, scratch=contract.folder / _FETCHED)


def _copied(source: Path) -> Iterator[CheckpointFile]:
    """Yield the files and folders of a copy of ``source``."""
    yield CheckpointFile(FILES, None)
    if source.is_file():
        yield CheckpointFile(f"{FILES}/{source.name}", source)
    else:
        yield from _below(source, FILES)


def _below(source: Path, name: str) -> Iterator[CheckpointFile]:
    if not source.is_dir():
        source.stat()
        raise InvalidInput("source", str(source), "a file, or a folder of files and folders")
    for child in sorted(source.iterdir()):
        path = f"{name}/{child.name}"
        if child.is_file():
            yield CheckpointFile(path, child)
        else:
            if child.is_dir():
                yield CheckpointFile(path, None)
            yield from _below(child, path)
