"""The processes of one training command on one node, where there are several (``torchrun``)."""

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
    return (
        distributed.is_available()
        and distributed.is_initialized()
        and distributed.get_world_size() > 1
    )


def first() -> bool:
    """Whether this process speaks for all of them."""
    return not several() or distributed.get_rank() == 0


def wait() -> None:
    """Until all are here."""
    if several():
        distributed.barrier()


def any_of(flags: Sequence[bool], device: torch.device) -> tuple[bool, ...]:
    """Each flag, true where it is true in any process. All must call it."""
    if not several():
        return tuple(flags)
    votes = torch.tensor([int(flag) for flag in flags], device=device)
    distributed.all_reduce(votes, op=distributed.ReduceOp.MAX)
    return tuple(bool(vote) for vote in votes.tolist())


def told_by_first(text: str) -> str:
    """What the first process says. All must call it."""
    if not several():
        return text
    told = [text]
    distributed.broadcast_object_list(told, src=0)
    return told[0]
