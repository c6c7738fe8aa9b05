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
RETRY_S = 60.0
"""Seconds for which a request that fails is repeated, unless a caller cannot wait that long."""
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


def checked_place(place: str) -> str:
    """Return ``place`` if it is an absolute path or a URL that could be opened.

    Nothing is imported or reached. ``InvalidInput`` says what is wrong with it.
    """
    if not is_url(place):
        if not Path(place).is_absolute():
            raise InvalidInput("storage", place, f"{_ALLOWED}; a path must be absolute")
        return place
    _parsed(place)
    return place


def open_storage(place: str | Path, *, retry_s: float = RETRY_S) -> Storage:
    """Return the storage at a path or URL. Nothing is read or written yet.

    ``s3://bucket/prefix?endpoint=...&region=...`` sets options of the store; credentials come from
    the environment only. Requests that fail are repeated for ``retry_s`` seconds. ``InvalidInput``
    if the URL cannot be used, ``MissingExtra`` if a bucket is named and the extra ``storage`` is
    not installed.
    """
    if isinstance(place, Path) or not is_url(place):
        if not str(place):
            raise InvalidInput("storage", place, _ALLOWED)
        return FolderStorage(Path(place))
    bare, options = _parsed(place)
    if bare.startswith("file:"):
        return FolderStorage(Path(unquote(urlsplit(bare).path)))
    from duetune.storage.object_storage import ObjectStorage  # noqa: PLC0415 - optional

    return ObjectStorage(bare, options, retry_s=retry_s)


def _parsed(place: str) -> tuple[str, dict[str, str]]:
    """Return a URL without its options, and the options."""
    parts = urlsplit(place)
    bare = f"{parts.scheme}://{parts.netloc}{parts.path}".rstrip("/")
    if parts.scheme == "file":
        if parts.netloc not in {"", "localhost"} or not parts.path.strip("/"):
            raise InvalidInput("storage", place, "file:///PATH of a folder on this machine")
        return bare, {}
    if parts.scheme not in BUCKETS:
        raise InvalidInput("storage", bare, _ALLOWED)
    if not parts.netloc or "@" in parts.netloc:
        raise InvalidInput("storage", bare, f"{parts.scheme}://BUCKET/PREFIX")
    options = dict(parse_qsl(parts.query))
    for name in options:
        if _SECRET.search(name.lower()):
            allowed = "options without credentials; set those in the environment"
            raise InvalidInput("storage", f"{bare}?{name}=...", allowed)
    return bare, options
