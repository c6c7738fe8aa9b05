"""One instance on one market, tick by tick: the simulator of the single-instance benchmark.

The effect of a tick is in ``core.single_instance_physics``. The deadline is hard. Jobs with several
GPUs are simulated in ``episode``.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from duetune.core.single_instance_physics import TickStep, tick_charge, tick_step
from duetune.policies.single_instance import CODES, Instance, whole_ticks
from duetune.policies.solve.single_instance_optimum import least_cost

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    Step = Callable[[float, float, Instance, float, bool], Instance]

_DONE = 1e-6


class SingleJob(msgspec.Struct, frozen=True):
    """A job for one instance. Fields as in ``SingleInstance``: seconds, dollars per hour."""

    work_s: float
    deadline_s: float
    restart_overhead_s: float
    tick_s: float = 600.0
    spot_price: float = 0.9731
    on_demand_price: float = 3.06

    @property
    def ticks(self) -> int:
        """Return the number of whole ticks before the deadline."""
        return whole_ticks(self.deadline_s, self.tick_s)

    def price(self, kind: Instance) -> float:
        """Return the price of one tick in dollars."""
        hourly = float(tick_charge(CODES[kind], self.spot_price, self.on_demand_price))
        return hourly * self.tick_s / 3600

    def tick(self, held: Instance, pending: float, choice: Instance) -> TickStep:
        """Return the effect of a tick of ``choice`` after ``held`` with ``pending`` seconds of
        overhead.
        """
        restart = float(self.restart_overhead_s)
        return tick_step(float(self.tick_s), restart, CODES[held], pending, CODES[choice])


class SingleOutcome(msgspec.Struct, frozen=True):
    """The result of a run.

    ``finished_tick`` counts from 1 and is None if the job is late. ``history`` has the instance
    that ran in each tick.
    """

    cost: float
    finished_tick: int | None
    restarts: int
    history: tuple[Instance, ...]


def run_single(job: SingleJob, available: NDArray[np.bool_], step: Step) -> SingleOutcome:
    """Call ``step`` in every tick up to the deadline and return the outcome.

    ``available`` says for each tick whether spot is available. A request for spot that is not
    available becomes a wait.
    """
    kind, pending, left, cost, restarts = Instance.WAIT, 0.0, job.work_s, 0.0, 0
    history: list[Instance] = []
    for tick in range(min(job.ticks, available.size)):
        spot_available = bool(available[tick])
        if kind is Instance.SPOT and not spot_available:
            kind = Instance.WAIT
        choice = Instance(step(tick * job.tick_s, left, kind, pending, spot_available))
        now = Instance.WAIT if choice is Instance.SPOT and not spot_available else choice
        did = job.tick(kind, pending, now)
        kind, pending = now, did.pending
        history.append(kind)
        restarts += did.started
        left -= did.work
        cost += job.price(kind)
        if left <= _DONE:
            return SingleOutcome(cost, tick + 1, restarts, tuple(history))
    return SingleOutcome(cost, None, restarts, tuple(history))


def single_optimum(job: SingleJob, available: NDArray[np.bool_]) -> float:
    """Return the least cost in dollars of any plan that knows the market in advance.

    The cost is infinite if no plan is on time. It is exact to a millisecond of tick and overhead.
    """
    ticks = min(job.ticks, available.size)
    tick, restart = (round(1000 * seconds) for seconds in (job.tick_s, job.restart_overhead_s))
    unit = math.gcd(tick, restart)
    return float(
        least_cost(
            available[:ticks].astype(np.int64),
            math.ceil(1000 * job.work_s / unit - _DONE),
            tick // unit,
            restart // unit,
            job.price(Instance.SPOT),
            job.price(Instance.ON_DEMAND),
        )
    )


class SingleUniformProgress:
    """Uniform progress of NSDI'24; it switches to on-demand at the last possible tick.

    It uses on-demand when it is behind schedule, spot whenever that is available, and waits when it
    is ahead. With ``hysteresis`` it leaves on-demand only once it is two restarts ahead of
    schedule.
    """

    def __init__(self, job: SingleJob, *, hysteresis: bool = True) -> None:
        self._job, self._hysteresis = job, hysteresis

    def __call__(
        self, elapsed: float, left: float, current: Instance, pending: float, there: bool
    ) -> Instance:
        """Return the instance to use in this tick; called by ``run_single``."""
        job = self._job
        rate = job.work_s / job.deadline_s
        done = job.work_s - left
        ahead = done >= elapsed * rate
        on_demand = current is Instance.ON_DEMAND
        if on_demand and self._hysteresis:
            ahead = done >= (elapsed + 2 * job.restart_overhead_s) * rate
        if on_demand and not ahead and (self._hysteresis or not there):
            choice = Instance.ON_DEMAND
        elif there:
            choice = Instance.SPOT
        else:
            choice = Instance.WAIT if ahead else Instance.ON_DEMAND
        safe = self._in_time(choice, elapsed, left, current, pending)
        return choice if safe else Instance.ON_DEMAND

    def _in_time(
        self, choice: Instance, elapsed: float, left: float, current: Instance, pending: float
    ) -> bool:
        """Return whether the job can still finish in time after this tick of ``choice``."""
        job = self._job
        did = job.tick(current, pending, choice)
        needed = did.pending if choice is Instance.ON_DEMAND else job.restart_overhead_s
        time_left = job.ticks * job.tick_s - elapsed - job.tick_s
        return left - did.work <= _DONE or left - did.work + needed <= time_left + _DONE
