"""Sia (SOSP'23): who gets which GPUs is an integer program over normalised goodput.

The pace of each job in each shape is divided by its smallest (times the fewest GPUs it can run
with), so that all jobs count alike. A shape other than the present one is discounted by the restart
factor r = (T - N S) / (T + S) of a job of age T with N restarts of S seconds. The sum of the paces
to the power p (negative: the slowest count most) is minimised; to have no GPUs costs more than any
of them. Jobs start as small as they can and at most double in a round.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import numpy as np

from duetune.core.planning import Plan
from duetune.errors import InvalidInput
from duetune.planners.assignment import assigned

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from duetune.core.planning import JobView, Stock

WORST = 3000.0
"""What a utility is clipped at."""


class Sia(msgspec.Struct, frozen=True):
    """``power`` p, ``incentive`` lambda, and by how much a job may grow in a round."""

    power: float = -0.5
    incentive: float = 1.1
    scale_up: float = 2.0

    def __post_init__(self) -> None:
        if not (np.isfinite(self.power) and self.power != 0):
            raise InvalidInput("power", self.power, "a number other than 0")
        if not self.scale_up > 1:
            raise InvalidInput("scale_up", self.scale_up, "a factor above 1")

    @property
    def name(self) -> str:
        return "sia" if self.power == -0.5 else f"sia:{self.power:g}"

    def plan(self, views: Sequence[JobView], stock: Stock) -> Plan:
        return Plan(assigned(views, {view.name: self.costs(view, stock) for view in views}, stock))

    def costs(self, view: JobView, stock: Stock) -> NDArray[np.float64]:
        """Of each shape for this job: A.U + lambda (1 - A), less what having none costs. Infinite
        where it may not have it.
        """
        possible = (view.pace > 0) & stock.there
        cost = np.full(len(stock.shapes), np.inf)
        if not possible.any():
            return cost
        goodput = normalised(view, stock) * np.where(
            np.arange(cost.size) == view.held, 1.0, restart_factor(view)
        )
        possible &= reachable(view, stock, self.scale_up) & (goodput > 0)
        with np.errstate(divide="ignore", invalid="ignore"):
            utility = np.minimum(np.round(np.maximum(goodput, 0.0) ** self.power, 2), WORST)
        sign = 1.0 if self.power < 0 else -1.0
        cost[possible] = sign * utility[possible] - self.incentive
        return cost


def normalised(view: JobView, stock: Stock) -> NDArray[np.float64]:
    """The row of the goodput matrix: 1 (times the fewest GPUs it can run with) at its slowest."""
    possible = view.pace > 0
    fewest = int(stock.gpus[possible].min())
    return np.asarray(view.pace / view.pace[possible].min() * fewest, np.float64)


def restart_factor(view: JobView) -> float:
    """What is left of a job's time if it restarts once more as often as it did so far."""
    if view.age_s < view.restart_s:
        return 1.0
    spent = view.restarts * view.restart_s
    whole = view.age_s + view.restart_s
    return max(0.0, view.age_s - spent) / whole if whole > 0 else 1.0


def reachable(view: JobView, stock: Stock, scale_up: float) -> NDArray[np.bool_]:
    """Shapes it may have in this round: the smallest of each partition to start with, then up to
    ``scale_up`` times the GPUs that it has. Where a partition has nothing possible between, its
    next larger one will do. Who is pinned stays.
    """
    allowed = np.zeros(len(stock.shapes), np.bool_)
    if view.pinned:
        allowed[view.held] = True
        return allowed
    held = int(stock.gpus[view.held]) if view.held >= 0 else 0
    possible = view.pace > 0
    for partition in range(len(stock.partitions)):
        mine = np.flatnonzero(possible & (stock.partition == partition))
        if mine.size:
            gpus = stock.gpus[mine]
            larger = gpus[gpus > held]
            limit = max(scale_up * held, larger.min() if larger.size else 0)
            allowed[mine[gpus <= limit]] = True
    return allowed
