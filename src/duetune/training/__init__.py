"""Training that may be interrupted at any time and goes on where it was.

For a training script of your own: the contract with the node (``contract``, ``progress``), and
``DuetuneCallback`` for transformers' Trainer and TRL. None of it imports torch until it must.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from duetune.training.checkpoint import Checkpoint, CheckpointStore, StaleEpoch
from duetune.training.worker_contract import Contract, Notice, ProgressReporter, read_progress

if TYPE_CHECKING:
    from duetune.training.callback import DuetuneCallback

__all__ = [
    "Checkpoint",
    "CheckpointStore",
    "Contract",
    "DuetuneCallback",
    "Notice",
    "ProgressReporter",
    "StaleEpoch",
    "read_progress",
]


def __getattr__(name: str) -> type[DuetuneCallback]:
    if name == "DuetuneCallback":
        from duetune.training.callback import DuetuneCallback  # noqa: PLC0415 - imports torch

        return DuetuneCallback
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
