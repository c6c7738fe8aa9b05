"""The share of each job when all jobs together want more GPUs than there are.

A planner divides the GPUs; the policy of each job then decides within its share. These are pure
functions: the same jobs give the same shares. When jobs are asked is in ``arbitration``.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import numpy as np

from duetune.core.planning import JobView, Partition, Placement, Stock
from duetune.core.ports import Planner
from duetune.errors import DuetuneError, InvalidInput

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from duetune.core.planning import Plan
    from duetune.engine.state import JobState

NAMED = 3
"""A reason names at most this many jobs."""

log = logging.getLogger(__name__)


class Queue(msgspec.Struct, frozen=True):
    """The limits on GPUs that jobs hold at once, spot and on-demand together.

    ``planner``: divides the GPUs if the limits are too small for all jobs.
    ``gpus``: limit of all jobs; None means no limit.
    ``quotas``: limit of the jobs of each project; a project without an entry has no limit.
    """

    planner: Planner
    gpus: int | None = None
    quotas: dict[str, int] = {}

    @property
    def limited(self) -> bool:
        """Return whether there is any limit."""
        return self.gpus is not None or bool(self.quotas)


class Contender(NamedTuple):
    """A job and how many members it would hold if it were alone."""

    state: JobState
    members: int

    @property
    def member(self) -> int:
        """Return the GPUs of one member of the job."""
        return self.state.submitted.task.gpus

    @property
    def wish(self) -> int:
        """Return the GPUs of all these members."""
        return self.members * self.member

    @property
    def project(self) -> str:
        """Return the project of the job."""
        return self.state.submitted.project


class Share(NamedTuple):
    """The most GPUs that a job may hold, and the reason."""

    gpus: int
    reason: str


def shares(
    queue: Queue, contenders: Sequence[Contender], now: float, *, taken: int = 0
) -> dict[str, Share]:
    """Return the share of every job that wants GPUs; empty if all can have what they want.

    ``contenders`` are in the order of submission. ``taken`` GPUs belong to jobs that cannot be
    asked.
    """
    jobs = [job for job in contenders if job.wish > 0]
    wishes = {job.state.stream: job.wish for job in jobs}
    total = sum(wishes.values())
    there = total if queue.gpus is None else max(0, queue.gpus - taken)
    if total <= there and not _over_quota(queue, jobs, wishes):
        return {}
    there = min(there, max(total, sum(len(job.state.alive()) * job.member for job in jobs)))
    given, words = _given(queue, jobs, there, now) if there else ({}, {})
    answer = {}
    for job in jobs:
        name = job.state.stream
        reason = _reason(queue, job, jobs, given)
        planner = f" ({queue.planner.name}: {words[name]})" if words.get(name) else ""
        answer[name] = Share(given.get(name, 0), reason + planner)
    return answer


def _over_quota(queue: Queue, jobs: Sequence[Contender], gpus: Mapping[str, int]) -> bool:
    """Return whether a project would hold more than its quota."""
    return any(
        sum(gpus.get(job.state.stream, 0) for job in jobs if job.project == project) > most
        for project, most in queue.quotas.items()
    )


def _given(
    queue: Queue, jobs: Sequence[Contender], there: int, now: float
) -> tuple[dict[str, int], dict[str, str]]:
    """Return the GPUs of each job and the planner's reasons.

    If the planner fails or its plan is invalid, jobs are served by priority and age: a bad planner
    must not stop jobs.
    """
    fleet = Partition(name="fleet", gpu_model="GPU", nodes=there, gpus_per_node=1)
    stock = Stock((fleet,), quotas=queue.quotas)
    views = _views(jobs, stock, now)
    try:
        plan = _asked(queue.planner, views, stock)
        given, words = _checked(queue, jobs, views, stock, plan), plan.reasons
    except DuetuneError as error:
        log.warning(
            "planner %s failed; jobs are served by priority and age: %s", queue.planner.name, error
        )
        given, words = {}, {}
    return _filled_up(queue, views, there, given), words


def _asked(planner: Planner, views: Sequence[JobView], stock: Stock) -> Plan:
    """Ask the planner; an exception of a plug-in becomes ``InvalidInput`` that names it."""
    try:
        return planner.plan(views, stock)
    except DuetuneError:
        raise
    except Exception as error:
        problem = f"{type(error).__name__}: {error}"
        raise InvalidInput(f"planner {planner.name}", problem, "a plan") from error


def _views(jobs: Sequence[Contender], stock: Stock, now: float) -> list[JobView]:
    """Return the jobs as the planner sees them. All nodes are identical: number them in order."""
    views, first = [], 0
    there = len(stock.shapes)
    for contender in jobs:
        state, size = contender.state, contender.member
        job, submitted = state.job, state.submitted
        pace = np.zeros(there)
        # A job runs on whole members only: the other numbers of GPUs keep a pace of 0.
        fewest, most = job.min_gpus, min(job.max_gpus, contender.members, there // size)
        if fewest <= most:
            curve = np.array(job.throughput[fewest : most + 1])
            pace[fewest * size - 1 : most * size : size] = curve / submitted.slot_s
        held = min(len(state.alive()), (there - first) // size) * size
        nodes = tuple((node, 1) for node in range(first, first + held))
        first += held
        restart_s = (1 - job.reconfiguration.grow) * submitted.slot_s
        views.append(
            JobView(
                name=state.stream,
                pace=pace,
                remaining=max(1.0, job.work - state.progress.step),
                age_s=max(0.0, now - submitted.at),
                held=held - 1,
                placement=Placement(0, nodes) if held else None,
                rigid=job.min_gpus == job.max_gpus,
                restarts=state.resizes,
                most_gpus=max(state.pace, default=0) * size,
                attained_gpu_s=_gpu_s(state, now),
                start_s=restart_s,
                restart_s=restart_s,
                priority=state.priority,
                project=submitted.project,
                deadline_s=state.deadline_at - now,
            )
        )
    return views


def _gpu_s(state: JobState, now: float) -> float:
    """Return the seconds for which the job's GPUs have run, all of them together."""
    return sum(
        node.gpus * ((now if node.ended_at is None else node.ended_at) - node.started_at)
        for node in state.nodes.values()
        if node.started_at is not None
    )


