"""One instance on one market, tick by tick: the simulator of the single-instance benchmark.

What a tick does is in ``core.single_instance_physics``. The deadline is hard.
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
    """Seconds, and dollars per hour; the fields of ``SingleInstance``."""

    work_s: float
    deadline_s: float
    restart_overhead_s: float
    tick_s: float = 600.0
    spot_price: float = 0.9731
    on_demand_price: float = 3.06

    @property
    def ticks(self) -> int:
        """Whole ticks before the deadline."""
        return whole_ticks(self.deadline_s, self.tick_s)

    def price(self, kind: Instance) -> float:
        """Dollars per tick."""
        hourly = float(tick_charge(CODES[kind], self.spot_price, self.on_demand_price))
        return hourly * self.tick_s / 3600

    def tick(self, held: Instance, pending: float, choice: Instance) -> TickStep:
        """What a tick of ``choice`` does after ``held``, with its ``pending`` overhead."""
        restart = float(self.restart_overhead_s)
        return tick_step(float(self.tick_s), restart, CODES[held], pending, CODES[choice])


class SingleOutcome(msgspec.Struct, frozen=True):
    """``finished_tick`` counts from 1; None: late. ``history`` is what ran, tick by tick."""

    cost: float
    finished_tick: int | None
    restarts: int
    history: tuple[Instance, ...]


def run_single(job: SingleJob, available: NDArray[np.bool_], step: Step) -> SingleOutcome:
    """Ask ``step`` in every tick of ``available``, up to the deadline; spot that is not there
    cannot be had: who asks for it waits.
    """
    kind, pending, left, cost, restarts = Instance.WAIT, 0.0, job.work_s, 0.0, 0
    history: list[Instance] = []
    for tick in range(min(job.ticks, available.size)):
        there = bool(available[tick])
        if kind is Instance.SPOT and not there:
            kind = Instance.WAIT
        wish = Instance(step(tick * job.tick_s, left, kind, pending, there))
        now = Instance.WAIT if wish is Instance.SPOT and not there else wish
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
    """The least that any plan costs which knows the market; infinite if none is on time.

    Exact to a millisecond of tick and overhead.
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
    """Uniform progress as in NSDI'24, with a safety net that never loses a tick.

    On-demand when behind the pace; spot whenever there is some, but, with ``hysteresis``, only
    once two restarts ahead; waiting when ahead.
    """

    def __init__(self, job: SingleJob, *, hysteresis: bool = True) -> None:
        self._job, self._hysteresis = job, hysteresis

    def __call__(
        self, elapsed: float, left: float, current: Instance, pending: float, there: bool
    ) -> Instance:
        job = self._job
        rate = job.work_s / job.deadline_s
        done = job.work_s - left
        ahead = done >= elapsed * rate
        on_demand = current is Instance.ON_DEMAND
        if on_demand and self._hysteresis:
            ahead = done >= (elapsed + 2 * job.restart_overhead_s) * rate
        if on_demand and not ahead and (self._hysteresis or not there):
            wish = Instance.ON_DEMAND
        elif there:
            wish = Instance.SPOT
        else:
            wish = Instance.WAIT if ahead else Instance.ON_DEMAND
        return wish if self._in_time(wish, elapsed, left, current, pending) else Instance.ON_DEMAND

    def _in_time(
        self, wish: Instance, elapsed: float, left: float, current: Instance, pending: float
    ) -> bool:
        job = self._job
        did = job.tick(current, pending, wish)
        needed = did.pending if wish is Instance.ON_DEMAND else job.restart_overhead_s
        time_left = job.ticks * job.tick_s - elapsed - job.tick_s
        return left - did.work <= _DONE or left - did.work + needed <= time_left + _DONE
