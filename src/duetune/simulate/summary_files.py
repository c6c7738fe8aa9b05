"""Results on disk: a file is refused before the work begins, and appears whole or not at all."""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from duetune.errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


def checked_target(path: Path | str, field: str, suffixes: Sequence[str]) -> Path:
    """``path``, if a file of such a name can be written there now."""
    target = Path(path)
    if target.suffix.lower() not in suffixes:
        raise InvalidInput(field, str(target), f"a file name that ends in {' or '.join(suffixes)}")
    if target.is_dir():
        raise InvalidInput(field, str(target), "a file; this is a folder")
    if not target.parent.is_dir():
        raise InvalidInput(field, str(target), "a file in a folder that exists")
    try:
        # Permissions alone do not tell (root, read-only mounts): only trying does.
        with tempfile.TemporaryFile(dir=target.parent):
            pass
        if target.exists() and not os.access(target, os.W_OK):
            raise PermissionError(None, "Permission denied")
    except OSError as error:
        raise _unwritable(field, target, error) from None
    return target


@contextlib.contextmanager
def whole_file(path: Path, field: str) -> Iterator[Path]:
    """A temporary name beside ``path``, which takes its place when the block ends well."""
    part = path.with_name(f".{path.stem}.{os.getpid()}.part{path.suffix}")
    try:
        yield part
        part.replace(path)
    except OSError as error:
        raise _unwritable(field, path, error) from None
    finally:
        part.unlink(missing_ok=True)


def _unwritable(field: str, path: Path, error: OSError) -> InvalidInput:
    reason = error.strerror or type(error).__name__
    return InvalidInput(field, str(path), f"a file that can be written ({reason})")
