"""Rubato for one instance, as a plain step function for other simulators and schedulers.

The job holds one instance of one kind at a time, or none. A restart costs a fixed number of
seconds, which may be longer than a tick. Ticks are billed in full and the deadline is hard. In
every tick::

    step = SingleInstance(work_s=48 * 3600, deadline_s=52 * 3600, restart_overhead_s=180)
    choice = step(elapsed_s, work_left_s, current, pending_s, spot_available)

The market is not known beforehand. Each observation updates a belief about how long spells with and
without spot usually last (``forecast.regimes``). The choice has the least expected cost under that
belief, among the choices after which on-demand can still meet the deadline.
"""

from __future__ import annotations

import functools
import math
from enum import StrEnum
from typing import TYPE_CHECKING

import numpy as np

from duetune.core.single_instance_physics import ON_DEMAND, SPOT, WAIT
from duetune.errors import InvalidInput
from duetune.market.forecast.regimes import SPELLS, believe, first_belief, regime_chain, spells
from duetune.policies.single_instance_tables import SingleTask, choose, fill_costs, pending_levels

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

USUAL_TICK_S = 600.0
"""The tick in which the regimes count their spells, in seconds."""
_STEPS_PER_TICK = 6
_TABLE_CELLS = 80_000_000  # 320 MB; longer jobs get a coarser grid
_FEWEST_STEPS = 8
_SAME = 1e-6  # ticks
_MISSED = 1000  # unseen ticks; more make no difference to the belief


class Instance(StrEnum):
    """What runs, and what a step says should run."""

    WAIT = "wait"
    SPOT = "spot"
    ON_DEMAND = "on-demand"


CODES = {Instance.WAIT: WAIT, Instance.SPOT: SPOT, Instance.ON_DEMAND: ON_DEMAND}
"""The number that compiled physics uses for each."""

_INSTANCES = {code: instance for instance, code in CODES.items()}


