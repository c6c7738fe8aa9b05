"""Jobs that arrive at a cluster: what they are, when they come, and how much work they have."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from duetune.errors import InvalidInput
from duetune.knowledge.configurations.configuration import Value

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from duetune.core.planning import Stock
    from duetune.knowledge.configurations.configuration import Configuration
    from duetune.knowledge.listed_space import Listing
    from duetune.knowledge.sources.knowledge_source import KnowledgeSource

_HOUR_S = 3600.0
MEDIAN_S, SIGMA = 1500.0, 1.0
"""Of the log-normal time that a job's work takes its median configuration."""


class ClusterJob(msgspec.Struct, frozen=True, kw_only=True):
    """``given`` are the fields of its configuration that its user says; all others are free.
    ``tokens`` is its work. Times are seconds since the simulation began; ``deadline_s`` is the
    moment by which it should be done.
    """

    name: str
    submitted_s: float
    given: dict[str, Value]
    tokens: float
    deadline_s: float | None = None
    priority: int = 0
    project: str = ""

    def __post_init__(self) -> None:
        if not (math.isfinite(self.submitted_s) and self.submitted_s >= 0):
            raise InvalidInput(f"{self.name}.submitted_s", self.submitted_s, "seconds, 0 or more")
        if not (math.isfinite(self.tokens) and self.tokens > 0):
            raise InvalidInput(f"{self.name}.tokens", self.tokens, "a number above 0")
        if self.deadline_s is not None and not math.isfinite(self.deadline_s):
            raise InvalidInput(f"{self.name}.deadline_s", self.deadline_s, "seconds")


class WorkloadKind(msgspec.Struct, frozen=True):
    """What jobs of a workload may be: the fields that are given, and the pace at which work is
    counted: that of the median configuration that works. ``counts`` are the numbers of GPUs that
    the cluster can give and with which one works.
    """

    given: dict[str, Value]
    pace: float
    counts: tuple[int, ...] = (1,)


CELL = ("model", "method", "tokens_per_sample")
"""The fields that users give."""


def placeable(space: Listing, stock: Stock) -> NDArray[np.bool_]:
    """The configurations that there is a shape for."""
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
    fields: Sequence[str] = CELL,
) -> tuple[WorkloadKind, ...]:
    """The cells of the space with at least so many configurations, of which one works on this
    cluster.
    """
    estimates = truth.query(space.rows)
    pace = np.where(estimates.p_valid >= 0.5, estimates.tokens_per_s[:, 1], np.nan)
    cells: dict[tuple[Value, ...], list[int]] = {}
    for row, configuration in enumerate(space.rows):
        cell = tuple(_value(configuration, field) for field in fields)
        cells.setdefault(cell, []).append(row)
    gpus = space.rows.number("num_gpus")
    runs = np.isfinite(pace) & placeable(space, stock)
    return tuple(
        WorkloadKind(
            dict(zip(fields, cell, strict=True)),
            float(np.nanmedian(pace[rows])),
            tuple(np.unique(gpus[rows][runs[rows]]).astype(int).tolist()),
        )
        for cell, rows in cells.items()
        if len(rows) >= least and runs[rows].any()
    )


def _value(configuration: Configuration, field: str) -> Value:
    found: Value = getattr(configuration, field)
    return str(found) if isinstance(found, str) else found


def poisson_arrivals(
    jobs: int, per_hour: float, random: np.random.Generator, *, burst: float = 1.0
) -> NDArray[np.float64]:
    """Jobs come in bursts of ``burst`` at once, in the mean, as sweeps over settings do: how many
    is drawn anew each time, one more always as likely as before.
    """
    if not (math.isfinite(per_hour) and per_hour > 0):
        raise InvalidInput("load", per_hour, "jobs per hour, above 0")
    if not 1 <= burst < math.inf:
        raise InvalidInput("burst", burst, "jobs that come at once in the mean, 1 or more")
    moments = np.cumsum(random.exponential(burst * _HOUR_S / per_hour, jobs))
    if burst > 1:
        moments = np.repeat(moments, random.geometric(1 / burst, jobs))[:jobs]
    return moments


def workload(
    kinds: Sequence[WorkloadKind],
    arrivals: NDArray[np.float64],
    random: np.random.Generator,
    *,
    median_s: float = MEDIAN_S,
    sigma: float = SIGMA,
    slack: tuple[float, float] | None = None,
) -> tuple[ClusterJob, ...]:
    """A job of a random kind for each arrival. Its work takes the median configuration a log-normal
    time. With ``slack`` it has a deadline, so many times that after it was submitted: drawn evenly
    between the two.
    """
    jobs = []
    for number, at in enumerate(arrivals, start=1):
        kind = drawn_kind(kinds, random)
        seconds = drawn_seconds(random, median_s=median_s, sigma=sigma)
        jobs.append(drawn_job(f"job-{number}", float(at), kind, seconds, random, slack=slack))
    return tuple(jobs)


def drawn_kind(kinds: Sequence[WorkloadKind], random: np.random.Generator) -> WorkloadKind:
    if not kinds:
        raise InvalidInput("kinds", 0, "at least one kind of job")
    return kinds[int(random.integers(len(kinds)))]


def drawn_seconds(
    random: np.random.Generator, *, median_s: float = MEDIAN_S, sigma: float = SIGMA
) -> float:
    return median_s * math.exp(sigma * random.standard_normal())


def drawn_job(
    name: str,
    submitted_s: float,
    kind: WorkloadKind,
    seconds: float,
    random: np.random.Generator,
    *,
    slack: tuple[float, float] | None = None,
) -> ClusterJob:
    """One of this kind, that takes its median configuration so many seconds."""
    deadline = None
    # Drawn in any case, so that jobs are the same with deadlines and without.
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
        tokens=seconds * kind.pace,
        deadline_s=deadline,
    )
