"""Training that can be interrupted at any time and continues from its last checkpoint.

These names are for your own training scripts: the contract with the node (``Contract``,
``Notice``), progress reports, checkpoints, and ``elastic`` for the Trainer of transformers and TRL.
Importing this package does not import torch. The built-in trainer starts in ``worker``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from duetune.training.checkpoint import Checkpoint, CheckpointStore, StaleEpoch
from duetune.training.worker_contract import Contract, Notice, ProgressReporter, read_progress

if TYPE_CHECKING:
    from duetune.training.callback import DuetuneCallback
    from duetune.training.elastic_trainer import elastic

__all__ = [
    "Checkpoint",
    "CheckpointStore",
    "Contract",
    "DuetuneCallback",
    "Notice",
    "ProgressReporter",
    "StaleEpoch",
    "elastic",
    "read_progress",
]


def __getattr__(name: str) -> object:
    # Imported on first use, because they import torch and transformers.
    if name == "DuetuneCallback":
        from duetune.training.callback import DuetuneCallback  # noqa: PLC0415

        return DuetuneCallback
    if name == "elastic":
        from duetune.training.elastic_trainer import elastic  # noqa: PLC0415

        return elastic
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
