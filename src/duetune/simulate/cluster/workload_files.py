"""Workloads as CSV files: duetune's own format, which is exact, and arrival traces of others.

Formats are recognised by their header:

- duetune: name, submitted_s, model, method, tokens_per_sample, tokens; optional are deadline_s,
  priority, project, num_gpus (which makes a job rigid) and restart_s (of a start or a move);
- Sia: name, time, application, num_replicas, batch_size;
- logs of clusters such as Philly and Helios: a column of submission times; optional are durations,
  numbers of GPUs, names and virtual clusters, under any of the names in ``LOGS``.

From foreign traces only arrivals, durations and numbers of GPUs are taken. The kind of job is drawn
at random, unless the world is a pace table: then a trace of Sia's format names its application, and
a file of duetune's format has ``model`` alone instead of model, method and tokens_per_sample. A
duration is the time that the work takes the median configuration of its kind.
"""

from __future__ import annotations

import csv
import math
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from duetune.core.cluster_physics import HOUR_S
from duetune.errors import InvalidInput
from duetune.knowledge.configurations.space import field_value
from duetune.knowledge.facts.model_registry import model_name
from duetune.knowledge.text_tables import read_table
from duetune.simulate.cluster.workload import (
    CELL,
    ClusterJob,
    WorkloadKind,
    drawn_job,
    drawn_kind,
    drawn_seconds,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path
    from typing import TextIO

    from duetune.knowledge.configurations.configuration import Value
    from duetune.knowledge.text_tables import Table, TableRow

NEEDED = ("name", "submitted_s", *CELL, "tokens")
OPTIONAL = ("deadline_s", "priority", "project", "num_gpus", "restart_s")
SIA = ("name", "time", "application", "num_replicas", "batch_size")
MOST_URGENT = 1000
"""The highest priority; the same as in job specs."""
LOGS = {
    "submitted": (
        *("submit_time", "submitted_time", "submission_time", "submitted_s", "arrival_time"),
        "timestamp",
    ),
    "duration": ("duration", "duration_s", "run_time", "runtime", "run_time_s"),
    "gpus": ("gpu_num", "num_gpus", "num_gpu", "gpus", "gpu_count", "gpu_request"),
    "name": ("name", "job_id", "jobid", "job_name", "jobname", "id"),
    "project": ("vc", "project"),
}
"""Accepted column names of cluster logs by meaning: first those of Helios, then those of Philly as
it is usually converted to a table.
"""


class Trace(msgspec.Struct, frozen=True, kw_only=True):
    """The jobs of a file. ``left_out`` counts the rows without GPUs or without duration."""

    jobs: tuple[ClusterJob, ...]
    form: str
    left_out: int = 0


class _Arrival(msgspec.Struct, frozen=True, kw_only=True):
    """One row of a foreign trace."""

    name: str
    submitted_s: float
    seconds: float | None
    gpus: int
    project: str
    kind: WorkloadKind | None = None


def read_workload(
    path: Path,
    kinds: Sequence[WorkloadKind],
    random: np.random.Generator,
    *,
    slack: tuple[float, float] | None = None,
    most: int = 0,
    per_hour: float | None = None,
    rigid: bool = False,
) -> Trace:
    """Return the first ``most`` jobs of a file (0: all of them).

    The other options are for foreign traces only. ``per_hour`` stretches the arrivals to this mean
    rate. ``slack`` adds deadlines. With ``rigid``, jobs keep the number of GPUs of the trace, or
    the nearest one that their kind can run with.
    """
    table = read_table(path, "workload")
    if per_hour is not None and not (math.isfinite(per_hour) and per_hour > 0):
        raise InvalidInput("load", per_hour, "jobs per hour, above 0")
    if {"submitted_s", "tokens", *_cell(kinds)} <= set(table.header):
        for option, given, what in (
            ("load", per_hour, "when jobs arrive"),
            ("rigid", rigid or None, "how many GPUs jobs need"),
            ("slack", slack and "{:g}:{:g}".format(*slack), "the deadlines"),
        ):
            if given is not None:
                raise InvalidInput(option, given, f"no value: {table.file} itself says {what}")
        jobs = _own(table, kinds)
        return Trace(jobs=jobs[:most] if most else jobs, form="duetune")
    form = "sia" if set(SIA) <= set(table.header) else "log"
    arrivals, left_out = _arrivals(table, form, kinds)
    arrivals = _stretched(arrivals[:most] if most else arrivals, per_hour)
    if not arrivals:
        raise InvalidInput("workload", table.file, "at least one job with GPUs and a duration")
    return Trace(
        jobs=tuple(_drawn(each, kinds, random, slack, rigid=rigid) for each in arrivals),
        form=form,
        left_out=left_out,
    )


def _cell(kinds: Sequence[WorkloadKind]) -> tuple[str, ...]:
    """Return the fields that the users of these kinds set."""
    return tuple(kinds[0].given) if kinds else CELL


def write_workload(jobs: Iterable[ClusterJob], file: TextIO) -> None:
    """Write the jobs in duetune's own format; reading the file returns the same jobs."""
    rows = [msgspec.structs.asdict(job) | job.given for job in jobs]
    rare = {
        each
        for each in (*CELL, *OPTIONAL[3:])
        if not any(row.get(each) is not None for row in rows)
    }
    columns = [each for each in (*NEEDED, *OPTIONAL) if each not in rare]
    written = csv.writer(file, lineterminator="\n")
    written.writerow(columns)
    for row in rows:
        written.writerow(["" if row.get(each) is None else row[each] for each in columns])


def _own(table: Table, kinds: Sequence[WorkloadKind]) -> tuple[ClusterJob, ...]:
    """Return the jobs of a file in duetune's own format, after checking them against the kinds."""
    cell = _cell(kinds)
    columns = ("name", "submitted_s", *cell, "tokens", *OPTIONAL)
    unknown = [each for each in table.header if each not in columns]
    if unknown:
        allowed = f"only {', '.join(columns)}"
        raise InvalidInput(f"columns of {table.file}", unknown, allowed)
    known = {tuple(kind.given.items()): kind for kind in kinds}
    names: set[str] = set()

    def job_of(row: TableRow) -> ClusterJob:
        job = _own_job(row, cell)
        if job.name in names:
            raise InvalidInput("name", job.name, "a name that no other job has")
        names.add(job.name)
        kind = known.get(tuple((field, job.given[field]) for field in cell))
        if kind is None:
            words = " ".join(str(job.given[field]) for field in cell)
            raise InvalidInput(", ".join(cell), words, _kinds_words(kinds))
        gpus = job.given.get("num_gpus")
        if gpus is not None and gpus not in kind.counts:
            counts = ", ".join(map(str, kind.counts))
            raise InvalidInput("num_gpus", gpus, f"a number that its kind can run with: {counts}")
        return job

    jobs = table.read(job_of)
    if not jobs:
        raise InvalidInput("workload", table.file, "at least one job")
    return tuple(jobs)


def _own_job(row: TableRow, cell: tuple[str, ...]) -> ClusterJob:
    """Return the job of one row of a file in duetune's own format."""
    given: dict[str, Value] = {"model": model_name(row.needed("model"))}
    if cell == CELL:
        given["method"] = field_value("method", row.needed("method"))
        tokens = field_value("tokens_per_sample", row.whole("tokens_per_sample"))
        given["tokens_per_sample"] = tokens
    if row.has("num_gpus"):
        given["num_gpus"] = field_value("num_gpus", row.whole("num_gpus"))
    deadline = row.number_of("deadline_s")
    priority = row.number_of("priority") or 0.0
    if priority != int(priority) or abs(priority) > MOST_URGENT:
        allowed = f"a whole number from -{MOST_URGENT} to {MOST_URGENT}"
        raise InvalidInput("priority", priority, allowed)
    return ClusterJob(
        name=row.needed("name"),
        submitted_s=_number(row, "submitted_s"),
        given=given,
        tokens=_number(row, "tokens"),
        deadline_s=deadline,
        priority=int(priority),
        project=row.text("project"),
        restart_s=row.number_of("restart_s"),
    )


def _number(row: TableRow, column: str) -> float:
    """Return the number in this column; raise ``InvalidInput`` if there is none."""
    number = row.number_of(column)
    if number is None:
        raise InvalidInput(column, row.raw(column), "a number")
    return number


def _kinds_words(kinds: Sequence[WorkloadKind]) -> str:
    """Return the first kinds of job as text for an error message."""
    known = [" ".join(str(value) for value in kind.given.values()) for kind in kinds]
    more = f" and {len(known) - 3} more" if len(known) > 3 else ""
    return f"a kind of job of this world: {', '.join(known[:3])}{more}"


def _arrivals(table: Table, form: str, kinds: Sequence[WorkloadKind]) -> tuple[list[_Arrival], int]:
    """Return the arrivals of a foreign trace in order of time, and how many rows were left out."""
    columns = (
        {"submitted": "time", "gpus": "num_replicas", "name": "name"}
        if form == "sia"
        else {
            what: next(name for name in names if name in table.header)
            for what, names in LOGS.items()
            if any(name in table.header for name in names)
        }
    )
    if "submitted" not in columns:
        allowed = (
            f"{', '.join(NEEDED)} (duetune's format), {', '.join(SIA)} (Sia's format), "
            f"or a column of submission times: {', '.join(LOGS['submitted'])}"
        )
        raise InvalidInput(f"columns of {table.file}", list(table.header), allowed)
    named = form == "sia" and _cell(kinds) != CELL
    known = {kind.given["model"]: kind for kind in kinds} if named else {}
    rows = table.read(lambda row: _arrival(row, columns, known))
    found = [each for each in rows if each.gpus > 0 and each.seconds != 0]
    found.sort(key=lambda each: each.submitted_s)
    if form != "sia" and found:
        # Times may be dates or epoch seconds; the first job arrives when the simulation begins.
        first = found[0].submitted_s
        found = [
            msgspec.structs.replace(each, submitted_s=each.submitted_s - first) for each in found
        ]
    return _named(found), len(rows) - len(found)


def _arrival(
    row: TableRow, columns: dict[str, str], known: Mapping[Value, WorkloadKind]
) -> _Arrival:
    """Return the arrival of one row of a foreign trace; ``known`` are kinds by application."""
    kind = known.get(model_name(row.needed("application"))) if known else None
    if known and kind is None:
        allowed = f"an application with paces on this cluster: {', '.join(map(str, known))}"
        raise InvalidInput("application", row.text("application"), allowed)
    submitted = columns["submitted"]
    seconds = row.number_of(columns["duration"]) if "duration" in columns else None
    if seconds is not None and seconds < 0:
        raise InvalidInput(columns["duration"], seconds, "seconds, 0 or more")
    return _Arrival(
        name=row.text(columns["name"]) if "name" in columns else "",
        submitted_s=_moment(submitted, row.needed(submitted)),
        seconds=seconds,
        gpus=row.whole(columns["gpus"], 1) if "gpus" in columns else 1,
        project=row.text(columns["project"]) if "project" in columns else "",
        kind=kind,
    )


def _moment(column: str, text: str) -> float:
    """Return the time in seconds; a date and time without a time zone counts as UTC."""
    try:
        seconds = float(text)
    except ValueError:
        try:
            moment = datetime.fromisoformat(text)
        except ValueError:
            allowed = "seconds, or a time such as 2020-05-01 13:30:00"
            raise InvalidInput(column, text, allowed) from None
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    if not (math.isfinite(seconds) and seconds >= 0):
        raise InvalidInput(column, text, "seconds, 0 or more")
    return seconds


def _named(arrivals: list[_Arrival]) -> list[_Arrival]:
    """Return the arrivals with unique names: in some traces ids repeat or are missing."""
    seen: set[str] = set()
    found = []
    for number, each in enumerate(arrivals, start=1):
        name = each.name or f"job-{number}"
        while name in seen:
            name = f"{name}-{number}"
        seen.add(name)
        found.append(msgspec.structs.replace(each, name=name))
    return found


def _stretched(arrivals: list[_Arrival], per_hour: float | None) -> list[_Arrival]:
    """Return the arrivals stretched in time to ``per_hour`` jobs per hour on average."""
    if per_hour is None or len(arrivals) < 2:
        return arrivals
    first, last = arrivals[0].submitted_s, arrivals[-1].submitted_s
    if last == first:
        return arrivals
    factor = (len(arrivals) - 1) / per_hour * HOUR_S / (last - first)
    return [
        msgspec.structs.replace(each, submitted_s=(each.submitted_s - first) * factor)
        for each in arrivals
    ]


def _drawn(
    arrival: _Arrival,
    kinds: Sequence[WorkloadKind],
    random: np.random.Generator,
    slack: tuple[float, float] | None,
    *,
    rigid: bool,
) -> ClusterJob:
    """Return a job for the arrival, of a random kind if the trace does not name it."""
    kind = arrival.kind or drawn_kind(kinds, random)
    seconds = drawn_seconds(random) if arrival.seconds is None else arrival.seconds
    job = drawn_job(arrival.name, arrival.submitted_s, kind, seconds, random, slack=slack)
    given = dict(job.given)
    if rigid:
        counts = np.array(kind.counts)
        given["num_gpus"] = int(counts[np.argmin(np.abs(np.log2(counts / arrival.gpus)))])
    return msgspec.structs.replace(job, given=given, project=arrival.project)
