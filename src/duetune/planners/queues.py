"""Planners that serve jobs one after the other: first come, shortest first, most urgent first."""

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
"""Backfilled jobs are taken to need so many times what is believed."""


class QueueOrder(StrEnum):
    """Who comes first, among those of the same priority."""

    ARRIVAL = "fifo"
    REMAINING = "srt"
    DEADLINE = "edf"


class QueuePlanner(msgspec.Struct, frozen=True):
    """Each job in turn gets the best shape for which there is room: that with the highest pace for
    GPUs to the power of ``balance``; by deadline the one that is in time with the least GPU time.
    If that is below ``patience`` of the best that there could be, it waits for a better one.

    First come, first served: who has GPUs keeps them, and nobody overtakes the one that waits,
    unless with ``backfill``: then those that do not hold it up. The other orders overtake, and
    take GPUs from those behind.
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
            raise InvalidInput("backfill", self.order.value, "fifo: the others overtake anyhow")

    @property
    def as_submitted(self) -> bool:
        return True

    @property
    def name(self) -> str:
        return f"{self.order}:backfill" if self.backfill else self.order.value

    def plan(self, views: Sequence[JobView], stock: Stock) -> Plan:
        strict = self.order is QueueOrder.ARRIVAL
        round_ = _Round(views, stock, keep_all=strict)
        blocked: JobView | None = None
        for view in sorted(round_.waiting, key=self._first):
            if blocked is not None:
                self._squeeze_in(view, blocked, round_)
                continue
            why = self._serve(view, round_)
            if why and strict:
                if not self.backfill:
                    round_.hold_up(why)
                    break
                blocked = view
                round_.reserve(view, self._best(view, stock.there, stock))
        return round_.plan()

    def _first(self, view: JobView) -> tuple[float, ...]:
        """Python's sort keeps those that are equal in the order in which they came."""
        if self.order is QueueOrder.REMAINING:
            # Who runs need not start again, so a little shorter is not enough to take its place.
            left = _shortest(view) - (view.restart_s if view.held >= 0 else 0.0)
            return (-view.priority, left)
        if self.order is QueueOrder.DEADLINE:
            due = math.inf if view.deadline_s is None else view.deadline_s
            return (-view.priority, due - (view.restart_s if view.held >= 0 else 0.0))
        return (-view.priority,)

    def _serve(self, view: JobView, round_: _Round) -> str:
        """Give it GPUs; why not, if not."""
        stock = round_.stock
        score = self._score(view, stock)
        possible = (score > 0) & stock.there
        if not (score > 0).any():
            # It would hold up all others for ever.
            round_.reasons[view.name] = "nothing fits it"
            return ""
        if not possible.any():
            return "nothing that is there fits it"
        if view.held >= 0 and view.placement is not None and round_.keep(view):
            return ""
        room = possible & round_.room(view)
        if not room.any() and (possible & round_.packing.room()).any():
            # Its own project is in its way: that is no reason for others to wait.
            round_.reasons[view.name] = "its project has as many GPUs as it may hold"
            return ""
        if not room.any():
            return "there is no room"
        best = int(np.argmax(np.where(room, score, 0.0)))
        most = float(np.max(np.where(possible, score, 0.0)))
        if score[best] < self.patience * most:
            return "what is free would be too slow for it"
        round_.put(view, best)
        return ""

    def _squeeze_in(self, view: JobView, blocked: JobView, round_: _Round) -> None:
        """Start it if the one that waits is not held up by it."""
        score = self._score(view, round_.stock)
        room = (score > 0) & round_.stock.there & round_.room(view)
        for shape in np.argsort(-np.where(room, score, 0.0), kind="stable").tolist():
            if not room[shape]:
                return
            ends = view.start_s + CAUTION * view.remaining / float(view.pace[shape])
            if ends <= round_.reserved_at or round_.beside_reserved(shape):
                round_.put(view, shape, f"beside {blocked.name}, which is first")
                return

    def _best(self, view: JobView, there: NDArray[np.bool_], stock: Stock) -> int:
        return int(np.argmax(np.where(there, self._score(view, stock), 0.0)))

    def _score(self, view: JobView, stock: Stock) -> NDArray[np.float64]:
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
    """What was given out so far."""

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
        """What it holds, if that is still possible."""
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
        room = self.packing.room()
        quota = self.stock.quotas.get(view.project)
        if quota is not None:
            room &= self.stock.gpus <= quota - self.used.get(view.project, 0)
        return room

    def reserve(self, view: JobView, shape: int) -> None:
        """For the first that waits: the moment from which there is room for its best shape."""
        later = Packing(self.stock)
        later.free = [free.copy() for free in self.packing.free]
        at = 0.0
        for ends, placement in sorted(self._ends, key=lambda each: each[0]):
            if bool(later.room()[shape]):
                break
            later.give_back(placement)
            at = ends
        self.reserved_at, self._later, self._reserved = at, later, shape
        self.reasons[view.name] = f"there will be room in about {at / 60:.0f} min"

    def beside_reserved(self, shape: int) -> bool:
        """Whether the one that waits has its room at that moment even so."""
        if self._later is None:
            return False
        trial = Packing(self.stock)
        trial.free = [free.copy() for free in self._later.free]
        return trial.put(shape) is not None and bool(trial.room()[self._reserved])

    def hold_up(self, why: str) -> None:
        """The first that waits, and with it all others."""
        first = True
        for view in self.waiting:
            if view.name not in self.shapes:
                self.reasons[view.name] = why if first else "others are before it"
                first = False

    def plan(self) -> Plan:
        return Plan(self.shapes, self.reasons)

    def _allowed(self, view: JobView) -> bool:
        quota = self.stock.quotas.get(view.project)
        held = int(self.stock.gpus[view.held])
        return view.pinned or quota is None or held <= quota - self.used.get(view.project, 0)

    def _given(self, view: JobView, shape: int) -> None:
        self.shapes[view.name] = shape
        gpus = int(self.stock.gpus[shape])
        self.used[view.project] = self.used.get(view.project, 0) + gpus


def _shortest(view: JobView) -> float:
    """The time it still needs with the best shape that there could be."""
    fastest = float(view.pace.max(initial=0.0))
    return view.remaining / fastest if fastest > 0 else math.inf
