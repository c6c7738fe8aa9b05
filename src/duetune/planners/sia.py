"""Sia (SOSP'23): a planner that assigns GPUs by an integer program over normalised goodput.

A job may have at most twice the GPUs that it has ever run with; it starts with the fewest it can.
Its pace in each of these shapes is divided by the smallest of them and multiplied by the fewest
GPUs it can run with, so that all jobs count alike. If the job holds GPUs, every other shape is
discounted by the restart factor r = (T - N S) / (T + S) of a job of age T seconds with N restarts
of S seconds. The program minimises the sum of the paces to the power p; with p below 0 the slowest
jobs count most. Having no GPUs costs more than almost every shape. The integer program itself is in
``round_program``. ``docs/explanation/cluster.md`` lists the differences from the published program.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import numpy as np

from duetune.core.planning import Plan
from duetune.errors import InvalidInput
from duetune.planners.round_program import assigned

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from duetune.core.planning import JobView, Stock

WORST = 3000.0
"""The value at which a utility is clipped."""


class Sia(msgspec.Struct, frozen=True):
    """The Sia planner.

    ``power`` is the paper's p and ``incentive`` its lambda. A job may have ``scale_up`` times the
    most GPUs that it has ever run with.
    """

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
        """Return ``sia``, with the power if that is not the usual one."""
        return "sia" if self.power == -0.5 else f"sia:{self.power:g}"

    def plan(self, views: Sequence[JobView], stock: Stock) -> Plan:
        """Return the shapes of this round; called once per round with all jobs."""
        return Plan(assigned(views, {view.name: self.costs(view, stock) for view in views}, stock))

    def costs(self, view: JobView, stock: Stock) -> NDArray[np.float64]:
        """Return the cost of each shape for this job, infinite where the shape is not allowed.

        The cost is A.U + lambda (1 - A) of the paper, less the cost of having no shape.
        """
        cost = np.full(len(stock.shapes), np.inf)
        possible = (view.pace > 0) & stock.there & reachable(view, stock, self.scale_up)
        if not possible.any():
            return cost
        goodput = normalised(view, stock, possible)
        goodput[np.arange(cost.size) != view.held] *= restart_factor(view)
        possible &= goodput > 0
        with np.errstate(divide="ignore", invalid="ignore"):
            utility = np.minimum(np.round(np.maximum(goodput, 0.0) ** self.power, 2), WORST)
        sign = 1.0 if self.power < 0 else -1.0
        cost[possible] = sign * utility[possible] - self.incentive
        return cost


def normalised(view: JobView, stock: Stock, possible: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Return the job's row of the goodput matrix: its slowest possible shape has the job's fewest
    GPUs.
    """
    fewest = int(stock.gpus[view.pace > 0].min())
    return np.asarray(view.pace / view.pace[possible].min() * fewest, np.float64)


def restart_factor(view: JobView) -> float:
    """Return the share of a job's time that is left for work if it restarts once more.

    It is 1 for a job that holds no GPUs: a start is not a restart. It is also 1 for a job that is
    younger than a restart is long; of a rigid job the GPU-seconds count instead of the age.
    """
    begun = view.attained_gpu_s if view.rigid else view.age_s
    whole = view.age_s + view.restart_s
    if view.held < 0 or begun < view.restart_s or whole <= 0:
        return 1.0
    return max(0.0, view.age_s - view.restarts * view.restart_s) / whole


def reachable(view: JobView, stock: Stock, scale_up: float) -> NDArray[np.bool_]:
    """Return for each shape whether the job may have it in this round.

    The limit is ``scale_up`` times the most GPUs that the job has ever run with, for all
    partitions. If a partition has no larger shape within the limit, the next larger one is allowed:
    so a job starts with the smallest shape that it can run with. A pinned job keeps its shape.
    """
    allowed = np.zeros(len(stock.shapes), np.bool_)
    if view.pinned:
        allowed[view.held] = True
        return allowed
    most = max(view.most_gpus, int(stock.gpus[view.held]) if view.held >= 0 else 0)
    possible = view.pace > 0
    for partition in range(len(stock.partitions)):
        shapes = np.flatnonzero(possible & (stock.partition == partition))
        if shapes.size:
            gpus = stock.gpus[shapes]
            larger = gpus[gpus > most]
            limit = max(scale_up * most, larger.min() if larger.size else 0)
            allowed[shapes[gpus <= limit]] = True
    return allowed
