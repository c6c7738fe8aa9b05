"""Agreement among the ranks of one training command on one node (``torchrun``).

A command with a single process is its own first rank, and all functions return at once. The group
of the built-in trainer, which spans nodes, is in ``group``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from duetune.errors import MissingExtra

try:
    import torch
    from torch import distributed
except ImportError as error:
    raise MissingExtra("training", "train") from error

if TYPE_CHECKING:
    from collections.abc import Sequence


def several() -> bool:
    """Return whether the command has more than one process."""
    return (
        distributed.is_available()
        and distributed.is_initialized()
        and distributed.get_world_size() > 1
    )


def first() -> bool:
    """Return whether this process is the one that reports and publishes."""
    return not several() or distributed.get_rank() == 0


def wait() -> None:
    """Wait until all ranks have called this."""
    if several():
        distributed.barrier()


def any_of(flags: Sequence[bool], device: torch.device) -> tuple[bool, ...]:
    """Return each flag, true if it is true on any rank. All ranks must call this."""
    if not several():
        return tuple(flags)
    votes = torch.tensor([int(flag) for flag in flags], device=device)
    distributed.all_reduce(votes, op=distributed.ReduceOp.MAX)
    return tuple(bool(vote) for vote in votes.tolist())


def from_first(text: str) -> str:
    """Return the text of the first rank. All ranks must call this."""
    texts = [text]
    if several():
        distributed.broadcast_object_list(texts, src=0)
    return texts[0]
