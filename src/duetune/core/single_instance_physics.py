"""What one instance does in one tick: a variant of ``core.physics.step``.

A job holds one instance, spot or on-demand, or none. Time is counted in ticks, and the overhead of
a restart may be longer than a tick.

- A start, or a change of kind, sets the pending overhead. It replaces what was pending.
- Overhead longer than a tick continues in the next tick. The rest of a tick does work.
- Every tick in which an instance is held is billed in full.
- A preempted spot instance is gone at the start of a tick, so it is not held in it.

The simulator, the optimum and the policy of the single-instance benchmark all call these functions.
Times are seconds or whole units.
"""

from __future__ import annotations

from typing import NamedTuple

from duetune.core.compiled import compiled

WAIT, SPOT, ON_DEMAND = 0, 1, 2


class TickStep(NamedTuple):
    """The result of one tick.

    ``work``: time in which work was done.
    ``lost``: time lost to overhead or waiting.
    ``pending``: overhead that is left after the tick.
    ``started``: whether an instance was started.
    """

    work: float
    lost: float
    pending: float
    started: bool


@compiled
def tick_step(tick: float, restart: float, held: int, pending: float, choice: int) -> TickStep:
    """Return the result of one tick of length ``tick`` in which ``choice`` runs.

    ``held`` is the kind that ran in the previous tick and is still there, ``pending`` its remaining
    overhead, and ``restart`` the overhead of a start.
    """
    if choice == WAIT:
        return TickStep(tick - tick, tick, pending, False)
    started = choice != held
    overhead = restart if started else pending
    lost = min(overhead, tick)
    return TickStep(tick - lost, lost, overhead - lost, started)


@compiled
def tick_charge(choice: int, spot_price: float, on_demand_price: float) -> float:
    """Return the dollars for one tick, given the prices per tick; waiting is free."""
    if choice == WAIT:
        return 0.0
    return spot_price if choice == SPOT else on_demand_price


@compiled
def pending_since(tick: float, restart: float, since: int) -> float:
    """Return the overhead left ``since`` ticks after the tick of a start; 0 means none pending."""
    return restart - since * tick if since > 0 else restart - restart


@compiled
def next_since(levels: int, since: int, started: bool) -> int:
    """Return ``since`` of the next tick; overhead is pending for ``levels`` ticks after a start."""
    if started:
        return min(1, levels)
    return since + 1 if 0 < since < levels else 0
