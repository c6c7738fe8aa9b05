"""The port of storage: named files with atomic writes, creation with one winner, and swaps.

A name is a relative path with '/' as separator, such as ``blobs/4f2a``. Every call is atomic: a
reader sees the old content or the new one. A call that fails raises ``StorageError``; it is then
unknown whether it had an effect. ``duetune.testing.StorageContract`` tests an implementation.
"""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import msgspec

from duetune.errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

CHUNK = 8 << 20
"""Bytes of a piece when a file is sent or received."""


class VersionedContent(msgspec.Struct, frozen=True):
    """A file's content and its version, which ``Storage.replace`` takes.

    Stores derive the version from the content. So a file that is replaced by its version should
    never have the same content twice.
    """

    content: bytes
    version: str


@runtime_checkable
class Storage(Protocol):
    """Named files at a URL. All methods may be called by several threads and processes."""

    @property
    def url(self) -> str:
        """Return the URL without credentials, for messages."""
        ...

    def read(self, name: str) -> bytes | None:
        """Return the content of a small file; None if there is none."""
        ...

    def read_version(self, name: str) -> VersionedContent | None:
        """Return the content and version of a small file; None if there is none."""
        ...

    def write(self, name: str, content: bytes) -> None:
        """Write a file; one of that name is replaced."""
        ...

    def create(self, name: str, content: bytes) -> bool:
        """Write a file if there is none of that name, and return whether this call wrote it.

        At most one of several callers gets True. After a lost answer the writer itself may get
        False: it reads the file to find out.
        """
        ...

    def replace(self, name: str, content: bytes, version: str) -> str | None:
        """Replace a file if it still has this version; return the new version, or None if not.

        After a lost answer the writer itself may get None: it reads the file to find out.
        """
        ...

    def sizes(self, folder: str = "") -> dict[str, int]:
        """Return the name and size in bytes of every file below a folder."""
        ...

    def delete(self, names: Iterable[str]) -> None:
        """Delete files; one that does not exist is no error."""
        ...

    def upload(self, path: Path, name: str) -> str:
        """Send a local file of any size, and return the SHA-256 of the bytes that were sent."""
        ...

    def download(self, name: str, path: Path) -> str | None:
        """Receive a file of any size, and return the SHA-256 of its bytes; None if there is none.

        The local file appears at once as a whole. Its folder must exist.
        """
        ...


def checked_name(name: str) -> str:
    """Return ``name`` if a file may have it; ``InvalidInput`` otherwise."""
    path = PurePosixPath(name)
    plain = (
        path.parts
        and str(path) == name
        and not path.is_absolute()
        and not any(part.startswith(".") for part in path.parts)
        and name.isprintable()
        and "\\" not in name
    )
    if not plain:
        allowed = "a relative path whose parts do not begin with a dot"
        raise InvalidInput("name", name, allowed)
    return name
