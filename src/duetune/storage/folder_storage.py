"""Storage in a folder of this machine or of a network file system."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import secrets
from pathlib import Path
from typing import TYPE_CHECKING

from duetune.errors import StorageError
from duetune.files import OWNER, make_folder, sync_folder, whole_file, write_new, write_whole
from duetune.storage.storage_port import CHUNK, VersionedContent, checked_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


class FolderStorage:
    """Files below ``root``. Names that begin with a dot are drafts and locks of this class.

    ``replace`` takes a file lock, so a network file system must support locks.
    """

    def __init__(self, root: Path) -> None:
        self.root = root.absolute()

    @property
    def url(self) -> str:
        """Return the folder's path."""
        return str(self.root)

    def read(self, name: str) -> bytes | None:
        """Return the content of a small file; None if there is none."""
        content = None
        with self._errors(), contextlib.suppress(FileNotFoundError, NotADirectoryError):
            content = self._path(name).read_bytes()
        return content

    def read_version(self, name: str) -> VersionedContent | None:
        """Return the content and version of a small file; None if there is none."""
        content = self.read(name)
        return None if content is None else VersionedContent(content, _version(content))

    def write(self, name: str, content: bytes) -> None:
        """Write a file; one of that name is replaced."""
        with self._errors():
            write_whole(self._ready(name), content, durable=True, mode=OWNER)

    def create(self, name: str, content: bytes) -> bool:
        """Write a file if there is none of that name, and return whether this call wrote it."""
        with self._errors():
            path = self._ready(name)
            draft = path.with_name(f".{secrets.token_hex(8)}.part")
            try:
                write_new(draft, (content,))
                # Unlike a rename, a link never replaces a file.
                os.link(draft, path)
            except FileExistsError:
                return False
            finally:
                draft.unlink(missing_ok=True)
            sync_folder(path.parent)
        return True

    def replace(self, name: str, content: bytes, version: str) -> str | None:
        """Replace a file if it still has this version; return the new version, or None if not."""
        with self._errors():
            path = self._ready(name)
            with path.with_name(f".{path.name}.lock").open("wb") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                found = self.read_version(name)
                if found is None or found.version != version:
                    return None
                self.write(name, content)
        return _version(content)

    def sizes(self, folder: str = "") -> dict[str, int]:
        """Return the name and size in bytes of every file below a folder."""
        top = self._path(folder) if folder else self.root
        found: dict[str, int] = {}
        with self._errors():
            for place, folders, files in os.walk(top):
                folders[:] = [each for each in folders if not each.startswith(".")]
                for file in files:
                    path = Path(place) / file
                    # Another process may delete it now.
                    with contextlib.suppress(FileNotFoundError):
                        if not file.startswith("."):
                            name = path.relative_to(self.root).as_posix()
                            found[name] = path.stat().st_size
        return found

    def delete(self, names: Iterable[str]) -> None:
        """Delete files; one that does not exist is no error."""
        with self._errors():
            for name in names:
                with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                    self._path(name).unlink()

    def upload(self, path: Path, name: str) -> str:
        """Copy a local file of any size, and return the SHA-256 of the bytes that were copied."""
        with self._errors():
            target = self._ready(name)
        return self._copied(path, target)

    def download(self, name: str, path: Path) -> str | None:
        """Copy a file of any size, and return the SHA-256 of its bytes; None if there is none."""
        source = self._path(name)
        return self._copied(source, path) if source.is_file() else None

    def _path(self, name: str) -> Path:
        return self.root / checked_name(name)

    def _ready(self, name: str) -> Path:
        path = self._path(name)
        make_folder(path.parent)
        return path

    def _copied(self, source: Path, target: Path) -> str:
        digest = hashlib.sha256()
        with (
            whole_file(target, durable=True, mode=OWNER) as draft,
            source.open("rb") as file,
            draft.open("wb") as copy,
        ):
            while piece := file.read(CHUNK):
                digest.update(piece)
                copy.write(piece)
        return digest.hexdigest()

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except StorageError:
            raise
        except OSError as error:
            reason = error.strerror or type(error).__name__
            raise StorageError(self.url, reason, retry=True) from error


def _version(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
