"""Physics of a slot: work done, time lost to a resize, dollars charged, and the value of finishing.

The simulator, the optimisers, the policies and the controller all call these functions, so
"optimal" and "simulated" cannot disagree. ``step`` is the slot step. Two variants count time
differently: ``core.single_instance_physics`` (one instance, restarts longer than a tick) and
``core.cluster_physics`` (a job in a round of a cluster).

Slots count from 1. Symbols of the paper: work L, deadline d, hard deadline D = floor(gamma d),
throughput H(n), efficiency mu, value V(T).
"""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from duetune.core.compiled import compiled
from duetune.core.job import Job, ReconfigurationKey, ValueShape

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from duetune.core.market import MarketWindow

RELATIVE_TOLERANCE = 1e-9


class JobPhysics(NamedTuple):
    """A job as plain numbers and arrays, for compiled code.

    ``tolerance``: work that may be missing when the job counts as done.
    ``values``: entry T is the value in dollars of finishing in slot T.
    ``by_composition``: whether the reconfiguration key is COMPOSITION.
    ``budget``: dollars; infinite if there is none.
    ``reach``: see ``on_demand_reach``.
    """

    work: float
    tolerance: float
    deadline: int
    hard_deadline: int
    min_gpus: int
    max_gpus: int
    throughput: NDArray[np.float64]
    values: NDArray[np.float64]
    grow: float
    shrink: float
    preempted: float
    by_composition: bool
    budget: float
    reach: NDArray[np.float64]


class SlotStep(NamedTuple):
    """The result of one slot.

    ``charge``: dollars.
    ``efficiency``: fraction of the slot in which the job computed (mu).
    ``work``: work done in the slot.
    ``progress``: work done up to the end of the slot.
    """

    charge: float
    efficiency: float
    work: float
    progress: float
    done: bool


def value_of_finishing(job: Job, slot: int) -> float:
    """Return V(T) in dollars: full until the deadline, then falling, 0 after the hard deadline."""
    late = slot - job.deadline
    if late <= 0:
        return job.value
    if slot > job.hard_deadline:
        return 0.0
    match job.value_shape:
        case ValueShape.LINEAR:
            grace = (job.hard_deadline_factor - 1) * job.deadline
            return job.value * max(0.0, 1 - late / grace)
        case ValueShape.STEP:
            return job.value
        case ValueShape.EXPONENTIAL:
            return job.value * math.exp(-job.decay * late)


@functools.lru_cache(maxsize=4096)
def job_physics(job: Job) -> JobPhysics:
    """Return the array form of a job; the same job gives the same read-only arrays."""
    throughput = np.array(job.throughput, dtype=np.float64)
    # A job may not run on fewer GPUs than its minimum, even if the curve has entries there.
    throughput[: job.min_gpus] = 0.0
    values = np.zeros(job.hard_deadline + 2)
    for slot in range(1, job.hard_deadline + 1):
        values[slot] = value_of_finishing(job, slot)
    rule = job.reconfiguration
    reach = on_demand_reach(job.deadline, job.min_gpus, throughput, rule.grow, rule.shrink)
    for array in (throughput, values, reach):
        array.setflags(write=False)
    return JobPhysics(
        work=float(job.work),
        tolerance=RELATIVE_TOLERANCE * job.work,
        deadline=job.deadline,
        hard_deadline=job.hard_deadline,
        min_gpus=job.min_gpus,
        max_gpus=job.max_gpus,
        throughput=throughput,
        values=values,
        grow=float(rule.grow),
        shrink=float(rule.shrink),
        preempted=float(rule.preempted),
        by_composition=rule.key is ReconfigurationKey.COMPOSITION,
        budget=math.inf if job.budget is None else float(job.budget),
        reach=reach,
    )


@compiled
def cheapest_spot(gpus: int, available: int, spot_price: float, on_demand_price: float) -> int:
    """Return how many of ``gpus`` should be spot so that they cost least (the split lemma)."""
    if spot_price < on_demand_price:
        return min(gpus, available)
    return 0


@compiled
def charge(spot: int, on_demand: int, spot_price: float, on_demand_price: float) -> float:
    """Return the dollars for one slot; the whole slot is billed, overheads included."""
    return spot * spot_price + on_demand * on_demand_price


@compiled
def cheapest_charge(
    gpus: int, available: float, spot_price: float, on_demand_price: float
) -> float:
    """Return the dollars for one slot of ``gpus`` at the cheapest split.

    ``available`` may be a mean, so it is a float.
    """
    saving = max(0.0, on_demand_price - spot_price)
    return gpus * on_demand_price - min(gpus, available) * saving


@compiled
def resize_efficiency(job: JobPhysics, held: int, gpus: int) -> float:
    """Return mu when only the number of GPUs counts."""
    if gpus > held:
        return job.grow
    if gpus < held:
        return job.shrink
    return 1.0


