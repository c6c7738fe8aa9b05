"""Tutti: a completion-time planner that assigns GPUs to all jobs of a round at once.

It weighs four things: when each job would finish, when it is due, and the dollars and GPU-hours
that takes.

Completion: a job that needs T more seconds in a shape (including the restart if it must move) is
worth 1/T there, so the planner maximises completed jobs per second. With few jobs each runs as fast
as it can. When GPUs are short, the shortest jobs come first, in the shapes that use GPUs best. The
weight of a job grows with its age, so no job waits for ever.

Cost: an hour in a shape saves a job part of the time in its fastest shape: the ratio of the two
paces. At ``worth`` dollars per hour saved, this must pay for what the shape costs above the
cheapest way to do the same work. So GPUs without extra cost (fixed, owned) are used first, and
others when the time saved is worth their price. Spot is assumed to take 10% longer (``RISK``). An
hour of a GPU counts ``gpu_hour`` dollars more than its price, so that a job does not take GPUs that
make it hardly faster.

Deadlines: a job is at risk when its time left is short against the time it needs in the shapes that
pay. Shapes that finish on time then count as much as ``urgency`` jobs, whether they pay or not, so
the job gets the cheapest of them. A job that is late in any case counts like any other. A running
job stays at risk for longer than a waiting one, so a job that was saved is not given up again.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from duetune.core.planning import Plan, Tenure
from duetune.errors import InvalidInput
from duetune.planners.round_program import assigned

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from duetune.core.planning import JobView, Stock

    Row = NDArray[np.float64]

GAP = 2e-3
"""The relative gap to the optimum at which the solver stops: predicted paces are no more exact."""

RISK = 1.1
"""The factor by which a job takes longer on spot, because of the work that preemptions lose."""


class Tutti(msgspec.Struct, frozen=True):
    """The tutti planner.

    - ``worth``: the value of finishing a job one hour sooner, in dollars.
    - ``gpu_hour``: what an hour of a GPU counts for in addition to its price, in dollars. It makes
      GPUs that are already paid for worth saving.
    - ``alert``: a waiting job is at risk when its time left is below ``alert`` times the time it
      needs; for a running job the factor is twice that.
    - ``urgency``: finishing a job at risk on time counts as much as this number of jobs.
    - ``patience``: the power with which a job's age raises its weight.
    """

    worth: float = 20.0
    gpu_hour: float = 2.0
    alert: float = 2.0
    urgency: float = 5.0
    patience: float = 1.0

    def __post_init__(self) -> None:
        if not (math.isfinite(self.worth) and self.worth > 0):
            raise InvalidInput("worth", self.worth, "dollars per hour, above 0")
        if not (math.isfinite(self.gpu_hour) and self.gpu_hour >= 0):
            raise InvalidInput("gpu_hour", self.gpu_hour, "dollars, zero or more")

    @property
    def name(self) -> str:
        """Return ``tutti``, with the worth and the GPU-hour if they are not the usual ones."""
        usual = Tutti()
        if self.gpu_hour != usual.gpu_hour:
            return f"tutti:{self.worth:g}:{self.gpu_hour:g}"
        return "tutti" if self.worth == usual.worth else f"tutti:{self.worth:g}"

    def plan(self, views: Sequence[JobView], stock: Stock) -> Plan:
        """Return the shapes and reasons of this round; called once per round with all jobs."""
        needs = {view.name: time_needed(view, stock) for view in views}
        soonest = [seconds.min(initial=math.inf) for seconds in needs.values()]
        possible = [seconds for seconds in soonest if math.isfinite(seconds)]
        # The time scale: a job that needs this many seconds has weight one.
        usual = max(1.0, float(np.mean(possible or [1.0])))
        costs = {view.name: self._cost(view, needs[view.name], usual, stock) for view in views}
        shapes = assigned(views, costs, stock, gap=GAP)
        return Plan(
            shapes,
            {
                view.name: self._reason(view, needs[view.name], shapes.get(view.name), stock)
                for view in views
            },
        )

    def _cost(self, view: JobView, needs: Row, usual: float, stock: Stock) -> Row:
        """Return the cost of each shape for the integer program, infinite where not possible."""
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
        """Return for each shape the hours saved per hour, less its extra cost at ``worth``.

        Hours are those of the fastest shape. Below zero it is better to wait. GPU-hours are those
        beyond the shape that needs the fewest, so they alone never make a job wait.
        """
        fewest = float((stock.gpus * needs).min())
        extra = premium(view, needs, stock) + self.gpu_hour * (stock.gpus - fewest / needs)
        return np.asarray(float(needs.min()) / needs - extra / self.worth, np.float64)

    def _at_risk(self, view: JobView, needs: Row, stock: Stock) -> bool:
        """Return whether the job can meet its deadline, but with little time to spare."""
        if view.deadline_s is None or float(needs.min(initial=math.inf)) > view.deadline_s:
            return False
        paying = needs[self._gain(view, needs, stock) > 0]
        alert = self.alert if view.held < 0 else 2 * self.alert
        return view.deadline_s < alert * float(paying.min(initial=math.inf))

    def _reason(self, view: JobView, needs: Row, shape: int | None, stock: Stock) -> str:
        if not np.isfinite(needs).any():
            return "no available GPUs fit this job"
        if shape is None:
            return "the GPUs go to jobs with higher priority, a deadline at risk, or less work left"
        partition = stock.partitions[stock.shapes[shape].partition]
        gpus = f"{stock.shapes[shape].gpus} x {partition.gpu_model}"
        text = f"finishes in about {needs[shape] / 60:.0f} min on {gpus}"
        if partition.tenure is not Tenure.FIXED:
            text += f" ({partition.tenure.replace('_', '-')})"
        if self._at_risk(view, needs, stock):
            text += f", due in {(view.deadline_s or 0.0) / 60:.0f} min"
        return text


def time_needed(view: JobView, stock: Stock) -> Row:
    """Return the seconds that the job needs in each shape, infinite where it cannot run."""
    change = view.restart_s if view.held >= 0 else view.start_s
    spot = np.array([each.tenure is Tenure.SPOT for each in stock.partitions])[stock.partition]
    needs = np.full(len(stock.shapes), np.inf)
    possible = (view.pace > 0) & stock.there
    needs[possible] = view.remaining / view.pace[possible] + change
    if view.held >= 0 and possible[view.held]:
        needs[view.held] -= change
    return np.where(spot, RISK * needs, needs)


def premium(view: JobView, needs: Row, stock: Stock) -> Row:
    """Return the extra dollars per hour of each shape over the cheapest way to do the same work.

    The time of a restart is paid and does no work, so it counts as extra cost.
    """
    possible = np.isfinite(needs)
    pace = np.zeros(needs.size)
    pace[possible] = view.remaining / needs[possible]
    cheapest = float((stock.price[possible] / view.pace[possible]).min(initial=math.inf))
    return np.asarray(np.maximum(0.0, stock.price - cheapest * pace), np.float64)
