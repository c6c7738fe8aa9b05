"""How a member enters its job: it loads the newest checkpoint and joins the elastic group.

The built-in trainer (``session``) and Trainer scripts (``trainer_member``) begin this way.
"""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING

from duetune.core.node_contract import CHECKPOINT_KEEP, RENDEZVOUS
from duetune.errors import InvalidInput
from duetune.training.authentication import job_secret
from duetune.training.checkpoint import CheckpointStore, Damaged
from duetune.training.group import ElasticGroup, GroupPlace, GroupSettings, SoloGroup

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import torch

    from duetune.training.checkpoint import Checkpoint
    from duetune.training.group import Group
    from duetune.training.transfer import State
    from duetune.training.worker_contract import Contract, Notice

_log = logging.getLogger(__name__)


def checkpoint_store(
    contract: Contract, environ: Mapping[str, str] = os.environ
) -> CheckpointStore:
    """Return the job's checkpoints; ``DUETUNE_CHECKPOINT_KEEP`` of them are kept, by default 2."""
    text = environ.get(CHECKPOINT_KEEP, "")
    keep = int(text) if text.isdigit() and int(text) > 0 else 2
    return CheckpointStore(contract.checkpoints, contract.epoch, keep=keep)


def restore(store: CheckpointStore, state: State) -> Checkpoint | None:
    """Load the newest checkpoint into ``state`` and return it; None if there is none."""
    while (found := store.latest()) is not None:
        try:
            _load(found, state)
        except Damaged:
            # The leader has just replaced it by a newer one.
            continue
        _log.info("continuing from step %d", found.step)
        return found
    return None


def join(
    contract: Contract,
    store: CheckpointStore,
    restored: Checkpoint | None,
    state: State,
    device: torch.device,
    notice: Notice,
    touched: Callable[[], None],
) -> Group:
    """Return this member's group; without a coordinator it is a group of one.

    - ``restored``: the checkpoint from which ``state`` was loaded, if any.
    - ``touched``: called whenever the main thread is active.
    """
    name = f"{contract.epoch:08d}.{contract.node}"
    file = contract.coordinator_file
    if file is None:
        return SoloGroup(name, state, touched)

    def take(checkpoint: str) -> None:
        found = store.named(checkpoint)
        if found is None:
            raise FileNotFoundError(f"the checkpoint {checkpoint} is gone")
        try:
            _load(found, state)
        except Damaged as damage:
            raise OSError(str(damage)) from damage

    return ElasticGroup(
        GroupPlace(
            coordinator=lambda: file.read_text("utf-8").strip(),
            secret=job_secret(os.environ),
            folder=contract.folder / RENDEZVOUS,
        ),
        name,
        state,
        device,
        restored="" if restored is None else restored.path.name,
        restore=take,
        leaving=lambda: notice.given,
        touched=touched,
        settings=GroupSettings.from_environment(os.environ),
    )


def _load(checkpoint: Checkpoint, state: State) -> None:
    """Load a checkpoint; every byte is compared with the manifest."""
    arrays, document = checkpoint.load()
    try:
        with state.lock:
            state.load(arrays, document)
    except (ValueError, KeyError) as error:
        allowed = f"checkpoints of this training task ({error})"
        raise InvalidInput("checkpoints", str(checkpoint.path), allowed) from None
