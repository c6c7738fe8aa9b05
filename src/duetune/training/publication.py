"""The result of a job: one member writes it once, and members that come later find it.

Checkpoints during training are in ``checkpoint``.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import shutil
from typing import TYPE_CHECKING

import msgspec

from duetune.files import PRIVATE_FOLDER, sync_file, sync_folder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

RESULT_FILE = "duetune.json"


class PublishedResult(msgspec.Struct, frozen=True, kw_only=True):
    """The file ``duetune.json`` beside the weights.

    - ``loss``, ``last_eval_loss``: those of the last step.
    - ``eval_loss``: that of the published weights; they are those after ``best_step``, or those of
      the last step if that is 0.
    - ``stopped``: why training has ended early; "" if it has not.
    """

    steps: int
    tokens: int
    loss: float | None = None
    eval_loss: float | None = None
    base_eval_loss: float | None = None
    eval_rows: int = 0
    warning: str = ""
    last_eval_loss: float | None = None
    best_step: int = 0
    stopped: str = ""


def published(output: Path) -> PublishedResult | None:
    """Return the published result; None if there is none or it is incomplete."""
    try:
        return msgspec.json.decode((output / RESULT_FILE).read_bytes(), type=PublishedResult)
    except (OSError, msgspec.MsgspecError):
        return None


def publish(
    output: Path, write: Callable[[Path], None], result: PublishedResult
) -> PublishedResult:
    """Publish a result and return it, or return the one that is there already.

    ``write`` fills a temporary folder, which one rename makes the output. Anything else at
    ``output`` is renamed to ``*.before``.
    """
    draft = output.with_name(f".{output.name}.{os.getpid()}-{secrets.token_hex(4)}")
    try:
        draft.mkdir(parents=True, mode=PRIVATE_FOLDER)
        write(draft)
        (draft / RESULT_FILE).write_bytes(msgspec.json.format(msgspec.json.encode(result)) + b"\n")
        for path in sorted(draft.rglob("*")):
            (sync_folder if path.is_dir() else sync_file)(path)
        sync_folder(draft)
        if (before := published(output)) is not None:
            return before
        if output.exists():
            # An empty folder, or files of another program.
            output.rename(output.with_name(f"{output.name}.{secrets.token_hex(4)}.before"))
        draft.rename(output)
        sync_folder(output.parent)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return result


@contextlib.contextmanager
def only_publisher(output: Path, poll: Callable[[], None]) -> Iterator[None]:
    """Make this process the only one that publishes; the lock is released if it dies.

    ``poll`` is called while another process holds the lock, and may raise to stop waiting. On a
    file system without locks all processes enter, and the first rename wins.
    """
    output.parent.mkdir(parents=True, exist_ok=True)
    with (output.parent / f".{output.name}.lock").open("wb") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                poll()
            except OSError:
                break
        yield
