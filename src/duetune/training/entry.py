"""How a member enters its job: it loads the newest checkpoint and joins the elastic group.

The built-in trainer (``session``) and Trainer scripts (``trainer_member``) begin this way.
"""

from __future__ import annotations

import functools
import logging
import os
from typing import TYPE_CHECKING

from duetune.core.node_contract import CHECKPOINT_KEEP
from duetune.errors import InvalidInput
from duetune.training.authentication import job_secret
from duetune.training.checkpoint import CheckpointStore, Damaged
from duetune.training.group import (
    ElasticGroup,
    GroupBroken,
    GroupPlace,
    GroupSettings,
    SoloGroup,
)
from duetune.training.peer_links import PeerLinks
from duetune.training.siblings import Restore, Siblings

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

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


def restore(
    store: CheckpointStore, state: State, siblings: Siblings | None = None
) -> Checkpoint | None:
    """Load the newest checkpoint into ``state`` and return it; None if there is none."""
    siblings = siblings or Siblings()
    while (found := store.latest()) is not None:
        load = functools.partial(load_named, store, state, found.path.name)
        try:
            siblings.together(Restore(found.path.name), load)
        except GroupBroken:
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
    siblings: Siblings | None = None,
    shard: State | None = None,
    pace: Callable[[], float] = lambda: 0.0,
) -> Group:
    """Return this member's group; without a coordinator it is a group of one.

    - ``restored``: the checkpoint from which ``state`` was loaded, if any.
    - ``touched``: called whenever the main thread is active.
    - ``pace``: returns this member's tokens per second, or 0.
    - ``siblings``: the other processes of this member; ``shard`` is this process's own state.
    """
    name = f"{contract.epoch:08d}.{contract.node}"
    file = contract.coordinator_file
    if file is None:
        return SoloGroup(name, state, touched)
    return ElasticGroup(
        _place(file),
        name,
        shard or state,
        device,
        restored="" if restored is None else restored.path.name,
        restore=lambda checkpoint: load_named(store, state, checkpoint),
        leaving=lambda: notice.given,
        touched=touched,
        pace=pace,
        settings=GroupSettings.from_environment(os.environ),
        siblings=siblings,
    )


def follow(
    contract: Contract,
    store: CheckpointStore,
    state: State,
    shard: State,
    touched: Callable[[], None],
    number: int,
) -> PeerLinks | None:
    """Return the connections of a member's process ``number``; None without a coordinator."""
    if (file := contract.coordinator_file) is None:
        return None
    return PeerLinks(
        _place(file),
        shard,
        restore=lambda checkpoint: load_named(store, state, checkpoint),
        touched=touched,
        settings=GroupSettings.from_environment(os.environ),
        number=number,
    )


def _place(file: Path) -> GroupPlace:
    return GroupPlace(
        coordinator=lambda: file.read_text("utf-8").strip(), secret=job_secret(os.environ)
    )


def load_named(store: CheckpointStore, state: State, checkpoint: str) -> None:
    """Load a checkpoint into ``state``; ``GroupBroken`` if it is gone or damaged."""
    found = store.named(checkpoint)
    if found is None:
        raise GroupBroken(f"the checkpoint {checkpoint} is gone")
    try:
        _load(found, state)
    except Damaged as damage:
        raise GroupBroken(str(damage)) from damage


def _load(checkpoint: Checkpoint, state: State) -> None:
    """Load a checkpoint; every byte is compared with the manifest."""
    arrays, document = checkpoint.load()
    try:
        with state.lock:
            state.load(arrays, document)
    except (ValueError, KeyError) as error:
        allowed = f"checkpoints of this training task ({error})"
        raise InvalidInput("checkpoints", str(checkpoint.path), allowed) from None
