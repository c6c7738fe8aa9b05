"""Turns the URL of a storage into an object. The kind of storage follows from the scheme."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, unquote, urlsplit

from duetune.errors import InvalidInput
from duetune.storage.folder_storage import FolderStorage

if TYPE_CHECKING:
    from duetune.storage.storage_port import Storage

BUCKETS = ("s3", "gs", "az")
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_SECRET = re.compile(r"secret|token|password|credential|key")
_ALLOWED = "a path, or a URL of file://, s3://, gs:// or az://"


def is_url(place: str) -> bool:
    """Return whether ``place`` has a scheme; anything else is the path of a folder."""
    return _URL.match(place) is not None


def place_below(place: str, name: str) -> str:
    """Return the path or URL of a folder below ``place``; the options of a URL stay."""
    bare, mark, options = place.partition("?") if is_url(place) else (place, "", "")
    return f"{bare.rstrip('/')}/{name}{mark}{options}"


def open_storage(place: str | Path) -> Storage:
    """Return the storage at a path or URL. Nothing is read or written yet.

    ``s3://bucket/prefix?endpoint=...&region=...`` sets options of the store; credentials come from
    the environment only. ``InvalidInput`` if the URL cannot be used, ``MissingExtra`` if a bucket
    is named and the extra ``storage`` is not installed.
    """
    if isinstance(place, Path) or not is_url(place):
        if not str(place):
            raise InvalidInput("storage", place, _ALLOWED)
        return FolderStorage(Path(place))
    parts = urlsplit(place)
    if parts.scheme == "file":
        if parts.netloc not in {"", "localhost"} or not parts.path.strip("/"):
            raise InvalidInput("storage", place, "file:///PATH of a folder on this machine")
        return FolderStorage(Path(unquote(parts.path)))
    bare = f"{parts.scheme}://{parts.netloc}{parts.path}".rstrip("/")
    if parts.scheme not in BUCKETS:
        raise InvalidInput("storage", bare, _ALLOWED)
    if not parts.netloc or "@" in parts.netloc:
        raise InvalidInput("storage", bare, f"{parts.scheme}://BUCKET/PREFIX")
    options = dict(parse_qsl(parts.query))
    for name in options:
        if _SECRET.search(name.lower()):
            allowed = "options without credentials; set those in the environment"
            raise InvalidInput("storage", f"{bare}?{name}=...", allowed)
    from duetune.storage.object_storage import ObjectStorage  # noqa: PLC0415 - optional

    return ObjectStorage(bare, options)
