"""Small JSON files that others read while they are replaced."""

from __future__ import annotations

import os
import secrets
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from pathlib import Path


def write_document(path: Path, document: msgspec.Struct | bytes, *, mode: int = 0o644) -> None:
    """The old file or the new one, never half of it."""
    content = document if isinstance(document, bytes) else msgspec.json.encode(document)
    draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise
