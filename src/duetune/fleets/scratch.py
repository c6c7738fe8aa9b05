"""The scratch folder of a node that does not see the job's folder."""

from __future__ import annotations

import contextlib
import fcntl
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_PREFIX = "duetune-node-"
_LOCK = ".lock"


@contextlib.contextmanager
def scratch_folder() -> Iterator[Path]:
    """Yield an empty folder for one node, in ``TMPDIR``; it is removed at the end.

    Folders that killed nodes of this user have left on this machine are removed, too. The lock of a
    folder shows that its node lives.
    """
    place = Path(tempfile.gettempdir())
    for left in place.glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError), (left / _LOCK).open("r+b") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(left, ignore_errors=True)
    folder = Path(tempfile.mkdtemp(prefix=_PREFIX))
    with (folder / _LOCK).open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)
