"""The files of a checkpoint: tensors as safetensors, and a manifest with size and hash of each.

The manifest shows whether a checkpoint is whole. It detects damage, not attacks: anyone who can
write to the folder can also write a manifest. Still, only files inside the checkpoint's folder are
ever read. Tensors are stored without pickle, so loading runs no code. Torch is imported only when
tensors are written or read. ``checkpoint`` decides when files are written and published.
"""

from __future__ import annotations

import hashlib
import stat
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

import msgspec

from duetune.errors import DuetuneError, MissingExtra
from duetune.files import write_new

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from types import ModuleType

    import torch

NAME = "manifest.json"
SCHEMA = 1

SHARD_BYTES = 256 << 20
_CHUNK = 1 << 20
_MOST_BYTES = 64 << 20


class Damaged(DuetuneError):
    """A checkpoint differs from its manifest."""

    code = "damaged_checkpoint"
    exit_code = 4


class ManifestEntry(msgspec.Struct, frozen=True, omit_defaults=True):
    """One file; ``path`` is relative to the checkpoint's folder, with '/' as separator.

    ``blob`` is the name of its content in object storage; "" in a folder.
    """

    path: str
    size: int
    sha256: str
    blob: str = ""


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """The list of a checkpoint's files.

    ``created`` is in wall seconds since the epoch; ``software`` holds the versions that wrote it.
    ``folders`` are named in object storage only, where an empty folder leaves no other trace.
    """

    schema: int = SCHEMA
    step: int
    epoch: int
    files: tuple[ManifestEntry, ...]
    created: float
    software: dict[str, str] = {}
    folders: tuple[str, ...] = ()


def write_entry(folder: Path, name: str, content: Iterable[bytes]) -> ManifestEntry:
    """Write a new file of a checkpoint, sync it to disk, and return its manifest entry."""
    digest, size = hashlib.sha256(), 0

    def counted() -> Iterator[bytes]:
        nonlocal size
        for piece in content:
            digest.update(piece)
            size += len(piece)
            yield piece

    write_new(folder / name, counted())
    return ManifestEntry(path=name, size=size, sha256=digest.hexdigest())


def read_manifest(folder: Path) -> Manifest:
    """Return a checkpoint's manifest; ``Damaged`` if it is not valid or names a file outside."""
    path = folder / NAME
    try:
        _regular(path)
        with path.open("rb") as file:
            content = file.read(_MOST_BYTES)
    except OSError as error:
        raise Damaged(f"{folder.name}: cannot read {NAME}: {error.strerror}") from error
    return decoded_manifest(folder.name, content)


def decoded_manifest(checkpoint: str, content: bytes) -> Manifest:
    """Return the manifest that ``content`` is; otherwise like ``read_manifest``."""
    try:
        manifest = msgspec.json.decode(content, type=Manifest)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise Damaged(f"{checkpoint}: {NAME} is not a manifest: {error}") from error
    if manifest.schema != SCHEMA:
        raise Damaged(f"{checkpoint}: manifest schema is {manifest.schema}, expected {SCHEMA}")
    for path in (*(entry.path for entry in manifest.files), *manifest.folders):
        _check_name(checkpoint, path)
    return manifest


def check_sizes(folder: Path, manifest: Manifest) -> None:
    """Check quickly that every file exists inside the folder and has its size."""
    root = folder.resolve()
    for entry in manifest.files:
        path = folder / entry.path
        try:
            size = _regular(path)
            inside = path.resolve(strict=True).is_relative_to(root)
        except (OSError, ValueError) as error:
            raise Damaged(f"{folder.name}: {entry.path!r}: {error}") from error
        if not inside:
            raise Damaged(f"{folder.name}: {entry.path} is outside the checkpoint")
        if size != entry.size:
            raise Damaged(f"{folder.name}: {entry.path} has {size} bytes, not {entry.size}")


def check_content(folder: Path, manifest: Manifest) -> None:
    """Check thoroughly that every file has exactly the bytes that were written."""
    check_sizes(folder, manifest)
    for entry in manifest.files:
        for _ in checked_pieces(folder, entry):
            pass


def checked_pieces(folder: Path, entry: ManifestEntry) -> Iterator[bytes]:
    """Yield the content of a file; raise ``Damaged`` at its end if the hash is wrong."""
    digest = hashlib.sha256()
    try:
        for piece in pieces(folder / entry.path):
            digest.update(piece)
            yield piece
    except OSError as error:
        raise Damaged(f"{folder.name}: {entry.path}: {error.strerror}") from error
    if digest.hexdigest() != entry.sha256:
        raise Damaged(f"{folder.name}: the content of {entry.path} has changed")


def pieces(path: Path) -> Iterator[bytes]:
    """Yield the content of a file in pieces of at most a megabyte."""
    with path.open("rb") as file:
        while piece := file.read(_CHUNK):
            yield piece


def _regular(path: Path) -> int:
    found = path.lstat()
    if not stat.S_ISREG(found.st_mode):
        raise OSError(0, "not a regular file")
    return found.st_size


def _check_name(checkpoint: str, path: str) -> None:
    name = PurePosixPath(path)
    plain = (
        name.parts
        and not name.is_absolute()
        and str(name) == path
        and ".." not in name.parts
        and "\\" not in path
        and "\0" not in path
        and path != NAME
    )
    if not plain:
        raise Damaged(f"{checkpoint}: the manifest names {path!r}, which is not allowed")


def encoded(arrays: Mapping[str, torch.Tensor], shard_bytes: int = SHARD_BYTES) -> Iterator[bytes]:
    """Yield the contents of safetensors files that hold the arrays.

    A file has at most ``shard_bytes`` or one tensor, so that they need little memory. Tensors that
    share memory are each written in full.
    """
    save = _safetensors().torch.save
    shard: dict[str, torch.Tensor] = {}
    memory: set[int] = set()
    size = 0
    for name, array in arrays.items():
        if shard and size + array.nbytes > shard_bytes:
            yield save(shard)
            shard, memory, size = {}, set(), 0
        plain = array.detach().to("cpu").contiguous()
        if plain.untyped_storage().data_ptr() in memory:
            plain = plain.clone()
        memory.add(plain.untyped_storage().data_ptr())
        shard[name] = plain
        size += array.nbytes
    yield save(shard)


def decoded(content: bytes) -> dict[str, torch.Tensor]:
    """Return the tensors of a safetensors file; ``ValueError`` if it is not valid."""
    library = _safetensors()
    try:
        tensors: dict[str, torch.Tensor] = library.torch.load(content)
    except library.SafetensorError as error:
        raise ValueError(str(error)) from error
    return tensors


def _safetensors() -> ModuleType:
    try:
        import safetensors.torch  # noqa: PLC0415 - imports torch
    except ImportError as error:
        raise MissingExtra("saving tensors", "train") from error
    return safetensors
