"""Queue planners: they serve jobs one after the other.

The order is by arrival (fifo), by shortest remaining time (srt) or by earliest deadline (edf).
"""

from __future__ import annotations

import math
from enum import StrEnum
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from duetune.core.planning import Plan
from duetune.errors import InvalidInput
from duetune.planners.packing import Packing

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from duetune.core.planning import JobView, Placement, Stock

CAUTION = 1.2
"""The safety factor on the predicted time of a backfilled job."""


class QueueOrder(StrEnum):
    """The order in which jobs of the same priority are served."""

    ARRIVAL = "fifo"
    REMAINING = "srt"
    DEADLINE = "edf"


class QueuePlanner(msgspec.Struct, frozen=True):
    """Gives each job in turn the shape with the best score among those that fit.

    The score is pace / GPUs^``balance``. In order of deadline it is the least GPU time among the
    shapes that finish on time. A job waits if the best score that fits is below ``patience`` times
    the best score of all available shapes.

    With fifo, running jobs keep their GPUs and no job overtakes a waiting one. ``backfill`` lets
    later jobs start if they do not delay the first waiting job. With the other orders, jobs
    overtake and take GPUs from jobs that are served later.
    """

    order: QueueOrder = QueueOrder.ARRIVAL
    backfill: bool = False
    patience: float = 0.35
    balance: float = 0.7

    def __post_init__(self) -> None:
        if not 0 <= self.patience <= 1:
            raise InvalidInput("patience", self.patience, "a share from 0 to 1")
        if not 0 <= self.balance <= 1:
            raise InvalidInput("balance", self.balance, "a power from 0 to 1")
        if self.backfill and self.order is not QueueOrder.ARRIVAL:
            allowed = "the order fifo; with the other orders jobs overtake anyway"
            raise InvalidInput("backfill", self.order.value, allowed)

    @property
    def as_submitted(self) -> bool:
        """Return True: a source without knowledge chooses one configuration per job."""
        return True

    @property
    def name(self) -> str:
        """Return the name by which the registry knows this planner."""
        return f"{self.order}:backfill" if self.backfill else self.order.value

    def plan(self, views: Sequence[JobView], stock: Stock) -> Plan:
        """Return the shapes and reasons of this round; called once per round with all jobs."""
        strict = self.order is QueueOrder.ARRIVAL
        round_ = _Round(views, stock, keep_all=strict)
        blocked: JobView | None = None
        for view in sorted(round_.waiting, key=self._rank):
            if blocked is not None:
                self._backfilled(view, blocked, round_)
                continue
            obstacle = self._serve(view, round_)
            if obstacle and strict:
                if not self.backfill:
                    round_.hold_up(obstacle)
                    break
                blocked = view
                score = np.where(stock.there, self._score(view, stock), 0.0)
                round_.reserve(view, int(np.argmax(score)))
        return Plan(round_.shapes, round_.reasons)

    def _rank(self, view: JobView) -> tuple[float, float]:
        """Return the sort key; Python's sort keeps equal jobs in order of arrival."""
        # A running job needs no start, so a slightly shorter or earlier job does not displace it.
        bonus = view.restart_s if view.held >= 0 else 0.0
        if self.order is QueueOrder.REMAINING:
            fastest = float(view.pace.max(initial=0.0))
            left = view.remaining / fastest if fastest > 0 else math.inf
            return (-view.priority, left - bonus)
        if self.order is QueueOrder.DEADLINE:
            due = math.inf if view.deadline_s is None else view.deadline_s
            return (-view.priority, due - bonus)
        return (-view.priority, 0.0)

    def _serve(self, view: JobView, round_: _Round) -> str:
        """Give the job GPUs, or return why others must wait behind it."""
        stock = round_.stock
        score = self._score(view, stock)
        possible = (score > 0) & stock.there
        if not (score > 0).any():
            # Waiting for this job would block all others for ever.
            round_.reasons[view.name] = "no GPUs of this cluster fit this job"
            return ""
        if not possible.any():
            return "no available GPUs fit this job"
        if view.held >= 0 and view.placement is not None and round_.keep(view):
            return ""
        room = possible & round_.room(view)
        if not room.any() and (possible & round_.packing.room()).any():
            # Only the quota of its own project blocks this job, so others need not wait.
            round_.reasons[view.name] = "the GPU quota of its project is used up"
            return ""
        if not room.any():
            return "not enough free GPUs"
        best = int(np.argmax(np.where(room, score, 0.0)))
        most = float(np.max(np.where(possible, score, 0.0)))
        if score[best] < self.patience * most:
            return "the free GPUs are too slow for this job"
        round_.put(view, best)
        return ""

    def _backfilled(self, view: JobView, blocked: JobView, round_: _Round) -> None:
        """Start the job if that does not delay ``blocked``, the first waiting job."""
        score = self._score(view, round_.stock)
        room = (score > 0) & round_.stock.there & round_.room(view)
        for shape in np.argsort(-np.where(room, score, 0.0), kind="stable").tolist():
            if not room[shape]:
                return
            ends = view.start_s + CAUTION * view.remaining / float(view.pace[shape])
            if ends <= round_.reserved_at or round_.beside_reserved(shape):
                round_.put(view, shape, f"backfilled without delaying {blocked.name}")
                return

    def _score(self, view: JobView, stock: Stock) -> NDArray[np.float64]:
        """Return the score of each shape, 0 where the job should not have it."""
        pace = view.pace
        balanced = pace / stock.gpus**self.balance
        if self.order is not QueueOrder.DEADLINE or view.deadline_s is None:
            return balanced
        with np.errstate(divide="ignore"):
            needs = view.start_s + view.remaining / pace
        in_time = (pace > 0) & (needs <= view.deadline_s)
        if not in_time.any():
            return pace
        return np.where(in_time, pace / stock.gpus, 0.0)


