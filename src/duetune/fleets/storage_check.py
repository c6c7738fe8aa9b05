"""What ``duetune fleet check`` finds out about the storage of a fleet."""

from __future__ import annotations

import secrets

from duetune.errors import DuetuneError
from duetune.files import remove_tree
from duetune.fleets.driver import Finding
from duetune.storage import open_storage
from duetune.storage.folder_storage import FolderStorage

CHECK_S = 10.0
"""Seconds for which a request of the check is repeated."""


def check_storage(place: str) -> Finding:
    """Return whether this machine can use a storage as jobs do: write, read back, create a file
    only once, swap it by its version, list and delete it. It leaves nothing behind.
    """
    what = f"storage {place} can be written, read, listed and deleted, and creates a file only once"
    try:
        return Finding(what, _wrong(place))
    except (DuetuneError, OSError) as error:
        return Finding(what, str(error))


def _wrong(place: str) -> str:
    storage = open_storage(place, retry_s=CHECK_S)
    folder = f"check-{secrets.token_hex(8)}"
    name = f"{folder}/file"
    try:
        storage.write(name, b"first")
        found = storage.read_version(name)
        if found is None or found.content != b"first":
            return "what was written is not there"
        if storage.create(name, b"second"):
            return "it ignores the condition that a file must not exist (If-None-Match)"
        if storage.replace(name, b"third", found.version) is None:
            return "a file that has not changed could not be replaced by its version"
        if storage.replace(name, b"fourth", found.version) is not None:
            return "it ignores the condition that a file must not have changed (If-Match)"
        if list(storage.sizes(folder)) != [name]:
            return "what was written is not listed"
    finally:
        storage.delete([name])
        left = storage.read(name)
        if isinstance(storage, FolderStorage):
            remove_tree(storage.root / folder)  # the folder itself, and a lock
    return "" if left is None else "a deleted file is still there"
