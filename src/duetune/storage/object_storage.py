"""Storage in a bucket of S3, Google Cloud Storage or Azure, through obstore.

Creation and replacement are conditional requests (``If-None-Match``, ``If-Match``), which the
service decides.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import re
from datetime import timedelta
from typing import TYPE_CHECKING, cast

from duetune.errors import InvalidInput, MissingExtra, StorageError
from duetune.files import OWNER, whole_file
from duetune.storage.storage_port import CHUNK, VersionedContent, checked_name

try:
    import obstore
    from obstore.exceptions import (
        AlreadyExistsError,
        BaseError,
        PermissionDeniedError,
        PreconditionError,
        UnauthenticatedError,
        UnknownConfigurationKeyError,
    )
    from obstore.store import from_url
except ImportError as error:
    raise MissingExtra("storage in a bucket", "storage") from error

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    from obstore.store import ClientConfig, S3Config

_RETRIES = 6
_TIMEOUT_S = 300
_CONNECT_S = 5
_NO_BUCKET = re.compile(r"NoSuchBucket|ContainerNotFound|bucket does not exist")
_NO_CREDENTIALS = re.compile(
    r"ExpiredToken|TokenRefreshRequired|InvalidAccessKeyId|SignatureDoesNotMatch|InvalidToken|"
    r"AccessDenied|InvalidClientTokenId|169\.254\.169\.254|metadata\.google|"
    r"\b401\b|\b403\b|[Cc]redential"
)


class ObjectStorage:
    """Files below ``url`` (``s3://bucket/prefix``).

    ``options`` are settings of the store by obstore's names, such as ``endpoint`` and ``region``.
    Everything else comes from the environment variables of the service: ``AWS_``, ``GOOGLE_`` or
    ``AZURE_``. Requests that fail are repeated for ``retry_s`` seconds.
    """

    def __init__(self, url: str, options: Mapping[str, str], *, retry_s: float) -> None:
        self._url = url
        try:
            # The library lists its options by service; it refuses those that it does not know.
            config = cast("S3Config", dict(options))
            client: ClientConfig = {
                # Who cannot wait long for an answer has small files only.
                "timeout": timedelta(seconds=min(_TIMEOUT_S, 6 * retry_s)),
                "connect_timeout": timedelta(seconds=_CONNECT_S),
            }
            if options.get("endpoint", "").startswith("http://"):
                client["allow_http"] = True
            self._store = from_url(
                url,
                config=config,
                client_options=client,
                retry_config={
                    "max_retries": _RETRIES,
                    "retry_timeout": timedelta(seconds=retry_s),
                },
            )
        except UnknownConfigurationKeyError:
            unknown = ", ".join(sorted(options))
            allowed = f"options that obstore knows for {url.partition(':')[0]}"
            raise InvalidInput("storage", f"{url}?{unknown}", allowed) from None
        except (BaseError, ValueError) as error:
            raise InvalidInput("storage", url, f"a usable URL ({_line(error)})") from None

    @property
    def url(self) -> str:
        """Return the URL without options."""
        return self._url

    def read(self, name: str) -> bytes | None:
        """Return the content of a small file; None if there is none."""
        found = self.read_version(name)
        return None if found is None else found.content

    def read_version(self, name: str) -> VersionedContent | None:
        """Return the content and version of a small file; None if there is none."""
        content, version = None, ""
        with self._errors():
            try:
                found = obstore.get(self._store, checked_name(name))
                version = _version(found.meta["e_tag"], found.meta["version"])
                content = bytes(found.bytes())
            except FileNotFoundError as error:
                self._absent(error)
        return None if content is None else VersionedContent(content, version)

    def write(self, name: str, content: bytes) -> None:
        """Write a file; one of that name is replaced."""
        with self._errors():
            obstore.put(self._store, checked_name(name), content, chunk_size=CHUNK)

    def create(self, name: str, content: bytes) -> bool:
        """Write a file if there is none of that name, and return whether this call wrote it."""
        with self._errors():
            try:
                obstore.put(self._store, checked_name(name), content, mode="create")
            except AlreadyExistsError:
                return False
        return True

    def replace(self, name: str, content: bytes, version: str) -> str | None:
        """Replace a file if it still has this version; return the new version, or None if not."""
        changed = None
        with self._errors():
            try:
                mode = json.loads(version)
                new = obstore.put(self._store, checked_name(name), content, mode=mode)
                changed = _version(new["e_tag"], new["version"])
            except (PreconditionError, FileNotFoundError) as error:
                self._absent(error)
        return changed

    def sizes(self, folder: str = "") -> dict[str, int]:
        """Return the name and size in bytes of every file below a folder."""
        sizes: dict[str, int] = {}
        with self._errors():
            pages = obstore.list(self._store, f"{checked_name(folder)}/" if folder else None)
            sizes.update({found["path"]: found["size"] for page in pages for found in page})
        return sizes

    def delete(self, names: Iterable[str]) -> None:
        """Delete files; one that does not exist is no error."""
        with self._errors():
            try:
                obstore.delete(self._store, [checked_name(name) for name in names])
            except FileNotFoundError as error:
                self._absent(error)

    def upload(self, path: Path, name: str) -> str:
        """Send a local file of any size, and return the SHA-256 of the bytes that were sent."""
        digest = hashlib.sha256()

        def pieces() -> Iterator[bytes]:
            with path.open("rb") as file:
                while piece := file.read(CHUNK):
                    digest.update(piece)
                    yield piece

        # A small file takes one request; pieces always take three or more.
        content = pieces()
        first = next(content, b"")
        if len(first) < CHUNK:
            self.write(name, first)
            return digest.hexdigest()
        with self._errors():
            whole = itertools.chain((first,), content)
            obstore.put(self._store, checked_name(name), whole, chunk_size=CHUNK)
        return digest.hexdigest()

    def download(self, name: str, path: Path) -> str | None:
        """Receive a file of any size and return the SHA-256 of its bytes; None if there is none."""
        pieces = self._pieces(checked_name(name))
        if (first := next(pieces, None)) is None:
            return None
        digest = hashlib.sha256()
        with whole_file(path, mode=OWNER) as draft, draft.open("wb") as file:
            for piece in itertools.chain((first,), pieces):
                digest.update(piece)
                file.write(piece)
        return digest.hexdigest()

    def _pieces(self, name: str) -> Iterator[bytes]:
        """Yield an empty piece and then the content of a file; nothing if there is none."""
        with self._errors():
            try:
                found = obstore.get(self._store, name)
            except FileNotFoundError as error:
                self._absent(error)
                return
            yield b""
            for piece in found.stream(min_chunk_size=CHUNK):
                yield bytes(piece)

    def _absent(self, error: Exception) -> None:
        """Return None if a file is missing; raise if the bucket is."""
        if _NO_BUCKET.search(str(error)):
            raise StorageError(self._url, "the bucket does not exist", retry=False) from None

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        """Turn the errors of the library into one line that says what to do."""
        try:
            yield
        except (BaseError, FileNotFoundError, PermissionError, TimeoutError) as error:
            self._absent(error)
            denied = isinstance(
                error, (PermissionDeniedError, UnauthenticatedError)
            ) or _NO_CREDENTIALS.search(str(error))
            if denied:
                reason = f"the credentials are missing, expired or not sufficient ({_line(error)})"
                raise StorageError(self._url, reason, retry=False) from None
            raise StorageError(self._url, _line(error), retry=True) from None


def _version(e_tag: str | None, version: str | None) -> str:
    known = {"e_tag": e_tag, "version": version}
    return json.dumps({name: value for name, value in known.items() if value is not None})


def _line(error: Exception) -> str:
    """Return what an error says, without the library's debug output, in at most 300 characters."""
    text = " ".join(str(error).partition("\n\nDebug source")[0].split())
    return text if len(text) <= 300 else f"{text[:297]}..."