class _Round:
    """The GPUs given out so far in this round, and the reasons."""

    def __init__(self, views: Sequence[JobView], stock: Stock, *, keep_all: bool) -> None:
        self.stock = stock
        self.packing = Packing(stock)
        self.shapes: dict[str, int] = {}
        self.reasons: dict[str, str] = {}
        self.used: dict[str, int] = {}
        self.reserved_at = 0.0
        self._later: Packing | None = None
        self._reserved = -1
        self._ends: list[tuple[float, Placement]] = []
        self.waiting = []
        for view in views:
            stays = view.held >= 0 and (keep_all or view.pinned)
            if not (stays and self.keep(view)):
                self.waiting.append(view)

    def keep(self, view: JobView) -> bool:
        """Let the job keep what it holds; return False if that is not possible."""
        pace = float(view.pace[view.held])
        if view.placement is None or not self._allowed(view):
            return False
        if (pace <= 0 and not view.pinned) or not self.packing.keep(view.placement):
            return False
        ends = view.remaining / pace if pace > 0 else math.inf
        self._ends.append((ends, view.placement))
        self._given(view, view.held)
        return True

    def put(self, view: JobView, shape: int, reason: str = "") -> None:
        """Give the job this shape."""
        placement = self.packing.put(shape)
        if placement is None:
            return
        ends = view.start_s + view.remaining / float(view.pace[shape])
        self._ends.append((ends, placement))
        if self._later is not None and ends > self.reserved_at:
            self._later.put(shape)
        self._given(view, shape)
        if reason:
            self.reasons[view.name] = reason

    def room(self, view: JobView) -> NDArray[np.bool_]:
        """Return for each shape whether free GPUs and the job's quota allow it."""
        return self.packing.room() & (self.stock.gpus <= self._quota_left(view))

    def reserve(self, view: JobView, shape: int) -> None:
        """Compute the time from which ``shape`` is free for the first waiting job."""
        later = Packing(self.stock)
        later.free = [free.copy() for free in self.packing.free]
        at = 0.0
        for ends, placement in sorted(self._ends, key=lambda end: end[0]):
            if bool(later.room()[shape]):
                break
            later.give_back(placement)
            at = ends
        self.reserved_at, self._later, self._reserved = at, later, shape
        self.reasons[view.name] = f"enough GPUs become free in about {at / 60:.0f} min"

    def beside_reserved(self, shape: int) -> bool:
        """Return whether the reserved shape is free at its time even with ``shape`` in use."""
        if self._later is None:
            return False
        trial = Packing(self.stock)
        trial.free = [free.copy() for free in self._later.free]
        return trial.put(shape) is not None and bool(trial.room()[self._reserved])

    def hold_up(self, obstacle: str) -> None:
        """Record why the first waiting job waits, and that all others wait behind it."""
        reason = obstacle
        for view in self.waiting:
            if view.name not in self.shapes:
                self.reasons[view.name] = reason
                reason = "waits behind earlier jobs"

    def _quota_left(self, view: JobView) -> float:
        """Return how many GPUs the job's project may still get; infinite without a quota."""
        return self.stock.quotas.get(view.project, math.inf) - self.used.get(view.project, 0)

    def _allowed(self, view: JobView) -> bool:
        return view.pinned or int(self.stock.gpus[view.held]) <= self._quota_left(view)

    def _given(self, view: JobView, shape: int) -> None:
        self.shapes[view.name] = shape
        gpus = int(self.stock.gpus[shape])
        self.used[view.project] = self.used.get(view.project, 0) + gpus
