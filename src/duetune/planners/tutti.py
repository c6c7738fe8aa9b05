"""Tutti: all jobs at once, by when they would be done, when they are due, and what that costs.

A job that needs T more seconds in a shape (a restart included, where it is not the one it has) is
worth 1/T there: of two ways to use GPUs the better is the one that completes more jobs per second.
With few jobs each runs as fast as it can; where GPUs are short the shortest come first, in the
shapes that use GPUs best, since for the same GPUs two short jobs complete more than one long one.
It counts more the longer a job is there, so that none waits for ever.

Dollars: an hour in a shape saves a job as much of the time in its fastest shape as the one is of
the pace of the other. That, at ``worth`` dollars for an hour sooner, has to pay for what the shape
costs above the cheapest way to do the same work. So GPUs that cost nothing more (fixed ones, owned)
are used first, others when the time they save is worth it. Spot is believed to take somewhat longer
than it says.

Deadlines: a job that has not much more time than it needs in the shapes that pay is at risk. Shapes
in which it is on time then count as much as several jobs, whether they pay or not, so it gets the
cheapest of them; what is late in any case is a job like any other. Who is saved stays saved: a
job that runs is at risk for longer than one that waits.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from duetune.core.planning import Plan, Tenure
from duetune.errors import InvalidInput
from duetune.planners.assignment import assigned

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from duetune.core.planning import JobView, Stock

    Row = NDArray[np.float64]

GAP = 2e-3
"""What pace is believed to be is not known to a thousandth."""

RISK = 1.1
"""So much longer a job takes on spot, with what it loses when that is taken away."""

_HOUR_S = 3600.0


class Tutti(msgspec.Struct, frozen=True):
    """``worth`` is in dollars per hour. ``alert``: a job is at risk when it has less than so many
    times the time that it needs (twice that while it runs); ``urgency``: its being on time counts
    as so many jobs. ``patience`` is the power to which age counts.
    """

    worth: float = 20.0
    alert: float = 2.0
    urgency: float = 5.0
    patience: float = 1.0

    def __post_init__(self) -> None:
        if not (math.isfinite(self.worth) and self.worth > 0):
            raise InvalidInput("worth", self.worth, "dollars per hour, above 0")

    @property
    def name(self) -> str:
        return "tutti" if self.worth == 20.0 else f"tutti:{self.worth:g}"

    def plan(self, views: Sequence[JobView], stock: Stock) -> Plan:
        needs = {view.name: time_needed(view, stock) for view in views}
        soonest = [each.min(initial=math.inf) for each in needs.values()]
        possible = [each for each in soonest if math.isfinite(each)]
        # The time scale against which a completion counts as one.
        usual = max(1.0, float(np.mean(possible or [1.0])))
        costs = {view.name: self._cost(view, needs[view.name], usual, stock) for view in views}
        shapes = assigned(views, costs, stock, gap=GAP)
        return Plan(shapes, {view.name: self._reason(view, needs, shapes, stock) for view in views})

    def _cost(self, view: JobView, needs: Row, usual: float, stock: Stock) -> Row:
        possible = np.isfinite(needs)
        cost = np.full(needs.size, np.inf)
        if not possible.any():
            return cost
        weight = usual / float(needs.min()) * (1.0 + view.age_s / usual) ** self.patience
        gain = weight * self._gain(view, needs, stock)
        if self._at_risk(view, needs, stock):
            gain = gain + self.urgency * (needs <= (view.deadline_s or 0.0))
        cost[possible] = -gain[possible]
        return cost

    def _gain(self, view: JobView, needs: Row, stock: Stock) -> Row:
        """Hours in the fastest shape that an hour in each saves, less what it costs in such hours;
        below zero it is better to wait.
        """
        return float(needs.min()) / needs - premium(view, needs, stock) / self.worth

    def _at_risk(self, view: JobView, needs: Row, stock: Stock) -> bool:
        if view.deadline_s is None or float(needs.min(initial=math.inf)) > view.deadline_s:
            return False
        paying = needs[self._gain(view, needs, stock) > 0]
        alert = self.alert if view.held < 0 else 2 * self.alert
        return view.deadline_s < alert * float(paying.min(initial=math.inf))

    def _reason(
        self, view: JobView, needs: dict[str, Row], shapes: dict[str, int], stock: Stock
    ) -> str:
        mine = needs[view.name]
        if not np.isfinite(mine).any():
            return "nothing that is there fits it"
        shape = shapes.get(view.name)
        if shape is None:
            return "the GPUs go to jobs before it: of higher priority, urgent, or done sooner"
        partition = stock.partitions[stock.shapes[shape].partition]
        gpus = f"{stock.shapes[shape].gpus} x {partition.gpu_model}"
        text = f"done in about {mine[shape] / 60:.0f} min on {gpus}"
        if partition.tenure is not Tenure.FIXED:
            text += f" ({partition.tenure.replace('_', ' ')})"
        if self._at_risk(view, mine, stock):
            text += f", due in {(view.deadline_s or 0.0) / 60:.0f} min"
        return text


def time_needed(view: JobView, stock: Stock) -> Row:
    """Seconds until it would be done, by shape; infinite where it cannot be."""
    change = view.restart_s if view.held >= 0 else view.start_s
    spot = np.array([each.tenure is Tenure.SPOT for each in stock.partitions])[stock.partition]
    needs = np.full(len(stock.shapes), np.inf)
    possible = (view.pace > 0) & stock.there
    needs[possible] = view.remaining / view.pace[possible] + change
    if view.held >= 0 and possible[view.held]:
        needs[view.held] -= change
    return np.where(spot, RISK * needs, needs)


def premium(view: JobView, needs: Row, stock: Stock) -> Row:
    """Dollars per hour of each shape, above what its work costs where that is cheapest; the time
    of a restart is paid and does no work.
    """
    possible = np.isfinite(needs)
    pace = np.zeros(needs.size)
    pace[possible] = view.remaining / needs[possible]
    cheapest = float((stock.price[possible] / view.pace[possible]).min(initial=math.inf))
    return np.asarray(np.maximum(0.0, stock.price - cheapest * pace), np.float64)
