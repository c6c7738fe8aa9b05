"""The outcome of a cluster simulation: jobs, rounds, summary figures, and their files.

Every line of a file names its kind of world, so emulated results cannot pass for measured ones.
"""

from __future__ import annotations

import csv
import math
from enum import StrEnum
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from duetune.core.cluster_physics import HOUR_S

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import TextIO


class JobOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """What happened to one job.

    Times are in seconds since the simulation began, None if the event never happened. ``alone_s``
    is the time the job's best configuration would have needed with an even share of the cluster.
    """

    name: str
    submitted_s: float
    first_s: float | None
    finished_s: float | None
    deadline_s: float | None
    gpu_hours: float
    dollars: float
    restarts: int
    failures: int
    evictions: int
    alone_s: float | None

    @property
    def jct_s(self) -> float | None:
        """Return the job completion time in seconds, from submission to end."""
        return None if self.finished_s is None else self.finished_s - self.submitted_s

    @property
    def queued_s(self) -> float | None:
        """Return the seconds from submission to the first start that worked."""
        return None if self.first_s is None else self.first_s - self.submitted_s

    @property
    def late(self) -> bool:
        """Return whether the job missed its deadline; False without a deadline."""
        if self.deadline_s is None:
            return False
        return self.finished_s is None or self.finished_s > self.deadline_s


class What(StrEnum):
    """The kind of change of a job's allocation in a round."""

    STARTED = "started"
    MOVED = "moved"
    STOPPED = "stopped"
    EVICTED = "evicted"
    FAILED = "ran out of memory"
    FINISHED = "finished"


class AllocationChange(msgspec.Struct, frozen=True, kw_only=True):
    """A change of a job's allocation: the ``gpus`` of a partition that it got or gave up."""

    job: str
    what: What
    partition: int
    gpus: int


class RoundRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One round: GPUs by partition and numbers of jobs after planning.

    ``changes`` also has those between this round and the next.
    """

    at_s: float
    used: tuple[int, ...]
    there: tuple[int, ...]
    running: int
    waiting: int
    changes: tuple[AllocationChange, ...] = ()


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """Summary figures of a simulation.

    - Times are in hours, over finished jobs; all other figures are over all jobs.
    - ``unserved`` counts the jobs that never finished.
    - ``fairness`` is the worst ratio of completion time to that with an even share of the cluster;
      ``unfair`` is the share of jobs with a ratio above 1.
    - ``missed`` is the share of missed deadlines, None without deadlines.
    """

    jobs: int
    unserved: int
    mean_jct_h: float
    median_jct_h: float
    p99_jct_h: float
    makespan_h: float
    mean_queued_h: float
    gpu_hours_per_job: float
    failures_per_job: float
    restarts_per_job: float
    evictions_per_job: float
    utilisation: float
    fairness: float
    unfair: float
    missed: float | None
    dollars: float


class ClusterOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of one planner with one knowledge source."""

    planner: str
    source: str
    jobs: tuple[JobOutcome, ...]
    rounds: tuple[RoundRecord, ...]
    round_s: float

    def figures(self) -> Figures:
        """Return the summary figures."""
        done = [each for each in self.jobs if each.finished_s is not None]
        count = max(1, len(self.jobs))
        jct, queued = _hours(each.jct_s for each in done), _hours(each.queued_s for each in done)
        ratios = np.array(
            [each.jct_s / each.alone_s for each in done if each.alone_s and each.jct_s is not None]
        )
        due = [each for each in self.jobs if each.deadline_s is not None]
        used = sum(each.gpu_hours for each in self.jobs)
        there = sum(sum(each.there) for each in self.rounds) * self.round_s / HOUR_S
        begin = min((each.submitted_s for each in self.jobs), default=0.0)
        end = max((each.finished_s or 0.0 for each in done), default=begin)
        return Figures(
            jobs=len(self.jobs),
            unserved=len(self.jobs) - len(done),
            mean_jct_h=float(jct.mean()) if jct.size else math.nan,
            median_jct_h=float(np.median(jct)) if jct.size else math.nan,
            p99_jct_h=float(np.quantile(jct, 0.99)) if jct.size else math.nan,
            makespan_h=(end - begin) / HOUR_S,
            mean_queued_h=float(queued.mean()) if done else math.nan,
            gpu_hours_per_job=used / count,
            failures_per_job=sum(each.failures for each in self.jobs) / count,
            restarts_per_job=sum(each.restarts for each in self.jobs) / count,
            evictions_per_job=sum(each.evictions for each in self.jobs) / count,
            utilisation=used / there if there else 0.0,
            fairness=float(ratios.max()) if ratios.size else math.nan,
            unfair=float(np.mean(ratios > 1)) if ratios.size else math.nan,
            missed=sum(each.late for each in due) / len(due) if due else None,
            dollars=sum(each.dollars for each in self.jobs),
        )


def _hours(seconds: Iterable[float | None]) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    return np.array([each for each in seconds if each is not None], np.float64) / HOUR_S


def write_jobs(outcome: ClusterOutcome, world: str, file: TextIO) -> None:
    """Write a CSV file with one row per job; times are in seconds since the simulation began."""
    rows = csv.writer(file, lineterminator="\n")
    rows.writerow((*JobOutcome.__struct_fields__, "jct_s", "queued_s", "late", "world"))
    for each in outcome.jobs:
        values = (*msgspec.structs.astuple(each), each.jct_s, each.queued_s, each.late, world)
        rows.writerow(["" if value is None else value for value in values])


def write_rounds(
    outcome: ClusterOutcome, world: str, partitions: Sequence[str], file: TextIO
) -> None:
    """Write one line of JSON per round, with the GPUs in use and available by partition."""
    for each in outcome.rounds:
        line = {
            "at_s": each.at_s,
            "world": world,
            "used": dict(zip(partitions, each.used, strict=True)),
            "there": dict(zip(partitions, each.there, strict=True)),
            "running": each.running,
            "waiting": each.waiting,
            "changes": [
                {
                    "job": change.job,
                    "what": change.what,
                    "partition": partitions[change.partition],
                    "gpus": change.gpus,
                }
                for change in each.changes
            ],
        }
        file.write(msgspec.json.encode(line).decode() + "\n")
