"""A storage in memory, for tests of code that keeps files in storage."""

from __future__ import annotations

import hashlib
import threading
from typing import TYPE_CHECKING

from duetune.files import write_whole
from duetune.storage.storage_port import VersionedContent, checked_name

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path


class MemoryStorage:
    """Files in a dictionary, which ``files`` shows. Its version is a hash, as in real stores."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self._lock = threading.Lock()

    @property
    def url(self) -> str:
        """Return a text for messages."""
        return "memory://"

    def read(self, name: str) -> bytes | None:
        """Return the content of a file; None if there is none."""
        return self.files.get(checked_name(name))

    def read_version(self, name: str) -> VersionedContent | None:
        """Return the content and version of a file; None if there is none."""
        content = self.read(name)
        return None if content is None else VersionedContent(content, _hash(content))

    def write(self, name: str, content: bytes) -> None:
        """Write a file; one of that name is replaced."""
        with self._lock:
            self.files[checked_name(name)] = bytes(content)

    def create(self, name: str, content: bytes) -> bool:
        """Write a file if there is none of that name, and return whether this call wrote it."""
        with self._lock:
            return self.files.setdefault(checked_name(name), given := bytes(content)) is given

    def replace(self, name: str, content: bytes, version: str) -> str | None:
        """Replace a file if it still has this version; return the new version, or None if not."""
        with self._lock:
            found = self.files.get(checked_name(name))
            if found is None or _hash(found) != version:
                return None
            self.files[name] = bytes(content)
        return _hash(content)

    def sizes(self, folder: str = "") -> dict[str, int]:
        """Return the name and size in bytes of every file below a folder."""
        within = f"{checked_name(folder)}/" if folder else ""
        with self._lock:
            return {
                name: len(content)
                for name, content in self.files.items()
                if name.startswith(within)
            }

    def delete(self, names: Iterable[str]) -> None:
        """Delete files; one that does not exist is no error."""
        for name in names:
            with self._lock:
                self.files.pop(checked_name(name), None)

    def upload(self, path: Path, name: str) -> str:
        """Take a local file, and return the SHA-256 of its bytes."""
        content = path.read_bytes()
        self.write(name, content)
        return _hash(content)

    def download(self, name: str, path: Path) -> str | None:
        """Write a local file, and return the SHA-256 of its bytes; None if there is none."""
        content = self.read(name)
        if content is None:
            return None
        write_whole(path, content)
        return _hash(content)


def _hash(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
