"""Progress and hazard by way of the jobs' folders, for fleets that share a disk with us."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from duetune.core.node_contract import HAZARD, PROGRESS
from duetune.training.hazard import Hazard, write_hazard
from duetune.training.worker_contract import read_progress

if TYPE_CHECKING:
    from pathlib import Path

    from duetune.core.ports import Clock
    from duetune.core.progress import Progress

PRIOR_NODE_S = 8 * 3600.0


class FolderReports:
    """One folder per job under ``jobs``. Workers write wall time; ``clock`` may run faster."""

    def __init__(self, jobs: Path, clock: Clock, speed: float) -> None:
        self._jobs, self._clock, self._speed = jobs, clock, speed

    def read(self, job: str) -> tuple[Progress, float] | None:
        path = self._jobs / job / PROGRESS
        progress = read_progress(path)
        if progress is None:
            return None
        # Who does not say when has said so when the file was written.
        said_at = progress.at or _written_at(path)
        age_s = max(0.0, time.time() - said_at)
        return progress, self._clock.now() - age_s * self._speed

    def hazard(self, job: str, lived_s: float, losses: int) -> None:
        # Before anything was lost, a node is taken to live for eight of the fleet's hours.
        prior = Hazard(prior_node_s=PRIOR_NODE_S / self._speed)
        seen = prior.seen(losses, lived_s / self._speed)
        write_hazard(self._jobs / job / HAZARD, seen.mean_time_between_losses_s())


def _written_at(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return time.time()