class SingleInstance:
    """The step function of one job. Prices are dollars per hour; all times are seconds.

    ``host_safety_net`` is for a host that overrides steps near the deadline with a safety net of
    its own. The plan then ends one tick earlier, so that it hands over before the net acts.

    ``costs`` are the expected dollars of waiting, spot and on-demand, seen from the last step. A
    cost is infinite if the choice was not available or would have lost the deadline.
    """

    def __init__(
        self,
        *,
        work_s: float,
        deadline_s: float,
        restart_overhead_s: float,
        tick_s: float = 600.0,
        spot_price: float = 0.9731,
        on_demand_price: float = 3.06,
        host_safety_net: bool = False,
    ) -> None:
        positive = {
            "work_s": work_s,
            "deadline_s": deadline_s,
            "tick_s": tick_s,
            "on_demand_price": on_demand_price,
        }
        for field, number in positive.items():
            if not (math.isfinite(number) and number > 0):
                raise InvalidInput(field, number, "a positive number")
        not_negative = {"restart_overhead_s": restart_overhead_s, "spot_price": spot_price}
        for field, number in not_negative.items():
            if not (math.isfinite(number) and number >= 0):
                raise InvalidInput(field, number, "zero or more")
        # A net that keeps an instance lost just now wastes a tick; this plan never needs that one.
        earlier = host_safety_net and deadline_s >= 2 * tick_s
        planned_s = deadline_s - tick_s if earlier else deadline_s
        self._task = _task(
            work_s, planned_s, restart_overhead_s, tick_s, spot_price, on_demand_price
        )
        self._deadline = planned_s
        self._slots = USUAL_TICK_S / tick_s
        self._belief = first_belief(self._slots)
        self._seen_at: float | None = None
        self.costs = dict.fromkeys(Instance, math.inf)

    def watch(self, spot_available: Iterable[bool]) -> None:
        """Show the market before the job began, oldest tick first; called before the first step."""
        for there in spot_available:
            self._see(there=bool(there), ticks=0 if self._seen_at is None else 1)
            self._seen_at = -self._task.tick

    def __call__(
        self,
        elapsed_s: float,
        work_left_s: float,
        current: Instance | str,
        pending_s: float,
        spot_available: bool,
    ) -> Instance:
        """Return what should run in the tick that begins now; called once per tick.

        ``current`` is what ran in the previous tick. A spot instance counts as preempted if
        ``spot_available`` is false. ``pending_s`` is the rest of its restart overhead.
        """
        task, there = self._task, bool(spot_available)
        times = {"elapsed_s": elapsed_s, "work_left_s": work_left_s, "pending_s": pending_s}
        for field, number in times.items():
            if not math.isfinite(number):
                raise InvalidInput(field, number, "a number of seconds")
        held = CODES[instance_named(current)]
        if held == SPOT and not there:
            held = WAIT
        self.look(elapsed_s, there=there)
        if work_left_s <= 0:
            return Instance.WAIT
        ticks_left = whole_ticks(self._deadline - elapsed_s, task.tick)
        tick = min(max(0, task.ticks - ticks_left), task.ticks - 1)
        choice, *costs = choose(
            task,
            _costs(task)[tick + 1],
            self._belief @ regime_chain(self._slots).by_number,
            ticks_left * task.tick,
            work_left_s,
            held,
            max(0.0, pending_s) if held != WAIT else 0.0,
            there,
        )
        self.costs = dict(zip(Instance, costs, strict=True))
        return _INSTANCES[choice]

    def reprice(self, *, spot_price: float, on_demand_price: float) -> None:
        """Plan with other prices from now on, in dollars per hour; the belief is kept."""
        hours = self._task.tick / 3600
        self._task = self._task._replace(spot=spot_price * hours, on_demand=on_demand_price * hours)

    def choice_if(
        self,
        elapsed_s: float,
        work_left_s: float,
        current: Instance | str,
        pending_s: float,
        spot_available: bool,
    ) -> Instance:
        """Return what a call would return, and learn nothing from it.

        For a host that can only find out by asking: ask for spot if that is the choice where it is
        available, and tell the answer with ``look``.
        """
        kept = self._belief, self._seen_at
        try:
            return self(elapsed_s, work_left_s, current, pending_s, spot_available)
        finally:
            self._belief, self._seen_at = kept

    def look(self, elapsed_s: float, *, there: bool) -> None:
        """Update the belief with what this tick shows; a call does it by itself.

        A tick counts once; unseen ticks make the belief vaguer.
        """
        if self._seen_at is None or elapsed_s < self._seen_at:
            if self._seen_at is not None:
                self._belief = first_belief(self._slots)
            self._see(there=there, ticks=0)
        else:
            ticks = round((elapsed_s - self._seen_at) / self._task.tick)
            if ticks == 0:
                return
            self._see(there=there, ticks=ticks)
        self._seen_at = elapsed_s

    def _see(self, *, there: bool, ticks: int) -> None:
        """Move the belief ``ticks`` ahead and condition it on whether there is spot."""
        transition = regime_chain(self._slots).by_number
        for _ in range(min(ticks, _MISSED)):
            self._belief = self._belief @ transition
        self._belief = believe(self._belief, transition, np.array([int(there)]))


def whole_ticks(seconds: float, tick: float) -> int:
    """Return how many whole ticks fit into a time."""
    return math.floor(seconds / tick + _SAME)


def _task(
    work: float, deadline: float, restart: float, tick: float, spot: float, on_demand: float
) -> SingleTask:
    """Return the task in the units of the tables, on a grid that fits into memory."""
    ticks = whole_ticks(deadline, tick)
    if ticks < 1:
        raise InvalidInput("deadline_s", deadline, f"at least one tick of {tick:g} s")
    slack = max(0.0, ticks * tick - work)
    bare = SingleTask(
        tick=float(tick),
        ticks=ticks,
        restart=float(restart),
        spot=spot * tick / 3600,
        on_demand=on_demand * tick / 3600,
        late=10 * on_demand * (deadline + work) / 3600,
        slack=slack,
        unit=tick / _STEPS_PER_TICK,
    )
    rows = ticks * 2 * len(SPELLS) ** 2 * (1 + 2 * (pending_levels(bare) + 1))
    steps = _TABLE_CELLS // rows
    if steps < _FEWEST_STEPS:
        allowed = "longer: the deadline or the restart has too many ticks"
        raise InvalidInput("tick_s", tick, allowed)
    return bare._replace(unit=max(bare.unit, slack / (steps - 1)))


@functools.lru_cache(maxsize=8)
def _costs(task: SingleTask) -> NDArray[np.float32]:
    """Return the tables of a class of jobs; jobs with the same times and prices share them."""
    return fill_costs(task, spells(USUAL_TICK_S / task.tick))


def instance_named(current: Instance | str) -> Instance:
    """Return the kind of instance that a host has named, perhaps in plain words."""
    try:
        return Instance(current)
    except ValueError:
        raise InvalidInput("current", current, f"one of {', '.join(Instance)}") from None
