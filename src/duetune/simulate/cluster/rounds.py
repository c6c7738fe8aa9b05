"""A cluster in simulated time: rounds of planning, starts, restarts, failed starts, a market.

The effect of a round on a job is in ``core.cluster_physics``. The pace of a configuration is what
``Truth`` says. A job whose configuration runs out of memory waits again. Progress is kept when GPUs
are taken away.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from duetune.core.cluster_physics import DONE_S, HOUR_S, charge_by_second, round_step
from duetune.core.planning import JobView
from duetune.errors import InvalidInput
from duetune.knowledge.configurations.configuration import Configurations
from duetune.planners.packing import placed
from duetune.simulate.cluster.cluster_outcome import (
    AllocationChange,
    ClusterOutcome,
    JobOutcome,
    RoundRecord,
    What,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from duetune.core.planning import Placement, Stock
    from duetune.core.ports import Planner
    from duetune.knowledge.configurations.configuration import Configuration
    from duetune.knowledge.sources.knowledge_source import KnowledgeSource
    from duetune.simulate.cluster.cluster_world import Supply
    from duetune.simulate.cluster.job_views import Briefing
    from duetune.simulate.cluster.workload import ClusterJob

GIVEN_UP_DAYS = 90
"""A job that is not finished after this many days counts as never finished."""


class Delays(msgspec.Struct, frozen=True, kw_only=True):
    """The time in seconds of a start, of a restart, of a failed start, and between two plans."""

    start_s: float = 60.0
    restart_s: float = 60.0
    failed_s: float = 120.0
    round_s: float = 60.0

    def __post_init__(self) -> None:
        for field in ("start_s", "restart_s", "failed_s"):
            if not (math.isfinite(getattr(self, field)) and getattr(self, field) >= 0):
                raise InvalidInput(field, getattr(self, field), "seconds, 0 or more")
        if not (math.isfinite(self.round_s) and self.round_s > 0):
            raise InvalidInput("round_s", self.round_s, "seconds, above 0")


class Truth:
    """What configurations really do: tokens per second, 0 for one that runs out of memory."""

    def __init__(self, source: KnowledgeSource) -> None:
        self._source = source
        self._known: dict[str, float] = {}

    def pace(self, configuration: Configuration) -> float:
        """Return the tokens per second of one configuration; answers are cached."""
        key = configuration.key
        if key not in self._known:
            self._known[key] = float(self.paces(Configurations.of([configuration]))[0])
        return self._known[key]

    def paces(self, configurations: Configurations) -> NDArray[np.float64]:
        """Return the tokens per second of each configuration."""
        found = self._source.query(configurations)
        pace = found.tokens_per_s[:, 1]
        return np.where((found.p_valid >= 0.5) & (pace > 0), pace, 0.0)


class _Live:
    """A job that was submitted, with what it holds and what has happened to it."""

    def __init__(self, job: ClusterJob) -> None:
        self.job = job
        self.remaining = job.tokens
        self.held = -1
        self.placement: Placement | None = None
        self.configuration: Configuration | None = None
        self.pace = 0.0
        self.pending = 0.0
        self.fails = False
        self.started_s: float | None = None
        self.first_s: float | None = None
        self.restarts = self.failures = self.evictions = self.most_gpus = 0
        self.gpu_s = self.dollars = 0.0
        self.finished_s: float | None = None

    @property
    def progress(self) -> float:
        """Return the share of the work that is done."""
        return 1.0 - self.remaining / self.job.tokens


class Simulation:
    """Plays ``jobs`` to their end. ``supply`` gives the stock of GPUs over time."""

    def __init__(
        self,
        jobs: Sequence[ClusterJob],
        supply: Supply,
        planner: Planner,
        briefing: Briefing,
        truth: Truth,
        delays: Delays = Delays(),  # noqa: B008 - a frozen value
    ) -> None:
        self.jobs = sorted(jobs, key=lambda job: job.submitted_s)
        self.supply, self.planner, self.briefing, self.truth = supply, planner, briefing, truth
        self.delays = delays
        self.live: list[_Live] = []
        self.done: list[_Live] = []
        self.rounds: list[RoundRecord] = []
        self._changes: list[AllocationChange] = []
        self._paces: dict[tuple[object, ...], NDArray[np.float64]] = {}

    def run(self) -> ClusterOutcome:
        """Play rounds until no job is left that could run, and return the outcome."""
        arriving = list(reversed(self.jobs))
        round_s = self.delays.round_s
        number = 0
        while arriving or self.live:
            if arriving and not any(self._possible(each) for each in self.live):
                # Nothing can happen before the next arrival.
                number = max(number, math.ceil(arriving[-1].submitted_s / round_s))
            now = number * round_s
            self._give_up(now)
            while arriving and arriving[-1].submitted_s <= now:
                self.live.append(_Live(arriving.pop()))
            stock = self.supply.at(now)
            self._evict(stock)
            self._plan(stock, now)
            if not arriving and not any(self._possible(each) for each in self.live):
                break
            record = self._record(stock, now)
            self._advance(stock, now)
            self.rounds.append(msgspec.structs.replace(record, changes=tuple(self._changes)))
            self._changes.clear()
            number += 1
        return self._outcome()

    def _give_up(self, now: float) -> None:
        """Stop the jobs that were submitted longer than the limit ago."""
        limit = GIVEN_UP_DAYS * 86400.0
        for each in self.live:
            if now - each.job.submitted_s > limit:
                if each.placement is not None:
                    self._take(each, What.STOPPED)
                self.done.append(each)
        self.live = [each for each in self.live if now - each.job.submitted_s <= limit]

    def _evict(self, stock: Stock) -> None:
        """Take the GPUs of jobs whose nodes are no longer available."""
        for each in self.live:
            if each.placement is None:
                continue
            there = stock.partitions[each.placement.partition].nodes
            if any(node >= there for node, _ in each.placement.nodes):
                each.evictions += 1
                self._take(each, What.EVICTED)

    def _changed(self, each: _Live, what: What) -> None:
        """Record a change of the job's allocation."""
        assert each.placement is not None
        partition, gpus = each.placement.partition, each.placement.gpus
        self._changes.append(
            AllocationChange(job=each.job.name, what=what, partition=partition, gpus=gpus)
        )

    def _take(self, each: _Live, what: What) -> None:
        """Take the job's GPUs and record why."""
        self._changed(each, what)
        each.held, each.placement, each.configuration = -1, None, None
        each.pace = each.pending = 0.0
        each.fails = False
        each.started_s = None

    def _plan(self, stock: Stock, now: float) -> None:
        """Ask the planner and start, move or stop jobs as it says."""
        views = [self._view(each, now) for each in self.live]
        plan = self.planner.plan(views, stock)
        places = placed(plan, views, stock)
        for each in self.live:
            place = places.get(each.job.name)
            if place is None:
                if each.placement is not None:
                    self._take(each, What.STOPPED)
            elif place != each.placement or plan.shapes[each.job.name] != each.held:
                self._start(each, place, plan.shapes[each.job.name], now)
            elif self.briefing.efficiency is not None and not each.fails:
                self._tune(each)

    def _tune(self, each: _Live) -> None:
        """Give a running job the batch that is now the fastest, without a restart."""
        better = self.briefing.row(each.job, each.progress).configurations.get(each.held)
        if better is not None and self.truth.pace(better) > 0:
            each.configuration = better
        assert each.configuration is not None
        each.pace = self._goodput(each.configuration, each.progress)

    def _goodput(self, configuration: Configuration, progress: float) -> float:
        """Return the progress per second of a configuration; 0 if it runs out of memory."""
        efficiency = self.briefing.efficiency_of(configuration, progress)
        return self.truth.pace(configuration) * efficiency

    def _possible(self, each: _Live) -> bool:
        """Return whether the job runs or could run with some shape; if not, it never will."""
        if each.placement is not None:
            return True
        stock = self.supply.stock
        most = stock.quotas.get(each.job.project, int(stock.gpus.max(initial=0)))
        return bool((self.briefing.row(each.job).pace[stock.gpus <= most] > 0).any())

    def _view(self, each: _Live, now: float) -> JobView:
        """Return what the planner is shown of the job."""
        job = each.job
        return JobView(
            name=job.name,
            pace=self.briefing.row(job, each.progress).pace,
            remaining=each.remaining,
            age_s=now - job.submitted_s,
            held=each.held,
            placement=each.placement,
            busy=each.placement is not None and (each.pending > 0 or each.fails),
            rigid="num_gpus" in job.given,
            restarts=each.restarts,
            most_gpus=each.most_gpus,
            attained_gpu_s=each.gpu_s,
            start_s=self._delay(each),
            restart_s=self._restart(job),
            priority=job.priority,
            project=job.project,
            deadline_s=None if job.deadline_s is None else job.deadline_s - now,
        )

    def _start(self, each: _Live, place: Placement, shape: int, now: float) -> None:
        """Start or move the job; find out whether its configuration fits."""
        configuration = self.briefing.row(each.job, each.progress).configurations[shape]
        if each.first_s is not None:
            each.restarts += 1
        what = What.STARTED if each.placement is None else What.MOVED
        each.held, each.placement, each.configuration = shape, place, configuration
        self._changed(each, what)
        each.pace = self._goodput(configuration, each.progress)
        each.fails = each.pace <= 0
        each.started_s = now
        each.pending = self.delays.failed_s if each.fails else self._delay(each)
        if not each.fails and each.first_s is None:
            each.first_s = now

    def _restart(self, job: ClusterJob) -> float:
        """Return the seconds that a move of the job takes: those of the job, or of the cluster."""
        return self.delays.restart_s if job.restart_s is None else job.restart_s

    def _delay(self, each: _Live) -> float:
        """Return the seconds that the next start or move of the job takes, if it works."""
        first = each.first_s is None and each.job.restart_s is None
        return self.delays.start_s if first else self._restart(each.job)

    def _advance(self, stock: Stock, now: float) -> None:
        """Play the time until the next round for all running jobs and charge for it."""
        for each in self.live:
            if each.placement is None or each.configuration is None:
                continue
            place = each.placement
            gpu_s = place.gpus * self._progress(each, now, self.delays.round_s)
            each.gpu_s += gpu_s
            each.dollars += charge_by_second(gpu_s, stock.partitions[place.partition].price)
        self.done += [each for each in self.live if each.finished_s is not None]
        self.live = [each for each in self.live if each.finished_s is None]

    def _progress(self, each: _Live, now: float, seconds: float) -> float:
        """Play one round for the job; return the seconds for which it held its GPUs."""
        assert each.configuration is not None
        did = round_step(each.remaining, each.pace, each.pending, seconds)
        each.pending = did.pending_s
        if each.fails:
            if each.pending <= DONE_S:
                each.failures += 1
                self.briefing.ran_out(each.job, each.configuration, now + did.waited_s)
                self._take(each, What.FAILED)
        elif did.done:
            each.finished_s = now + did.waited_s + did.ran_s
            self._changed(each, What.FINISHED)
            pace = self.truth.pace(each.configuration)
            self.briefing.finished(each.job, each.configuration, pace, each.finished_s)
        else:
            each.remaining = did.remaining
            if did.ran_s > 0:
                each.most_gpus = max(each.most_gpus, each.configuration.num_gpus)
                pace = self.truth.pace(each.configuration)
                self.briefing.shown(each.job, each.configuration, pace)
        return did.held_s

    def _record(self, stock: Stock, now: float) -> RoundRecord:
        """Return the record of the round after planning, without its changes."""
        used = np.zeros(len(stock.partitions), np.int64)
        for each in self.live:
            if each.placement is not None:
                used[each.placement.partition] += each.placement.gpus
        waiting = sum(each.placement is None for each in self.live)
        return RoundRecord(
            at_s=now,
            used=tuple(used.tolist()),
            there=tuple(stock.capacity.tolist()),
            running=len(self.live) - waiting,
            waiting=waiting,
        )

    def _outcome(self) -> ClusterOutcome:
        order = {job.name: number for number, job in enumerate(self.jobs)}
        jobs = [
            JobOutcome(
                name=each.job.name,
                submitted_s=each.job.submitted_s,
                first_s=each.first_s,
                finished_s=each.finished_s,
                deadline_s=each.job.deadline_s,
                gpu_hours=each.gpu_s / HOUR_S,
                dollars=each.dollars,
                restarts=each.restarts,
                failures=each.failures,
                evictions=each.evictions,
                alone_s=self._alone(each),
            )
            for each in sorted([*self.done, *self.live], key=lambda each: order[each.job.name])
        ]
        return ClusterOutcome(
            planner=self.planner.name,
            source=self.briefing.source.name,
            jobs=tuple(jobs),
            rounds=tuple(self.rounds),
            round_s=self.delays.round_s,
        )

    def _fastest(self, job: ClusterJob) -> NDArray[np.float64]:
        """Return the true pace of the best configuration for each shape, 0 if none works."""
        key = tuple(job.given.items())
        if key not in self._paces:
            stock, rows = self.supply.stock, self.briefing.possible(job).rows
            paces = np.zeros(len(stock.shapes))
            efficiency = self.briefing.efficiency
            for each, raw in zip(rows, self.truth.paces(rows), strict=True):
                pace = raw * (1.0 if efficiency is None else efficiency.mean(each))
                for shape in stock.alike[each.gpu_model, each.num_gpus, each.num_nodes]:
                    paces[shape] = max(paces[shape], pace)
            self._paces[key] = paces
        return self._paces[key]

    def _alone(self, each: _Live) -> float | None:
        """Return the time in seconds that the job would have needed with a fair share of the
        cluster.

        The cluster is shared evenly among the jobs that were there at the same time. The job has
        its best configuration. If its shape is larger than its share, it has the shape for part of
        the time.
        """
        if each.finished_s is None:
            return None
        spans = [(other.job.submitted_s, other.finished_s) for other in (*self.done, *self.live)]
        length = each.finished_s - each.job.submitted_s
        shared = math.fsum(
            max(0.0, min(each.finished_s, end or math.inf) - max(each.job.submitted_s, begin))
            for begin, end in spans
        )
        company = max(1.0, shared / length) if length > 0 else 1.0
        stock = self.supply.at(each.job.submitted_s)
        share = np.maximum(1.0, stock.capacity / company)
        part = np.minimum(1.0, share[stock.partition] / stock.gpus)
        best = float(np.max(part * self._fastest(each.job)))
        # Even alone it would wait for the next plan.
        start_s = each.job.restart_s
        begins = self.delays.round_s + (self.delays.start_s if start_s is None else start_s)
        return begins + each.job.tokens / best if best > 0 else None
