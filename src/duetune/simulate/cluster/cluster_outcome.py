"""What came of a simulation: of every job, of every round, and in figures."""

from __future__ import annotations

import csv
from enum import StrEnum
from typing import TYPE_CHECKING

import msgspec
import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import TextIO


class JobOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """Moments in seconds since the simulation began; None if it never came to that. ``alone_s`` is
    what its best configuration would have needed with an even share of the cluster to itself.
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
        """Job completion time: from submission to end."""
        return None if self.finished_s is None else self.finished_s - self.submitted_s

    @property
    def queued_s(self) -> float | None:
        """Until its first start that worked."""
        return None if self.first_s is None else self.first_s - self.submitted_s

    @property
    def late(self) -> bool:
        if self.deadline_s is None:
            return False
        return self.finished_s is None or self.finished_s > self.deadline_s


class What(StrEnum):
    """What became of a job in a round."""

    STARTED = "started"
    MOVED = "moved"
    STOPPED = "stopped"
    EVICTED = "evicted"
    FAILED = "ran out of memory"
    FINISHED = "finished"


class AllocationChange(msgspec.Struct, frozen=True, kw_only=True):
    """``gpus`` of this partition that the job has got, or had until then."""

    job: str
    what: What
    partition: int
    gpus: int


class RoundRecord(msgspec.Struct, frozen=True, kw_only=True):
    """GPUs by partition, and jobs, once the planner has had its say; what changed by that, and in
    the time until the next round.
    """

    at_s: float
    used: tuple[int, ...]
    there: tuple[int, ...]
    running: int
    waiting: int
    changes: tuple[AllocationChange, ...] = ()


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """Times are hours, of jobs that were done; the rest is of all jobs. ``unfair`` is the share of
    jobs that took longer than with their even share of the cluster, ``fairness`` the worst ratio.
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
    planner: str
    source: str
    jobs: tuple[JobOutcome, ...]
    rounds: tuple[RoundRecord, ...]
    round_s: float

    def figures(self) -> Figures:
        done = [each for each in self.jobs if each.finished_s is not None]
        count = max(1, len(self.jobs))
        jct = _hours(each.jct_s for each in done)
        ratios = np.array(
            [each.jct_s / each.alone_s for each in done if each.alone_s and each.jct_s is not None]
        )
        due = [each for each in self.jobs if each.deadline_s is not None]
        used = sum(each.gpu_hours for each in self.jobs)
        there = sum(sum(each.there) for each in self.rounds) * self.round_s / 3600.0
        begin = min((each.submitted_s for each in self.jobs), default=0.0)
        end = max((each.finished_s or 0.0 for each in done), default=begin)
        return Figures(
            jobs=len(self.jobs),
            unserved=len(self.jobs) - len(done),
            mean_jct_h=float(jct.mean()) if jct.size else float("nan"),
            median_jct_h=float(np.median(jct)) if jct.size else float("nan"),
            p99_jct_h=float(np.quantile(jct, 0.99)) if jct.size else float("nan"),
            makespan_h=(end - begin) / 3600.0,
            mean_queued_h=float(_hours(each.queued_s for each in done).mean())
            if done
            else float("nan"),
            gpu_hours_per_job=sum(each.gpu_hours for each in self.jobs) / count,
            failures_per_job=sum(each.failures for each in self.jobs) / count,
            restarts_per_job=sum(each.restarts for each in self.jobs) / count,
            evictions_per_job=sum(each.evictions for each in self.jobs) / count,
            utilisation=used / there if there else 0.0,
            fairness=float(ratios.max()) if ratios.size else float("nan"),
            unfair=float(np.mean(ratios > 1)) if ratios.size else float("nan"),
            missed=sum(each.late for each in due) / len(due) if due else None,
            dollars=sum(each.dollars for each in self.jobs),
        )


def _hours(seconds: Iterable[float | None]) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    return np.array([each for each in seconds if each is not None], np.float64) / 3600.0


def write_jobs(outcome: ClusterOutcome, world: str, file: TextIO) -> None:
    """A row for each job; moments in seconds since the simulation began."""
    rows = csv.writer(file, lineterminator="\n")
    rows.writerow((*JobOutcome.__struct_fields__, "jct_s", "queued_s", "late", "world"))
    for each in outcome.jobs:
        values = (*msgspec.structs.astuple(each), each.jct_s, each.queued_s, each.late, world)
        rows.writerow(["" if value is None else value for value in values])


def write_rounds(
    outcome: ClusterOutcome, world: str, partitions: Sequence[str], file: TextIO
) -> None:
    """A line of JSON for each round; GPUs by name of partition, in use and there."""
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
