"""The compiled decision of every built-in policy, for one slot and for whole tournaments.

A policy is one record of ``POLICY``. ``decide`` turns the record and the present slot into GPUs to
hold. ``CompiledPolicy.decide`` calls it for a single slot and the batch simulator for thousands, so
the two agree.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from duetune.core.compiled import compiled
from duetune.core.physics import JobPhysics, affordable, charge, cheapest_spot
from duetune.policies.ahap_kernel import ahap
from duetune.policies.rules import (
    Now,
    Rule,
    ahanp,
    enough_gpus,
    gang_uniform_progress,
    keeps_deadline,
    maximal_spot,
    steady_gpus,
    uniform_progress,
)
from duetune.policies.solve.bellman import steps_left, value_of_action
from duetune.policies.window_plan import overtime

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from duetune.policies.solve.progress_grid import ProgressGrid


class PolicyKind(IntEnum):
    """Which rule a policy record stands for."""

    ON_DEMAND = 0
    MAXIMAL_SPOT = 1
    UNIFORM_PROGRESS = 2
    GANG_UNIFORM_PROGRESS = 3
    AHANP = 4
    AHAP = 5


class Guard(IntEnum):
    """When the deadline guard acts: never, if the deadline is worth its price, or always."""

    NEVER = 0
    WORTHWHILE = 1
    ALWAYS = 2


POLICY = np.dtype(
    [
        ("kind", np.int64),
        ("window", np.int64),
        ("commitment", np.int64),
        ("threshold", np.float64),
        ("refuse_dear_spot", np.bool_),
        ("virtual", np.bool_),
        ("hysteresis", np.bool_),
        ("outlook", np.float64),
        ("patience", np.float64),
        ("thrifty", np.bool_),
        ("guard", np.int64),
    ]
)


class KernelChoice(NamedTuple):
    """The result of a compiled decision; ``wanted`` is the total before guard and budget."""

    spot: int
    on_demand: int
    rule: int
    wanted: int
    guarded: bool


@compiled
def _safe_spot(job: JobPhysics, now: Now, available: int, gpus: int) -> int:
    """Return how many of ``gpus`` can be on spot without losing the deadline; -1 if none.

    By composition a swap costs work, so keeping the on-demand GPUs can save the deadline.
    """
    spot = cheapest_spot(gpus, available, now.spot_price, now.on_demand_price)
    while spot >= 0:
        if keeps_deadline(job, now, spot, gpus - spot):
            return spot
        if not job.by_composition:
            return -1
        spot -= 1
    return -1


@compiled
def guarded(
    job: JobPhysics,
    grid: ProgressGrid,
    to_go: NDArray[np.float64],
    guard: int,
    now: Now,
    available: int,
    gpus: int,
) -> tuple[int, int, bool]:
    """Return spot and on-demand GPUs for a wanted total, and whether the guard changed it.

    The guard acts if the wanted total could put the deadline out of reach of on-demand GPUs. It
    tests the worst case, in which all spot is lost in the next slot, so it never acts too late.
    """
    spot = cheapest_spot(gpus, available, now.spot_price, now.on_demand_price)
    wanted = (spot, gpus - spot)
    if guard == Guard.NEVER or now.slot > job.deadline or keeps_deadline(job, now, *wanted):
        return spot, gpus - spot, False
    safe, safe_spot = -1, -1
    for offset in range(job.max_gpus + 1):
        # First more GPUs, then fewer: a small change can be cheaper than a large one.
        trial = gpus + offset if gpus + offset <= job.max_gpus else job.max_gpus - offset
        if trial == 0 or trial >= job.min_gpus:
            safe_spot = _safe_spot(job, now, available, trial)
            if safe_spot >= 0:
                safe = trial
                break
    if safe < 0 or (
        guard == Guard.WORTHWHILE
        and not _worth_it(job, grid, to_go, now, wanted, (safe_spot, safe - safe_spot))
    ):
        return spot, gpus - spot, False
    return safe_spot, safe - safe_spot, True


@compiled
def _worth_it(
    job: JobPhysics,
    grid: ProgressGrid,
    to_go: NDArray[np.float64],
    now: Now,
    wanted: tuple[int, int],
    safe: tuple[int, int],
) -> bool:
    """Return whether keeping the deadline is worth at least as much as the wanted pair.

    Both are valued as if the job continued on on-demand GPUs.
    """
    held = now.held_spot + now.held_on_demand
    left = steps_left(job, grid, now.progress)
    following, finish = to_go[now.slot + 1], job.values[now.slot]
    wanted_cost = charge(wanted[0], wanted[1], now.spot_price, now.on_demand_price)
    own = value_of_action(grid, following, left, held, wanted[0] + wanted[1], wanted_cost, finish)
    if job.by_composition:
        # The tables ignore swaps and preemptions, so a finish that they count as on time is late.
        own -= job.values[job.deadline] - job.values[job.deadline + 1]
    cost = charge(safe[0], safe[1], now.spot_price, now.on_demand_price)
    held_to = value_of_action(grid, following, left, held, safe[0] + safe[1], cost, finish)
    # The tables round progress down, so a deadline that is met barely looks missed in them.
    rush = (job.deadline - now.slot) * job.max_gpus * now.on_demand_price
    on_time = job.values[job.deadline] - cost - rush
    return bool(max(held_to, on_time) >= own)


@compiled
def decide(
    job: JobPhysics,
    grid: ProgressGrid,
    to_go: NDArray[np.float64],
    policy: np.void,
    now: Now,
    spent: float,
    memo: NDArray[np.float64],
) -> KernelChoice:
    """Return what this policy holds now; ``memo`` is updated in place.

    AHAP's plans for this slot must already be in the memo (``ahap_kernel.plan``). ``to_go`` is the
    value of finishing with on-demand GPUs alone.
    """
    available = now.available
    if policy["kind"] == PolicyKind.ON_DEMAND:
        available = 0
    if policy["kind"] == PolicyKind.AHAP and now.slot < job.deadline:
        gpus, rule, available = ahap(job, policy, now, memo)
    elif now.slot > job.deadline or (
        policy["kind"] >= PolicyKind.AHANP and now.slot == job.deadline
    ):
        gpus, rule = overtime(job, grid, to_go, now, available), Rule.OVERTIME
    elif policy["kind"] == PolicyKind.ON_DEMAND:
        gpus, rule = steady_gpus(job), Rule.STEADY
    elif policy["kind"] == PolicyKind.MAXIMAL_SPOT:
        gpus, rule = maximal_spot(job, now)
    elif policy["kind"] == PolicyKind.UNIFORM_PROGRESS:
        gpus, rule = uniform_progress(job, now, policy["hysteresis"])
    elif policy["kind"] == PolicyKind.GANG_UNIFORM_PROGRESS:
        gpus, rule = gang_uniform_progress(job, now, memo[0, 0] > 0)
        memo[0, 0] = 1.0 if rule == Rule.GANG_SAFETY_NET else 0.0
        if rule != Rule.GANG_SPOT:
            available = 0
    else:
        gpus, rule = ahanp(job, now, policy["threshold"])
    if policy["thrifty"] and not job.by_composition:
        gpus = enough_gpus(job, now, gpus)
    wanted = gpus
    spot, on_demand, changed = guarded(job, grid, to_go, policy["guard"], now, available, gpus)
    spot, on_demand = affordable(job, spot, on_demand, now.spot_price, now.on_demand_price, spent)
    return KernelChoice(spot, on_demand, rule, wanted, changed)
