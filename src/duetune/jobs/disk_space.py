"""The disk space that a job needs: for checkpoints, its output, and a model from the hub."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from duetune.knowledge.configurations.configuration import Method

if TYPE_CHECKING:
    from collections.abc import Sequence

    from duetune.jobs.configure import TrainingPlan
    from duetune.knowledge.facts.model_facts import ModelFacts

STATE_BYTES = 12
"""Bytes of a trained parameter in a checkpoint: the weight and two moments, in 32 bits each."""

WEIGHT_BYTES, FETCHED_BYTES = 4, 2
"""Bytes of a parameter in the output, and of one on the hub."""


class DiskNeed(msgspec.Struct, frozen=True):
    """Bytes that a job writes under ``place``: at least ``least`` or it fails, at most ``most``."""

    place: Path
    least: int
    most: int


class Disk(msgspec.Struct, frozen=True):
    """A disk with the bytes that are free and those that a job needs on it."""

    place: Path
    free: int
    least: int
    most: int

    def __str__(self) -> str:
        return (
            f"with all checkpoints about {size_words(self.most)} are needed on the disk of "
            f"{self.place}, {size_words(self.free)} are free"
        )


def needed_space(
    plan: TrainingPlan, facts: ModelFacts, *, checkpoints: Path, keep: int, output: Path
) -> tuple[DiskNeed, DiskNeed]:
    """Return what the checkpoints and the output of a job need; plans call it."""
    trained = facts.parameters
    if plan.method != Method.FULL:
        trained = min(trained, plan.lora_r * facts.linear_widths * facts.layers)
    one, result = STATE_BYTES * trained, WEIGHT_BYTES * trained
    # A new checkpoint is complete before the oldest one is removed.
    return DiskNeed(checkpoints, one, (keep + 1) * one), DiskNeed(output, result, result)


def disks(needs: Sequence[DiskNeed]) -> list[Disk]:
    """Return the disks of the needs; places on the same disk share its space."""
    found: dict[int, Disk] = {}
    for need in needs:
        place = next(each for each in (need.place, *need.place.absolute().parents) if each.exists())
        number = place.stat().st_dev
        disk = found.get(number) or Disk(place, shutil.disk_usage(place).free, 0, 0)
        found[number] = msgspec.structs.replace(
            disk, least=disk.least + need.least, most=disk.most + need.most
        )
    return list(found.values())


def size_words(count: float) -> str:
    """Return a number of bytes in words: ``1.5 GB``."""
    for unit, size in (("GB", 1e9), ("MB", 1e6)):
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return f"{count / 1e3:.3g} kB"
