"""Workloads: the jobs that arrive at a cluster, when they arrive, and how much work they have.

Reading and writing them as files is in ``workload_files``.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from duetune.core.cluster_physics import HOUR_S
from duetune.errors import InvalidInput
from duetune.knowledge.configurations.configuration import Value

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from duetune.core.planning import Stock
    from duetune.knowledge.configurations.configuration import Configuration
    from duetune.knowledge.listed_space import Listing
    from duetune.knowledge.sources.knowledge_source import KnowledgeSource

MEDIAN_S, SIGMA = 1500.0, 1.0
"""Median and spread of the log-normal time that a job's work takes the median configuration."""


class ClusterJob(msgspec.Struct, frozen=True, kw_only=True):
    """One job of a workload.

    - ``given`` are the fields of its configuration that its user sets; all others are free.
    - ``tokens`` is its work.
    - Times are in seconds since the simulation began; ``deadline_s`` is when it should be finished.
    - ``restart_s`` is the time of a start or a move of this job, if it has one of its own.
    """

    name: str
    submitted_s: float
    given: dict[str, Value]
    tokens: float
    deadline_s: float | None = None
    priority: int = 0
    project: str = ""
    restart_s: float | None = None

    def __post_init__(self) -> None:
        if not (math.isfinite(self.submitted_s) and self.submitted_s >= 0):
            raise InvalidInput(f"{self.name}.submitted_s", self.submitted_s, "seconds, 0 or more")
        if not (math.isfinite(self.tokens) and self.tokens > 0):
            raise InvalidInput(f"{self.name}.tokens", self.tokens, "a number above 0")
        if self.deadline_s is not None and not math.isfinite(self.deadline_s):
            raise InvalidInput(f"{self.name}.deadline_s", self.deadline_s, "seconds")
        if self.restart_s is not None and not (
            math.isfinite(self.restart_s) and self.restart_s >= 0
        ):
            raise InvalidInput(f"{self.name}.restart_s", self.restart_s, "seconds, 0 or more")


class WorkloadKind(msgspec.Struct, frozen=True):
    """A kind of job that a workload may contain.

    - ``given`` are the fields of the configuration that its user sets.
    - ``pace`` is that of the median configuration that works, in tokens per second. It converts a
      duration into work.
    - ``counts`` are the numbers of GPUs with which a configuration works on this cluster.
    - ``restart_s`` and ``work`` are those of its jobs; None means the usual ones.
    """

    given: dict[str, Value]
    pace: float
    counts: tuple[int, ...] = (1,)
    restart_s: float | None = None
    work: float | None = None


CELL = ("model", "method", "tokens_per_sample")
"""The fields of a configuration that users set."""


def placeable(space: Listing, stock: Stock) -> NDArray[np.bool_]:
    """Return for each configuration whether the stock has a shape for it."""
    return np.array(
        [(each.gpu_model, each.num_gpus, each.num_nodes) in stock.alike for each in space.rows],
        np.bool_,
    )


def kinds_of(
    truth: KnowledgeSource,
    space: Listing,
    stock: Stock,
    *,
    least: int = 8,
) -> tuple[WorkloadKind, ...]:
    """Return the kinds with at least ``least`` configurations of which one works here."""
    estimates = truth.query(space.rows)
    pace = np.where(estimates.p_valid >= 0.5, estimates.tokens_per_s[:, 1], np.nan)
    cells: dict[tuple[Value, ...], list[int]] = {}
    for row, configuration in enumerate(space.rows):
        cell = tuple(_value(configuration, field) for field in CELL)
        cells.setdefault(cell, []).append(row)
    gpus = space.rows.number("num_gpus")
    runs = np.isfinite(pace) & placeable(space, stock)
    return tuple(
        WorkloadKind(
            dict(zip(CELL, cell, strict=True)),
            float(np.nanmedian(pace[rows])),
            tuple(np.unique(gpus[rows][runs[rows]]).astype(int).tolist()),
        )
        for cell, rows in cells.items()
        if len(rows) >= least and runs[rows].any()
    )


def _value(configuration: Configuration, field: str) -> Value:
    """Return the field of a configuration as a plain value; enums become text."""
    found: Value = getattr(configuration, field)
    return str(found) if isinstance(found, str) else found


def poisson_arrivals(
    jobs: int, per_hour: float, random: np.random.Generator, *, burst: float = 1.0
) -> NDArray[np.float64]:
    """Return random times of arrival in seconds.

    Jobs arrive in bursts of ``burst`` jobs on average, as parameter sweeps do; the size of a burst
    is geometric.
    """
    if not (math.isfinite(per_hour) and per_hour > 0):
        raise InvalidInput("load", per_hour, "jobs per hour, above 0")
    if not 1 <= burst < math.inf:
        raise InvalidInput("burst", burst, "jobs that arrive at once on average, 1 or more")
    moments = np.cumsum(random.exponential(burst * HOUR_S / per_hour, jobs))
    if burst > 1:
        moments = np.repeat(moments, random.geometric(1 / burst, jobs))[:jobs]
    return moments


def workload(
    kinds: Sequence[WorkloadKind],
    arrivals: NDArray[np.float64],
    random: np.random.Generator,
    *,
    median_s: float = MEDIAN_S,
    slack: tuple[float, float] | None = None,
) -> tuple[ClusterJob, ...]:
    """Return a job of a random kind for each arrival.

    The time that its work takes the median configuration is log-normal. With ``slack`` it has a
    deadline: its time to the deadline is this time multiplied by a factor drawn uniformly between
    the two.
    """
    jobs = []
    for number, at in enumerate(arrivals, start=1):
        kind = drawn_kind(kinds, random)
        seconds = drawn_seconds(random, median_s)
        jobs.append(drawn_job(f"job-{number}", float(at), kind, seconds, random, slack=slack))
    return tuple(jobs)


def drawn_kind(kinds: Sequence[WorkloadKind], random: np.random.Generator) -> WorkloadKind:
    """Return one of the kinds at random."""
    if not kinds:
        raise InvalidInput("kinds", 0, "at least one kind of job")
    return kinds[int(random.integers(len(kinds)))]


def drawn_seconds(random: np.random.Generator, median_s: float = MEDIAN_S) -> float:
    """Return a random time in seconds that the work of a job takes the median configuration."""
    return median_s * math.exp(SIGMA * random.standard_normal())


def drawn_job(
    name: str,
    submitted_s: float,
    kind: WorkloadKind,
    seconds: float,
    random: np.random.Generator,
    *,
    slack: tuple[float, float] | None = None,
) -> ClusterJob:
    """Return a job of this kind whose work takes the median configuration ``seconds``.

    If the kind states its work, that counts instead.
    """
    if kind.work is not None:
        seconds = kind.work / kind.pace
    deadline = None
    # Drawn even without slack, so that jobs with and without deadlines are otherwise the same.
    share = float(random.random())
    if slack is not None:
        low, high = slack
        if not (math.isfinite(high) and 0 < low <= high):
            raise InvalidInput("slack", list(slack), "two factors above 0, the smaller one first")
        deadline = submitted_s + (low + (high - low) * share) * seconds
    return ClusterJob(
        name=name,
        submitted_s=submitted_s,
        given=kind.given,
        tokens=seconds * kind.pace if kind.work is None else kind.work,
        deadline_s=deadline,
        restart_s=kind.restart_s,
    )
