"""What a checkpoint is, and the port of the places that keep them.

``folder_checkpoints`` and ``object_checkpoints`` implement the port. ``checkpoint`` is what a
training process uses.
"""

from __future__ import annotations

import contextlib
import functools
import json
import platform
import re
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeAlias

import msgspec

from duetune.training import manifest as manifests
from duetune.training.manifest import Damaged

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    import torch

Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"

ARRAYS = "arrays-"
DOCUMENT = "document.json"
FILES = "files"
_NAME = re.compile(r"step-(\d{8,15})\.epoch-(\d{6,15})")
_SOFTWARE = ("duetune", "torch", "transformers", "safetensors")


class Checkpoint(msgspec.Struct, frozen=True, order=True):
    """A published checkpoint. Checkpoints are ordered by epoch first, then by step.

    ``path`` is its folder on this machine, whose name is the checkpoint's name.
    """

    epoch: int
    step: int
    path: Path

    @property
    def files(self) -> Path:
        """Return the copy of the folder that was given to ``publish``."""
        return self.path / FILES

    def manifest(self) -> manifests.Manifest:
        """Return the manifest; ``Damaged`` if it is not valid or not that of this checkpoint."""
        manifest = manifests.read_manifest(self.path)
        self.check_owner(manifest)
        return manifest

    def check_owner(self, manifest: manifests.Manifest) -> None:
        """Raise ``Damaged`` if a manifest is that of another checkpoint."""
        if (manifest.step, manifest.epoch) != (self.step, self.epoch):
            raise Damaged(f"{self.path.name}: the manifest belongs to another checkpoint")

    def verify(self) -> None:
        """Raise ``Damaged`` unless every byte is as it was written."""
        manifests.check_content(self.path, self.manifest())

    def document(self) -> dict[str, Json]:
        """Return the JSON document that was saved with the arrays or files."""
        manifest = manifests.read_manifest(self.path)
        (entry,) = (entry for entry in manifest.files if entry.path == DOCUMENT)
        content = b"".join(manifests.checked_pieces(self.path, entry))
        try:
            found = json.loads(content)
        except ValueError as error:
            raise Damaged(f"{self.path.name}: {DOCUMENT}: {error}") from error
        if not isinstance(found, dict):
            raise Damaged(f"{self.path.name}: {DOCUMENT} is not a JSON object")
        return found

    def load(self) -> tuple[dict[str, torch.Tensor], dict[str, Json]]:
        """Return the arrays (on the CPU) and the document as they were saved."""
        arrays: dict[str, torch.Tensor] = {}
        for entry in manifests.read_manifest(self.path).files:
            if entry.path.startswith(ARRAYS):
                try:
                    arrays |= manifests.decoded(
                        b"".join(manifests.checked_pieces(self.path, entry))
                    )
                except ValueError as error:
                    raise Damaged(f"{self.path.name}: {entry.path}: {error}") from error
        return arrays, self.document()


class CheckpointFile(msgspec.Struct, frozen=True):
    """One file of a checkpoint to be written: its content, or the local file that has it.

    None as content stands for a folder. ``path`` is relative, with '/' as separator.
    """

    path: str
    content: bytes | Path | None


class CheckpointBackend(Protocol):
    """Where the checkpoints of a job are kept."""

    def claim(self, *, alone: bool) -> int:
        """Become the only writer and return the new epoch; see ``CheckpointStore.claim``."""
        ...

    def all(self) -> list[Checkpoint]:
        """Return the published checkpoints, whole or damaged, in any order."""
        ...

    def present(self, checkpoint: Checkpoint) -> bool:
        """Return quickly whether a checkpoint seems to be whole; nothing is downloaded."""
        ...

    def verify(self, checkpoint: Checkpoint) -> None:
        """Bring the files to this machine and compare every byte; ``Damaged`` if one differs."""
        ...

    def fetch(self, checkpoint: Checkpoint) -> None:
        """Bring the files to this machine; ``Damaged`` if that cannot be done."""
        ...

    def publish(
        self, step: int, files: Iterable[CheckpointFile], keep: int, pinned: frozenset[int]
    ) -> str:
        """Publish a checkpoint, remove old ones, and return the name of the new one."""
        ...


def checkpoint_name(step: int, epoch: int) -> str:
    """Return the name of a checkpoint."""
    return f"step-{step:08d}.epoch-{epoch:06d}"


def named_checkpoints(names: Iterable[str], folder: Path) -> Iterator[Checkpoint]:
    """Yield the checkpoints among ``names``; other names are passed over."""
    for name in names:
        if found := _NAME.fullmatch(name):
            yield Checkpoint(epoch=int(found[2]), step=int(found[1]), path=folder / name)


def superfluous(
    checkpoints: Iterable[Checkpoint],
    keep: int,
    pinned: frozenset[int],
    whole: Callable[[Checkpoint], bool],
) -> list[Checkpoint]:
    """Return all but the newest ``keep`` and the pinned whole ones; damaged ones do not count."""
    count, left = 0, set(pinned)
    removable: list[Checkpoint] = []
    for checkpoint in sorted(checkpoints, reverse=True):
        if count >= keep and checkpoint.step not in left:
            removable.append(checkpoint)
        elif whole(checkpoint):
            count += 1
            left.discard(checkpoint.step)
    return removable


@functools.cache
def software() -> dict[str, str]:
    """Return the versions of the programs that write a checkpoint."""
    versions = {"python": platform.python_version()}
    for package in _SOFTWARE:
        with contextlib.suppress(metadata.PackageNotFoundError):
            versions[package] = metadata.version(package)
    return versions