def _checked(
    queue: Queue, jobs: Sequence[Contender], views: Sequence[JobView], stock: Stock, plan: Plan
) -> dict[str, int]:
    """Return the GPUs of each job; raise ``InvalidInput`` if the plan breaks a limit."""
    able = {view.name: view for view in views}
    given = {}
    for name, shape in plan.shapes.items():
        view = able.get(name)
        runs = view is not None and 0 <= shape < len(stock.shapes)
        if view is None or not runs or not (view.pace[shape] > 0 or shape == view.held):
            raise InvalidInput(f"plan of {queue.planner.name}", (name, shape), "a shape it runs on")
        given[name] = int(stock.gpus[shape])
    if sum(given.values()) > len(stock.shapes) or _over_quota(queue, jobs, given):
        allowed = f"at most {len(stock.shapes)} GPUs, and the quotas"
        raise InvalidInput(f"plan of {queue.planner.name}", given, allowed)
    return given


def _filled_up(
    queue: Queue, views: Sequence[JobView], there: int, given: Mapping[str, int]
) -> dict[str, int]:
    """Return the plan with unused GPUs given out: by priority, then in the order of submission."""
    gpus = {view.name: given.get(view.name, 0) for view in views}
    free = there - sum(gpus.values())
    left = dict(queue.quotas)
    for view in views:
        if view.project in left:
            left[view.project] -= gpus[view.name]
    for view in sorted(views, key=lambda view: -view.priority):
        own = gpus[view.name]
        most = own + max(0, min(free, left.get(view.project, free)))
        more = max(own, int(np.flatnonzero(view.pace[:most]).max(initial=-1)) + 1) - own
        gpus[view.name] += more
        free -= more
        if view.project in left:
            left[view.project] -= more
    return gpus


def _reason(
    queue: Queue, job: Contender, jobs: Sequence[Contender], given: Mapping[str, int]
) -> str:
    """Return in words which limit applies and which other jobs have the GPUs."""
    own = given.get(job.state.stream, 0)
    rivals = [other for other in jobs if other.project == job.project]
    quota = queue.quotas.get(job.project)
    used = sum(given.get(other.state.stream, 0) for other in rivals)
    if quota is not None and (queue.gpus is None or used - own + job.wish > quota):
        whose, most = f"project {job.project}", quota
    else:
        whose, most, rivals = "all jobs together", queue.gpus or 0, list(jobs)
    streams = [other.state.stream for other in rivals if other is not job]
    words = f"{whose} may hold {most} GPU{'' if most == 1 else 's'}"
    return ", ".join([words, *held_by({name: given.get(name, 0) for name in streams})])


def held_by(gpus: Mapping[str, int]) -> list[str]:
    """Return in words how many GPUs each job has; the jobs with most GPUs are named."""
    first = sorted((name for name in gpus if gpus[name]), key=lambda name: -gpus[name])
    words = [f"{name} has {gpus[name]}" for name in first[:NAMED]]
    if rest := sum(gpus[name] for name in first[NAMED:]):
        words.append(f"others have {rest}")
    return words
