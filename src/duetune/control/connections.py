"""What the controller is connected to: the outside world, the journal and the learner.

``FolderReports`` exchanges files with the workers; fleets and market feeds are in other rooms.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple, Protocol

from duetune.core.node_contract import HAZARD, PROGRESS
from duetune.core.progress import Progress
from duetune.training.hazard import Hazard, write_hazard
from duetune.training.metrics import MetricRow, MetricsFile
from duetune.training.task import TASK_FILE
from duetune.training.worker_contract import read_progress
from duetune.wall_clock import steady_now, wall_now

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from duetune.core.events import Learned, Recorded, UserRequest
    from duetune.core.ports import Clock, Fleet, Journal, MarketFeed

PRIOR_NODE_S = 8 * 3600.0
"""Assumed lifetime of a node before any was lost: eight hours of the fleet's clock."""


class Reports(Protocol):
    """The exchange of reports with a job's workers. Times are those of the fleet's clock."""

    def read(self, job: str) -> tuple[Progress, float] | None:
        """Return the latest progress report and when it was made; called in every turn."""

    def hazard(self, job: str, lived_s: float, losses: int) -> None:
        """Tell the workers how long nodes lived in all, in seconds, and how many were lost."""


class RequestInbox(Protocol):
    """Requests that users made in other processes, as (number, job, request)."""

    def pending(self) -> Sequence[tuple[int, str, UserRequest]]:
        """Return the requests that are not in the journal yet, oldest first."""

    def taken(self, ids: Sequence[int]) -> None:
        """Remove requests that will never enter the journal, because their job is over."""


class Learning(Protocol):
    """Learns from jobs that are over."""

    def learn(self, job: str, story: Sequence[Recorded]) -> Learned:
        """Return what the job's events teach; called once after its end, again after a crash."""


class World(NamedTuple):
    """The outside world.

    ``speed``: seconds of ``clock`` per wall second.
    ``revive``: called when the fleet does not answer.
    """

    fleet: Fleet
    feed: MarketFeed
    clock: Clock
    reports: Reports
    speed: float = 1.0
    revive: Callable[[], None] = lambda: None


class Books(NamedTuple):
    """What is kept on disk about the jobs of one fleet.

    ``requests``: those for these jobs alone; another controller has the others.
    ``active``: returns the jobs that are not over or not learned from.
    """

    journal: Journal
    requests: RequestInbox
    active: Callable[[], Sequence[str]]


class _Look(NamedTuple):
    """A look at a job's report; ``at`` and ``made``, when it was made, are steady time."""

    at: float
    progress: Progress | None
    made: float


class FolderReports:
    """The ``Reports`` of fleets that share a disk with the controller: files in the job's folder.

    Workers write wall time; ``clock`` may run ``speed`` times faster. A report that was not there
    at the last look was made after it, whatever the wall clock was set to in between.
    """

    def __init__(self, jobs: Path, clock: Clock, speed: float) -> None:
        self._jobs, self._clock, self._speed = jobs, clock, speed
        self._looks: dict[str, _Look] = {}

    def read(self, job: str) -> tuple[Progress, float] | None:
        """Return the progress file of a job and its time; None if there is no valid file."""
        path = self._jobs / job / PROGRESS
        last, now = self._looks.get(job), steady_now()
        progress = read_progress(path)
        if progress is None:
            self._looks[job] = _Look(now, None, 0.0)
            return None
        if last is not None and progress == last.progress:
            made = last.made
        else:
            # A report without a time was made when its file was written.
            age_s = max(0.0, wall_now() - (progress.at or _written_at(path)))
            made = now - (age_s if last is None else min(age_s, now - last.at))
            self._record(job, None if last is None else last.progress, progress)
        self._looks[job] = _Look(now, progress, made)
        return progress, self._clock.now() - (now - made) * self._speed

    def _record(self, job: str, last: Progress | None, progress: Progress) -> None:
        """Write the losses of a user's own command to the job's metrics.

        The built-in trainer writes its own. A loss is reported again until there is a newer one.
        """
        folder = self._jobs / job
        before = Progress() if last is None else last
        row = MetricRow(
            step=progress.step,
            run=job,
            at=progress.at or wall_now(),
            tokens=progress.tokens or None,
            loss=None if progress.loss == before.loss else progress.loss,
            eval_loss=None if progress.eval_loss == before.eval_loss else progress.eval_loss,
            members=progress.world or None,
        )
        back = last is None or progress.step < last.step
        if (folder / TASK_FILE).exists():
            return
        file = MetricsFile(folder)
        with suppress(OSError):
            if back:
                # The command has gone back to its last checkpoint, or this process is new.
                file.cut(progress.step)
            if row.loss is not None or row.eval_loss is not None:
                file.record(row)

    def hazard(self, job: str, lived_s: float, losses: int) -> None:
        """Write the hazard file of a job: the mean wall time between losses."""
        prior = Hazard(prior_node_s=PRIOR_NODE_S / self._speed)
        seen = prior.seen(losses, lived_s / self._speed)
        write_hazard(self._jobs / job / HAZARD, seen.mean_time_between_losses_s())


def _written_at(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return wall_now()
