"""One compiled door to every built-in policy, for one slot and for whole tournaments alike.

A policy is one record of ``POLICY``; ``decide`` turns it and the present slot into GPUs to hold.
``Policy.decide`` calls it for a single slot and the batch for thousands, so the two agree.
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
    ON_DEMAND = 0
    MAXIMAL_SPOT = 1
    UNIFORM_PROGRESS = 2
    GANG_UNIFORM_PROGRESS = 3
    AHANP = 4
    AHAP = 5


class Guard(IntEnum):
    """NEVER; WORTHWHILE: hold the deadline where that is worth its price; ALWAYS: hold it."""

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
    """What a compiled decision comes to; ``wanted`` is the total before the guard stepped in."""

    spot: int
    on_demand: int
    rule: int
    wanted: int
    guarded: bool


@compiled
def _safe_spot(job: JobPhysics, now: Now, available: int, gpus: int) -> int:
    """How many of ``gpus`` can be on spot without losing the deadline; -1 if it is lost anyway.

    By composition a swap costs work, so keeping what is held on demand can be what saves it.
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
    """Spot and on-demand GPUs for a wish of ``gpus``, and whether the deadline changed the wish.

    Holding the wish may put the deadline out of reach of on-demand. Never loses a slot: the test
    is made for the worst case, all spot lost in the next slot.
    """
    spot = cheapest_spot(gpus, available, now.spot_price, now.on_demand_price)
    wish = (spot, gpus - spot)
    if guard == Guard.NEVER or now.slot > job.deadline or keeps_deadline(job, now, *wish):
        return spot, gpus - spot, False
    safe, safe_spot = -1, -1
    for offset in range(job.max_gpus + 1):
        # Upwards from gpus first, then downwards from it: staying small can beat a dear change.
        trial = gpus + offset if gpus + offset <= job.max_gpus else job.max_gpus - offset
        if trial == 0 or trial >= job.min_gpus:
            safe_spot = _safe_spot(job, now, available, trial)
            if safe_spot >= 0:
                safe = trial
                break
    if safe < 0:
        return spot, gpus - spot, False
    if guard == Guard.WORTHWHILE and not _worth_it(
        job, grid, to_go, now, wish, (safe_spot, safe - safe_spot)
    ):
        return spot, gpus - spot, False
    return safe_spot, safe - safe_spot, True


@compiled
def _worth_it(
    job: JobPhysics,
    grid: ProgressGrid,
    to_go: NDArray[np.float64],
    now: Now,
    wish: tuple[int, int],
    safe: tuple[int, int],
) -> bool:
    """Whether holding the deadline is worth at least as much as the wish, going on on demand."""
    held = now.held_spot + now.held_on_demand
    left = steps_left(job, grid, now.progress)
    following, finish = to_go[now.slot + 1], job.values[now.slot]
    wish_cost = charge(wish[0], wish[1], now.spot_price, now.on_demand_price)
    own = value_of_action(grid, following, left, held, wish[0] + wish[1], wish_cost, finish)
    if job.by_composition:
        # The tables know nothing of swaps and preemptions: what they take for on time is not.
        own -= job.values[job.deadline] - job.values[job.deadline + 1]
    cost = charge(safe[0], safe[1], now.spot_price, now.on_demand_price)
    held_to = value_of_action(grid, following, left, held, safe[0] + safe[1], cost, finish)
    # The tables round progress down, so a deadline held by a hair looks missed there.
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
    """What this policy holds now; ``memo`` is updated in place.

    AHAP's plans for this slot must be in the memo (``committed.plan``). ``to_go`` is the value of
    going on with on-demand GPUs alone.
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
