"""The rules that need no forecast, as compiled functions: schedule, baselines and AHANP.

Each rule returns the total number of GPUs to hold and the ``Rule`` that decided. The guard and the
budget are applied afterwards, in ``policy_kernel``.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, NamedTuple

from duetune.core.compiled import compiled
from duetune.core.physics import JobPhysics, efficiency, is_done, reach_after, resize_efficiency

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from duetune.core.decision import View


class Rule(IntEnum):
    """The rule that decided; ``reasons`` turns it into text."""

    STEADY = 0
    SPOT_ALL = 1
    SPOT_NONE = 2
    LAST_MOMENT = 3
    AHEAD_SPOT = 4
    AHEAD_WAIT = 5
    AHEAD_KEEP = 6
    BEHIND_CHEAP = 7
    BEHIND_PACE = 8
    PLAN = 9
    BANK = 10
    OVERTIME = 11
    GANG_SPOT = 12
    GANG_STAY = 13
    GANG_CATCH_UP = 14
    GANG_WAIT = 15
    GANG_SAFETY_NET = 16


class Now(NamedTuple):
    """The present slot as compiled rules see it. Prices are dollars per GPU and slot."""

    slot: int
    progress: float
    held_spot: int
    held_on_demand: int
    spot_price: float
    available: int
    on_demand_price: float


class Ahead(NamedTuple):
    """The forecast of the slots after the present one, as compiled rules see it."""

    spot_price: NDArray[np.float64]
    available: NDArray[np.int64]


def now_of(view: View) -> Now:
    """Return the present slot of a view; called once per decision."""
    market, held = view.market, view.held
    return Now(
        view.slot,
        view.progress,
        held.spot,
        held.on_demand,
        market.spot_price,
        market.available,
        market.on_demand_price,
    )


@compiled
def usable_spot(job: JobPhysics, now: Now, available: int) -> int:
    """Return S, the spot GPUs that the job can use; 0 if too few or no cheaper."""
    gpus = min(available, job.max_gpus)
    return gpus if gpus >= job.min_gpus and now.spot_price < now.on_demand_price else 0


@compiled
def ahead_by(job: JobPhysics, slot: float, progress: float) -> float:
    """Return the work done beyond the uniform schedule t L / d; negative if behind."""
    return progress - slot * job.work / job.deadline


@compiled
def pace_gpus(job: JobPhysics, held: int, need: float) -> int:
    """Return the fewest GPUs that do ``need`` work in this slot, or the maximum if none do."""
    for gpus in range(job.min_gpus, job.max_gpus + 1):
        if resize_efficiency(job, held, gpus) * job.throughput[gpus] >= need - job.tolerance:
            return gpus
    return job.max_gpus


@compiled
def steady_gpus(job: JobPhysics) -> int:
    """Return the fewest GPUs that finish by the deadline if held from the first slot on."""
    for gpus in range(job.min_gpus, job.max_gpus + 1):
        work = (job.deadline - 1 + job.grow) * job.throughput[gpus]
        if work >= job.work - job.tolerance:
            return gpus
    return job.max_gpus


@compiled
def enough_gpus(job: JobPhysics, now: Now, gpus: int) -> int:
    """Return ``gpus``, or the fewest GPUs that finish the job in this slot as well."""
    held = now.held_spot + now.held_on_demand
    for fewer in range(job.min_gpus, gpus):
        work = resize_efficiency(job, held, fewer) * job.throughput[fewer]
        if is_done(job, now.progress + work):
            return fewer
    return gpus


@compiled
def keeps_deadline(job: JobPhysics, now: Now, spot: int, on_demand: int) -> bool:
    """Return whether on-demand GPUs alone could still meet the deadline after this slot."""
    fraction = efficiency(job, now.held_spot, now.held_on_demand, spot, on_demand, now.available)
    done = now.progress + fraction * job.throughput[spot + on_demand]
    later = reach_after(job, job.deadline - now.slot, spot, on_demand)
    return bool(done + later >= job.work - job.tolerance)


@compiled
def maximal_spot(job: JobPhysics, now: Now) -> tuple[int, int]:
    """Hold all usable spot and nothing else, until only the maximum can meet the deadline."""
    gpus = usable_spot(job, now, now.available)
    if not keeps_deadline(job, now, gpus, 0):
        spot = min(now.available, job.max_gpus)
        if keeps_deadline(job, now, spot, job.max_gpus - spot):
            return job.max_gpus, Rule.LAST_MOMENT
    return gpus, (Rule.SPOT_ALL if gpus > 0 else Rule.SPOT_NONE)


@compiled
def uniform_progress(job: JobPhysics, now: Now, hysteresis: bool) -> tuple[int, int]:
    """Elastic uniform progress: use spot whenever there is some, on-demand when behind schedule.

    Hysteresis (NSDI'24 rule 3) keeps on-demand GPUs until the job is ahead of where the schedule
    will be two changeovers from now.
    """
    held = now.held_spot + now.held_on_demand
    spot = usable_spot(job, now, now.available)
    lead = ahead_by(job, now.slot, now.progress)
    if lead >= -job.tolerance:
        if spot > 0:
            return spot, Rule.AHEAD_SPOT
        changeover = 1 - job.grow
        if (
            hysteresis
            and now.held_on_demand >= job.min_gpus
            and ahead_by(job, now.slot + 2 * changeover, now.progress) < 0
        ):
            return now.held_on_demand, Rule.AHEAD_KEEP
        return 0, Rule.AHEAD_WAIT
    return max(pace_gpus(job, held, -lead), spot), Rule.BEHIND_PACE


@compiled
def gang_uniform_progress(job: JobPhysics, now: Now, latched: bool) -> tuple[int, int]:
    """Uniform progress exactly as in NSDI'24: a fixed number of GPUs of one kind, or nothing.

    ``latched`` says that the safety net was reached before; it then holds to the end.
    """
    gang = steady_gpus(job)
    changeover = 1 - job.grow
    time_left = job.deadline - now.slot + 1
    work_left = (job.work - now.progress) / job.throughput[gang]
    offered = now.available >= gang and now.spot_price < now.on_demand_price
    on_spot = now.held_spot >= gang and offered
    on_on_demand = now.held_on_demand > 0
    idle = not on_spot and not on_on_demand
    # Slots are long, so the job may wait only if the safety net still holds one slot later.
    if latched or (idle and time_left - 1 < work_left + 2 * changeover):
        return gang, Rule.GANG_SAFETY_NET
    if on_spot:
        return gang, Rule.GANG_SPOT
    if on_on_demand and ahead_by(job, now.slot - 1 + 2 * changeover, now.progress) < 0:
        return gang, Rule.GANG_STAY
    if offered:
        return gang, Rule.GANG_SPOT
    if ahead_by(job, now.slot - 1, now.progress) < -job.tolerance:
        return gang, Rule.GANG_CATCH_UP
    return 0, Rule.GANG_WAIT


@compiled
def ahanp(job: JobPhysics, now: Now, threshold: float) -> tuple[int, int]:
    """AHANP's cases 2 to 5. Case 1, overtime, is in ``window_plan.overtime``."""
    held = now.held_spot + now.held_on_demand
    cheap = now.spot_price <= threshold * now.on_demand_price
    spot = usable_spot(job, now, now.available)
    lead = ahead_by(job, now.slot, now.progress)
    if lead >= -job.tolerance:
        if spot > 0 and cheap:
            return spot, Rule.AHEAD_SPOT
        kept = now.held_on_demand
        if kept >= job.min_gpus and lead < 2 * (1 - job.grow) * job.throughput[kept]:
            return kept, Rule.AHEAD_KEEP
        return 0, Rule.AHEAD_WAIT
    pace = pace_gpus(job, held, -lead)
    if cheap:
        return max(pace, spot), Rule.BEHIND_CHEAP
    return pace, Rule.BEHIND_PACE