@compiled
def efficiency(
    job: JobPhysics, held_spot: int, held_on_demand: int, spot: int, on_demand: int, available: int
) -> float:
    """Return mu, the fraction of the slot in which the job computes, given what was held before it.

    With the composition key all changes at the start of a slot need one restart of the group. So
    the most expensive change counts, not the product of all.
    """
    if not job.by_composition:
        return resize_efficiency(job, held_spot + held_on_demand, spot + on_demand)
    kept_spot = min(held_spot, available)
    fraction = 1.0
    if kept_spot < held_spot:
        fraction = min(fraction, job.preempted)
    if spot > kept_spot or on_demand > held_on_demand:
        fraction = min(fraction, job.grow)
    if spot < kept_spot or on_demand < held_on_demand:
        fraction = min(fraction, job.shrink)
    return fraction


@compiled
def is_done(job: JobPhysics, progress: float) -> bool:
    """Return whether ``progress`` is all the work, up to rounding."""
    return progress >= job.work - job.tolerance


@compiled
def step(
    job: JobPhysics,
    progress: float,
    held_spot: int,
    held_on_demand: int,
    spot: int,
    on_demand: int,
    spot_price: float,
    available: int,
    on_demand_price: float,
) -> SlotStep:
    """Return the result of one slot in which ``spot`` and ``on_demand`` GPUs are held.

    ``progress`` is the work done before the slot. ``held_*`` are the GPUs held in the previous
    slot, preempted ones included.
    """
    fraction = efficiency(job, held_spot, held_on_demand, spot, on_demand, available)
    work = fraction * job.throughput[spot + on_demand]
    after = progress + work
    return SlotStep(
        charge(spot, on_demand, spot_price, on_demand_price),
        fraction,
        work,
        after,
        is_done(job, after),
    )


@compiled
def unused_share(job: JobPhysics, progress: float, gpus: int) -> float:
    """Return the share of the last slot that is left when the work is done.

    A fleet that bills by the second does not charge it. The time lost to a change of GPUs comes
    first, so the work that was too much would have been done at full speed.
    """
    if progress <= job.work or job.throughput[gpus] <= 0:
        return 0.0
    return float((progress - job.work) / job.throughput[gpus])


@compiled
def affordable(
    job: JobPhysics,
    spot: int,
    on_demand: int,
    spot_price: float,
    on_demand_price: float,
    spent: float,
) -> tuple[int, int]:
    """Return how many GPUs of each kind the budget can pay in this slot.

    GPUs of the more expensive kind are dropped first. The budget is a hard cap.
    """
    left = job.budget - spent + RELATIVE_TOLERANCE
    while spot + on_demand > 0:
        if charge(spot, on_demand, spot_price, on_demand_price) <= left:
            return spot, on_demand
        if on_demand > 0 and (on_demand_price >= spot_price or spot == 0):
            on_demand -= 1
        else:
            spot -= 1
        if spot + on_demand < job.min_gpus:
            return 0, 0
    return 0, 0


@compiled
def on_demand_reach(
    slots: int, min_gpus: int, throughput: NDArray[np.float64], grow: float, shrink: float
) -> NDArray[np.float64]:
    """Return ``reach``: entry [k, m] is the most work of k on-demand slots after holding m GPUs."""
    max_gpus = throughput.size - 1
    reach = np.zeros((slots + 1, max_gpus + 1))
    for left in range(1, slots + 1):
        for held in range(max_gpus + 1):
            best = reach[left - 1, 0]
            for gpus in range(min_gpus, max_gpus + 1):
                fraction = grow if gpus > held else (shrink if gpus < held else 1.0)
                best = max(best, fraction * throughput[gpus] + reach[left - 1, gpus])
            reach[left, held] = best
    return reach


@compiled
def reach_after(job: JobPhysics, left: int, spot: int, on_demand: int) -> float:
    """Return the most work that ``left`` on-demand slots can do after holding these GPUs.

    It holds for any number of spot GPUs that are lost.
    """
    if left <= 0:
        return 0.0
    if not job.by_composition:
        return float(job.reach[left, spot + on_demand])
    best = float(job.reach[left - 1, 0])
    for gpus in range(job.min_gpus, job.max_gpus + 1):
        fraction = efficiency(job, spot, on_demand, 0, gpus, 0)
        if spot > 0:
            # If some spot GPUs survive, replacing them by on-demand GPUs is a shrink too.
            fraction = min(fraction, job.shrink)
        best = max(best, fraction * job.throughput[gpus] + job.reach[left - 1, gpus])
    return best


@compiled
def play(
    job: JobPhysics,
    market: MarketWindow,
    spot: NDArray[np.int64],
    on_demand: NDArray[np.int64],
) -> tuple[float, float, int, float]:
    """Return utility, cost, finishing slot (0: never) and progress of a fixed plan.

    Entry t of ``spot`` and ``on_demand`` is held in slot t + 1.
    """
    progress = 0.0
    cost = 0.0
    held_spot, held_on_demand = 0, 0
    for slot in range(1, min(job.hard_deadline, spot.size) + 1):
        now_spot, now_on_demand = spot[slot - 1], on_demand[slot - 1]
        now = step(
            job,
            progress,
            held_spot,
            held_on_demand,
            now_spot,
            now_on_demand,
            market.spot_price[slot - 1],
            market.available[slot - 1],
            market.on_demand_price[slot - 1],
        )
        cost += now.charge
        progress = now.progress
        held_spot, held_on_demand = now_spot, now_on_demand
        if now.done:
            return job.values[slot] - cost, cost, slot, progress
    return -cost, cost, 0, progress
