"""The fitted model of a history, kept in a folder: fitting takes seconds, loading does not."""

from __future__ import annotations

import os
import zipfile
from contextlib import suppress
from typing import TYPE_CHECKING

from duetune.errors import InvalidInput
from duetune.knowledge.model.learned_model import FORMAT, KnowledgeModel
from duetune.knowledge.sources.learned import learnt_of

if TYPE_CHECKING:
    from pathlib import Path

    from duetune.knowledge.history import History

KEPT = 3
"""Fitted models that stay in the folder, the last ones used."""


def kept_model(folder: Path, history: History) -> KnowledgeModel:
    """Return the model of this history from ``folder``; it is fitted and left there if need be."""
    path = folder / f"{history.plausible.snapshot}-{FORMAT}.npz"
    # The one of this very history, or one that has missed but a few runs of it.
    for each in (path, *_kept(folder, f"*-{FORMAT}.npz")):
        # What is of another version or broken is fitted anew. Half a file is no archive.
        with suppress(InvalidInput):
            if zipfile.is_zipfile(each):
                found = KnowledgeModel.load(each)
                if learnt_of(history, found) is not None:
                    with suppress(OSError):
                        os.utime(each)
                    return found
    found = KnowledgeModel.fit(history)
    # A home that cannot be written to is no reason to give no answer: the next one fits again.
    with suppress(OSError):
        # One by one: parents that are made on the way would be open to others.
        for each in (folder.parent, folder):
            each.mkdir(parents=True, exist_ok=True, mode=0o700)
        found.save(path)
        for each in _kept(folder, "*.npz")[KEPT:]:
            each.unlink(missing_ok=True)
    return found


def _kept(folder: Path, pattern: str) -> list[Path]:
    """Models, newest first. Names that begin with a dot are drafts that others are writing."""
    if not folder.is_dir():
        return []
    found = (each for each in folder.glob(pattern) if not each.name.startswith("."))
    return sorted(found, key=_age)


def _age(path: Path) -> float:
    """Newest first; one that has gone meanwhile is the oldest."""
    try:
        return -path.stat().st_mtime
    except OSError:
        return 0.0
