"""Who may hold how many GPUs where all jobs together want more than there are.

A planner shares what there is; the policy of each job then decides within its share. Nothing here
remembers anything: the same jobs give the same shares.
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
"""So many jobs a reason names."""

log = logging.getLogger(__name__)


class Queue(msgspec.Struct, frozen=True):
    """At most ``gpus`` GPUs are held at once, spot and on-demand together, by all jobs, and at most
    ``quotas[project]`` by those of a project; None, or no quota: as many as they like.
    """

    planner: Planner
    gpus: int | None = None
    quotas: dict[str, int] = {}

    @property
    def limited(self) -> bool:
        return self.gpus is not None or bool(self.quotas)


class Contender(NamedTuple):
    """A job and how many GPUs it would hold if it were alone."""

    state: JobState
    wish: int

    @property
    def project(self) -> str:
        return self.state.submitted.project


class Share(NamedTuple):
    """The most GPUs that a job may hold, and why it is not more."""

    gpus: int
    reason: str


def shares(
    queue: Queue, contenders: Sequence[Contender], now: float, *, taken: int = 0
) -> dict[str, Share]:
    """The share of every job, in the order in which they came; none if all can have their wish.

    ``taken`` GPUs are with jobs that cannot be asked.
    """
    wanting = [each for each in contenders if each.wish > 0]
    wishes = {each.state.stream: each.wish for each in wanting}
    total = sum(wishes.values())
    there = total if queue.gpus is None else max(0, queue.gpus - taken)
    if total <= there and not _over_quota(queue, wanting, wishes):
        return {}
    there = min(there, max(total, sum(len(each.state.alive()) for each in wanting)))
    given, words = _given(queue, wanting, there, now) if there else ({}, {})
    answer = {}
    for each in wanting:
        name = each.state.stream
        reason = _reason(queue, each, wanting, given)
        said = f" ({queue.planner.name}: {words[name]})" if words.get(name) else ""
        answer[name] = Share(given.get(name, 0), reason + said)
    return answer


def _over_quota(queue: Queue, jobs: Sequence[Contender], gpus: Mapping[str, int]) -> list[str]:
    """Projects that would hold too much."""
    return [
        project
        for project, most in queue.quotas.items()
        if sum(gpus.get(each.state.stream, 0) for each in jobs if each.project == project) > most
    ]


def _given(
    queue: Queue, jobs: Sequence[Contender], there: int, now: float
) -> tuple[dict[str, int], dict[str, str]]:
    """GPUs by job, and what the planner says of it. One that fails, or gives away more than there
    is, must not stop anybody's job.
    """
    fleet = Partition(name="fleet", gpu_model="GPU", nodes=there, gpus_per_node=1)
    stock = Stock((fleet,), quotas=queue.quotas)
    views = _views(jobs, stock, now)
    try:
        plan = _asked(queue.planner, views, stock)
        given, words = _checked(queue, jobs, views, stock, plan), plan.reasons
    except DuetuneError as error:
        log.warning("the planner %s failed, jobs are served in turn: %s", queue.planner.name, error)
        given, words = {}, {}
    return _filled_up(queue, views, there, given), words


def _asked(planner: Planner, views: Sequence[JobView], stock: Stock) -> Plan:
    """A failure of somebody's planner is told as theirs."""
    try:
        return planner.plan(views, stock)
    except DuetuneError:
        raise
    except Exception as error:
        problem = f"{type(error).__name__}: {error}"
        raise InvalidInput(f"planner {planner.name}", problem, "a plan") from error


def _views(jobs: Sequence[Contender], stock: Stock, now: float) -> list[JobView]:
    """As the planner is to see them. All nodes are alike, so any number them."""
    views, first = [], 0
    there = len(stock.shapes)
    for state, wish in jobs:
        job, submitted = state.job, state.submitted
        pace = np.zeros(there)
        fewest, most = job.min_gpus, min(job.max_gpus, wish, there)
        if fewest <= most:
            curve = np.array(job.throughput[fewest : most + 1])
            pace[fewest - 1 : most] = curve / submitted.slot_s
        held = min(len(state.alive()), there - first)
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
                restarts=state.resizes,
                start_s=restart_s,
                restart_s=restart_s,
                priority=submitted.priority,
                project=submitted.project,
                deadline_s=state.deadline_at - now,
            )
        )
    return views


def _checked(
    queue: Queue, jobs: Sequence[Contender], views: Sequence[JobView], stock: Stock, plan: Plan
) -> dict[str, int]:
    """GPUs by job, if there are so many and each job can run on them."""
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
    """No GPU is idle that somebody wishes for: what is left goes to the higher priority first, then
    to who came first.
    """
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
    """Which limit it is, and who has the GPUs."""
    own = given.get(job.state.stream, 0)
    among = [each for each in jobs if each.project == job.project]
    quota = queue.quotas.get(job.project)
    used = sum(given.get(each.state.stream, 0) for each in among)
    if quota is not None and (queue.gpus is None or used - own + job.wish > quota):
        whose, most = f"project {job.project}", quota
    else:
        whose, most, among = "all jobs together", queue.gpus or 0, list(jobs)
    streams = [each.state.stream for each in among if each is not job]
    words = f"{whose} may hold {most} GPU{'' if most == 1 else 's'}"
    return ", ".join([words, *held_by({name: given.get(name, 0) for name in streams})])


def held_by(gpus: Mapping[str, int]) -> list[str]:
    """Who has how many, in words: those with most by name."""
    first = sorted((name for name in gpus if gpus[name]), key=lambda name: -gpus[name])
    words = [f"{name} has {gpus[name]}" for name in first[:NAMED]]
    if rest := sum(gpus[name] for name in first[NAMED:]):
        words.append(f"others have {rest}")
    return words
