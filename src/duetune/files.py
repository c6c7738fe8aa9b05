"""Atomic writes of files, and folders that survive a power cut.

Every module that replaces a file does it through this one. A draft is written beside the file and
then renamed to it in one step, so a reader sees the old file or the new one.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from duetune.errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

ANYONE = 0o666
OWNER = 0o600
"""Permissions of a new file, before the umask."""
PRIVATE_FOLDER = 0o700
"""Permissions of a folder that only its owner may enter."""

# Some network file systems cannot sync a folder; their server orders renames itself.
_NO_FOLDER_SYNC = frozenset({errno.EINVAL, errno.ENOTSUP, errno.EBADF})


@contextlib.contextmanager
def whole_file(
    path: Path, field: str | None = None, *, durable: bool = False, mode: int = ANYONE
) -> Iterator[Path]:
    """Yield an empty draft file beside ``path`` that replaces ``path`` if the block succeeds.

    It is for writers that need a file name; the draft has the same suffix. With ``durable`` the
    file and its name are on disk when the block has ended. With a ``field`` an ``OSError`` (disk
    full, no permission) becomes ``InvalidInput`` of that field.
    """
    draft = path.with_name(f".{path.stem}.{secrets.token_hex(4)}.part{path.suffix}")
    try:
        os.close(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode))
        yield draft
        if durable:
            sync_file(draft)
        draft.replace(path)
        if durable:
            sync_folder(path.parent)
    except OSError as error:
        if field is None:
            raise
        raise _unwritable(field, path, error) from None
    finally:
        with contextlib.suppress(OSError):
            draft.unlink(missing_ok=True)


def write_whole(
    path: Path,
    content: str | bytes,
    field: str | None = None,
    *,
    durable: bool = False,
    mode: int = ANYONE,
) -> None:
    """Write ``content`` to ``path`` atomically; text as UTF-8. See ``whole_file``."""
    with whole_file(path, field, durable=durable, mode=mode) as draft:
        draft.write_bytes(content.encode() if isinstance(content, str) else content)


def write_new(path: Path, content: Iterable[bytes]) -> None:
    """Write a new file piece by piece and sync it; raises ``FileExistsError`` if it exists.

    It is for files in a folder that is renamed into place after all files are written. Only the
    owner may read them.
    """
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, OWNER)
    with open(descriptor, "wb") as file:  # noqa: PTH123 - a descriptor
        file.writelines(content)
        file.flush()
        os.fsync(file.fileno())


def sync_file(path: Path) -> None:
    """Block until the content of a file is on disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_folder(path: Path) -> None:
    """Block until the names in a folder are on disk."""
    try:
        sync_file(path)
    except OSError as error:
        if error.errno not in _NO_FOLDER_SYNC:
            raise


def make_folder(path: Path) -> None:
    """Create a folder and its parents, and block until their names are on disk.

    Only the owner may enter the folders that this creates.
    """
    missing = [folder for folder in (path, *path.parents) if not folder.is_dir()]
    for folder in reversed(missing):
        folder.mkdir(exist_ok=True, mode=PRIVATE_FOLDER)
        sync_folder(folder.parent)


def remove_tree(path: Path) -> None:
    """Remove a folder and its content; files that another process removes are no error."""
    # A file may appear while the tree is being removed. Its writer will soon find that the folder
    # is gone, so a few tries are enough.
    for _ in range(3):
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(path, ignore_errors=True)
        if not path.exists():
            return


def checked_target(path: Path | str, field: str, suffixes: Sequence[str]) -> Path:
    """Return ``path`` if it has an allowed suffix and can be written; called before long work."""
    target = Path(path)
    if target.suffix.lower() not in suffixes:
        raise InvalidInput(field, str(target), f"a file name that ends in {' or '.join(suffixes)}")
    if target.is_dir():
        raise InvalidInput(field, str(target), "a file; this is a folder")
    if not target.parent.is_dir():
        raise InvalidInput(field, str(target), "a file in a folder that exists")
    try:
        # Permission bits are not enough (root, read-only mounts), so try to write.
        with tempfile.TemporaryFile(dir=target.parent):
            pass
        if target.exists() and not os.access(target, os.W_OK):
            raise PermissionError(None, "Permission denied")
    except OSError as error:
        raise _unwritable(field, target, error) from None
    return target


def output_file(field: str, place: Path | str) -> Path:
    """Return the file that ``place`` names; a symbolic link is followed.

    Raises ``InvalidInput`` if ``place`` is a folder, a device or a pipe, which writing would
    destroy, or if its folder does not exist.
    """
    if not str(place):
        raise InvalidInput(field, "", "the name of a file")
    try:
        target = Path(place).resolve()
        usual = target.is_file() or not target.exists()
        folder = target.parent.is_dir()
    except (OSError, RuntimeError, ValueError):  # A link to itself, a name that is too long.
        usual = folder = False
    if not usual:
        raise InvalidInput(field, str(place), "a file to write; this is something else")
    if not folder:
        raise InvalidInput(field, str(place), "a file to write, in a folder that exists")
    return target


def _unwritable(field: str, path: Path, error: OSError) -> InvalidInput:
    reason = error.strerror or type(error).__name__
    return InvalidInput(field, str(path), f"a file that can be written ({reason})")
