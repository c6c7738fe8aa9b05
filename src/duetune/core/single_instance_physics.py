"""Physics of one instance, a variant of ``core.physics.step``: there is one instance of one kind
or none, time is counted in ticks, and a restart has an overhead that may be longer than a tick.

Starting an instance, or going over to the other kind, sets the pending overhead: it replaces what
was pending, it does not add to it. What is longer than a tick goes on in the next one. Work in a
tick is the tick less the pending overhead. Every tick held is billed whole. A preempted spot
instance is gone at the start of a tick, so it is not held.

Simulator, optimum and policy of the single-instance benchmark all call these functions. Times may
be seconds or whole units.
"""

from __future__ import annotations

from typing import NamedTuple

from duetune.core.compiled import compiled

WAIT, SPOT, ON_DEMAND = 0, 1, 2


class TickStep(NamedTuple):
    """What one tick came to: time that did work, time lost to overhead or waiting, overhead still
    pending after it, and whether an instance was started.
    """

    work: float
    lost: float
    pending: float
    started: bool


@compiled
def tick_step(tick: float, restart: float, held: int, pending: float, choice: int) -> TickStep:
    """What happens in one tick of length ``tick`` in which ``choice`` runs.

    ``held`` is what ran in the tick before and is still there, ``pending`` its overhead that is
    left, and ``restart`` the overhead of a start.
    """
    if choice == WAIT:
        return TickStep(tick - tick, tick, pending, False)
    started = choice != held
    overhead = restart if started else pending
    lost = min(overhead, tick)
    return TickStep(tick - lost, lost, overhead - lost, started)


@compiled
def tick_charge(choice: int, spot_price: float, on_demand_price: float) -> float:
    """Dollars for one tick, given the prices per tick; waiting is free."""
    if choice == WAIT:
        return 0.0
    return spot_price if choice == SPOT else on_demand_price


@compiled
def pending_since(tick: float, restart: float, since: int) -> float:
    """Overhead that is left ``since`` ticks after the tick of a start; 0 ticks: none is pending."""
    return restart - since * tick if since > 0 else restart - restart


@compiled
def next_since(levels: int, since: int, started: bool) -> int:
    """``since`` of the next tick, where overhead is pending for ``levels`` ticks after a start."""
    if started:
        return min(1, levels)
    return since + 1 if 0 < since < levels else 0
