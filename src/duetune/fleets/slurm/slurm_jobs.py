"""Reads what ``squeue --json`` prints, of Slurm 22.05 and later."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import msgspec

from duetune.core.fleet import NodeEnd
from duetune.errors import FleetError
from duetune.fleets.driver import EngineNode, EngineState

if TYPE_CHECKING:
    from collections.abc import Sequence

# A job has a state and perhaps flags. Up to 23.02 a flag hides the state; later there is a list.
_WAITING = {
    "PENDING",
    "CONFIGURING",
    "REQUEUED",
    "REQUEUE_FED",
    "REQUEUE_HOLD",
    "RESV_DEL_HOLD",
    "SPECIAL_EXIT",
}
_BUSY = {"COMPLETING", "STAGE_OUT", "SIGNALING", "STOPPED", "SUSPENDED", "RESIZING"}
_ENDS = {
    "PREEMPTED": NodeEnd.CAPACITY,
    "DEADLINE": NodeEnd.CAPACITY,
    "TIMEOUT": NodeEnd.CAPACITY,
    "NODE_FAIL": NodeEnd.DIED,
    "BOOT_FAIL": NodeEnd.DIED,
    "CANCELLED": None,
    "COMPLETED": None,
    "FAILED": None,
    "LAUNCH_FAILED": None,
    "OUT_OF_MEMORY": None,
    "REVOKED": None,
}


class _Number(msgspec.Struct):
    """A number that may be missing, as Slurm 23.02 and later write it."""

    set: bool = False
    infinite: bool = False
    number: float = 0.0


class SlurmJob(msgspec.Struct):
    """A job in the words of Slurm; times are seconds since the epoch, 0 if unknown."""

    job_id: int
    user_id: int
    name: str | None = ""
    job_state: str | list[str] = ""
    state_reason: str | None = ""
    nodes: str | None = ""
    start_time: float | _Number | None = None
    end_time: float | _Number | None = None
    preempt_time: float | _Number | None = None

    @property
    def words(self) -> set[str]:
        """Return the state and the flags of the job."""
        return set(self.job_state.split() if isinstance(self.job_state, str) else self.job_state)

    @property
    def state(self) -> EngineState:
        """Return the state for the port. A job counts as RUNNING until its processes are gone.

        A state that nobody knows counts as RUNNING too: what is taken for lost is replaced.
        """
        if self.words & _BUSY:
            return EngineState.RUNNING
        if self.words & _WAITING:
            return EngineState.WAITING
        return EngineState.ENDED if self.words & _ENDS.keys() else EngineState.RUNNING

    def node(self) -> EngineNode:
        """Return the job as a node. A request that was never granted has no start."""
        state = self.state
        started = state is not EngineState.WAITING and bool(self.nodes)
        ended = state is EngineState.ENDED
        preempted = _seconds(self.preempt_time) is not None
        noticed = preempted and state is EngineState.RUNNING
        why = "" if self.state_reason in {None, "None"} else self.state_reason
        word = min(self.words & _ENDS.keys()) if ended else ""
        return EngineNode(
            name=self.name or "",
            state=state,
            started_at=_seconds(self.start_time) if started else None,
            ended_at=_seconds(self.end_time) if ended else None,
            # While a job is being preempted, its end is the end of the grace time.
            notice_at=_seconds(self.end_time) if noticed else None,
            # A command that leaves in its grace time makes its job COMPLETED or FAILED.
            end=(_ENDS[word] or (NodeEnd.CAPACITY if preempted else None)) if ended else None,
            reason=" ".join(filter(None, (word, f"({why})" if word and why else why))),
        )


class _Problem(msgspec.Struct):
    description: str | None = ""
    error: str | None = ""


class _Answer(msgspec.Struct):
    jobs: list[SlurmJob]
    errors: list[_Problem] = []


def read_jobs(printed: str) -> list[SlurmJob]:
    """Return the jobs in the output of ``squeue --json``, in the order in which they were made.

    With the controller away squeue exits with status 0 and lists no jobs; only ``errors`` tells.
    """
    answer = None
    with contextlib.suppress(msgspec.DecodeError, ValueError):
        answer = msgspec.json.decode(printed, type=_Answer)
    if answer is None:
        raise FleetError("squeue --json printed something that is no list of jobs", retry=True)
    if answer.errors:
        found = answer.errors[0]
        said = found.description or found.error
        # Slurm 22.05 gives no reason; nearly always it is this one.
        raise FleetError(f"squeue: {said}; does 'scontrol ping' find the controller?", retry=True)
    return sorted(answer.jobs, key=lambda job: job.job_id)


def one_per_name(jobs: Sequence[SlurmJob]) -> tuple[list[SlurmJob], list[SlurmJob]]:
    """Return one job for each name, and the waiting jobs that are surplus.

    A name has two jobs if a request was repeated before the first one was seen. The one that runs
    counts, or else the oldest. Slurm lets one job of a name run at a time and would start the other
    one after it.
    """
    chosen: dict[str | None, SlurmJob] = {}
    for job in jobs:
        first = chosen.setdefault(job.name, job)
        if first.state is not EngineState.RUNNING and job.state is EngineState.RUNNING:
            chosen[job.name] = job
    kept = list(chosen.values())
    waiting = [job for job in jobs if job.state is EngineState.WAITING]
    return kept, [job for job in waiting if job not in kept]


def _seconds(value: float | _Number | None) -> float | None:
    if isinstance(value, _Number):
        value = value.number if value.set and not value.infinite else None
    return float(value) if value else None
