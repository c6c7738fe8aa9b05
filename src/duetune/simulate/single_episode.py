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

    def must_run(self, elapsed: float, left: float, *, restarts: int) -> bool:
        """Return whether the work left and so many restarts need all whole ticks that are left."""
        needed = (left + restarts * self.restart_overhead_s) / self.tick_s
        return math.ceil(needed - _DONE) >= whole_ticks(self.deadline_s - elapsed, self.tick_s)

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
    """Uniform progress as published (Wu et al., Can't Be Late, NSDI 2024).

    Spot is used whenever it is available. Without it, the job starts on-demand if it is behind the
    even pace, and waits if it is not. On-demand is never left to wait: it is left for spot, and
    with ``hysteresis`` only once the job is more than two restarts ahead of the even pace. The
    safety net rounds up to whole ticks. If the work and two restarts need all ticks that are left,
    an idle job starts on-demand and on-demand is kept. If the work and one restart need them, only
    a spot instance whose restart is over is kept, until it is lost.
    """

    def __init__(self, job: SingleJob, *, hysteresis: bool = True) -> None:
        self._job, self._hysteresis = job, hysteresis

    def __call__(
        self, elapsed: float, left: float, current: Instance, pending: float, there: bool
    ) -> Instance:
        """Return the instance to use in this tick; called by ``run_single``."""
        job, spot, on_demand = self._job, Instance.SPOT, Instance.ON_DEMAND
        restart = job.restart_overhead_s
        if left <= _DONE:
            return Instance.WAIT
        if job.must_run(elapsed, left, restarts=1):
            ready = current is spot and pending <= _DONE
            return spot if ready or (restart == 0 and there) else on_demand
        if current is not spot and job.must_run(elapsed, left, restarts=2):
            return on_demand
        rate, done = job.work_s / job.deadline_s, job.work_s - left
        if current is on_demand:
            ahead = not self._hysteresis or done > (elapsed + 2 * restart) * rate
            return spot if there and ahead else on_demand
        if there:
            return spot
        return on_demand if done < elapsed * rate else Instance.WAIT


class HostSafetyNet:
    """A host that overrides a step near the deadline, as the simulator of a public benchmark does.

    From the tick on in which the work and one restart need all ticks that are left, it runs
    on-demand, or keeps the spot instance of the last tick if its restart is over. It keeps that
    instance even if it was lost just now, so the tick is wasted and the job is late.
    """

    def __init__(self, job: SingleJob, step: Step) -> None:
        self._job, self._step = job, step
        self._ran = Instance.WAIT

    def __call__(
        self, elapsed: float, left: float, current: Instance, pending: float, there: bool
    ) -> Instance:
        """Return what the host runs in this tick; called by ``run_single``."""
        choice = self._step(elapsed, left, current, pending, there)
        if self._job.must_run(elapsed, left, restarts=1):
            kept = self._ran is Instance.SPOT and pending <= _DONE
            choice = Instance.SPOT if kept else Instance.ON_DEMAND
        lost = choice is Instance.SPOT and not there
        self._ran = Instance.WAIT if lost else choice
        return choice
