"""Files that outlive a power cut, and folders that are made and removed under others' eyes."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import shutil
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

CHUNK = 1 << 20

# Some network file systems cannot sync a folder; there the server orders renames itself.
_NO_FOLDER_SYNC = frozenset({errno.EINVAL, errno.ENOTSUP, errno.EBADF})


class Written(msgspec.Struct, frozen=True):
    size: int
    sha256: str


def write_file(path: Path, content: Iterable[bytes]) -> Written:
    """Write a new file to the disk itself, and say what was written."""
    digest, size = hashlib.sha256(), 0
    with path.open("xb") as file:
        for piece in content:
            file.write(piece)
            digest.update(piece)
            size += len(piece)
        file.flush()
        os.fsync(file.fileno())
    return Written(size=size, sha256=digest.hexdigest())


def pieces(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while piece := file.read(CHUNK):
            yield piece


def sync_folder(path: Path) -> None:
    """Make the names in a folder last."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in _NO_FOLDER_SYNC:
            raise
    finally:
        os.close(descriptor)


def make_folder(path: Path) -> None:
    """Make a folder and those above it, and make their names last."""
    missing = [one for one in (path, *path.parents) if not one.is_dir()]
    for folder in reversed(missing):
        folder.mkdir(exist_ok=True)
        sync_folder(folder.parent)


def remove_tree(path: Path) -> None:
    """Remove what is there; what another process removes at the same time is no error."""
    # A file may appear while the tree is being removed: its writer is about to learn that its
    # folder is gone, so a second look is enough.
    for _ in range(3):
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(path, ignore_errors=True)
        if not path.exists():
            return
