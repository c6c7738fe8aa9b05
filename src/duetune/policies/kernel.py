"""One compiled door to every built-in policy, for one slot and for whole tournaments alike.

A policy is one record of ``POLICY``; ``decide`` turns it and the present slot into GPUs to hold.
``Policy.decide`` calls it for a single slot and the batch for thousands, so the two agree.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from duetune.core.compiled import compiled
from duetune.core.physics import (
    JobPhysics,
    affordable,
    cheapest_charge,
    cheapest_spot,
)
from duetune.optimise.bellman import steps_left, value_of_action
from duetune.policies.committed import ahap
from duetune.policies.horizon import overtime
from duetune.policies.rules import (
    Now,
    Rule,
    ahanp,
    gang_uniform_progress,
    keeps_deadline,
    maximal_spot,
    steady_gpus,
    uniform_progress,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from duetune.optimise.grid import ProgressGrid


class Kind(IntEnum):
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
        ("guard", np.int64),
    ]
)


class Choice(NamedTuple):
    """What a compiled decision comes to; ``wanted`` is the total before the guard stepped in."""

    spot: int
    on_demand: int
    rule: int
    wanted: int


@compiled
def guarded(
    job: JobPhysics,
    grid: ProgressGrid,
    to_go: NDArray[np.float64],
    guard: int,
    now: Now,
    available: int,
    gpus: int,
) -> int:
    """Raise ``gpus`` where holding fewer would put the deadline out of reach of on-demand.

    Never loses a slot: the test is made for the worst case, all spot lost in the next slot.
    """
    if guard == Guard.NEVER or now.slot > job.deadline:
        return gpus
    spot = cheapest_spot(gpus, available, now.spot_price, now.on_demand_price)
    if keeps_deadline(job, now, spot, gpus - spot):
        return gpus
    candidate = -1
    for offset in range(job.max_gpus + 1):
        # Upwards from gpus first, then downwards from it: staying small can beat a dear change.
        trial = gpus + offset if gpus + offset <= job.max_gpus else job.max_gpus - offset
        if 0 < trial < job.min_gpus:
            continue
        spot = cheapest_spot(trial, available, now.spot_price, now.on_demand_price)
        if keeps_deadline(job, now, spot, trial - spot):
            candidate = trial
            break
    if candidate < 0:
        return gpus
    if guard == Guard.ALWAYS:
        return candidate
    held = now.held_spot + now.held_on_demand
    left = steps_left(job, grid, now.progress)
    following, finish = to_go[now.slot + 1], job.values[now.slot]
    own_cost = cheapest_charge(gpus, available, now.spot_price, now.on_demand_price)
    own = value_of_action(grid, following, left, held, gpus, own_cost, finish)
    cost = cheapest_charge(candidate, available, now.spot_price, now.on_demand_price)
    safe = value_of_action(grid, following, left, held, candidate, cost, finish)
    # The tables round progress down, so a deadline held by a hair looks missed there.
    rush = (job.deadline - now.slot) * job.max_gpus * now.on_demand_price
    on_time = job.values[job.deadline] - cost - rush
    return candidate if max(safe, on_time) >= own else gpus


@compiled
def decide(
    job: JobPhysics,
    grid: ProgressGrid,
    to_go: NDArray[np.float64],
    policy: np.void,
    now: Now,
    spent: float,
    memo: NDArray[np.float64],
) -> Choice:
    """What this policy holds now; ``memo`` is updated in place.

    AHAP's plans for this slot must be in the memo (``committed.plan``). ``to_go`` is the value of
    going on with on-demand GPUs alone.
    """
    available = now.available
    if policy["kind"] == Kind.ON_DEMAND:
        available = 0
    if policy["kind"] == Kind.AHAP and now.slot < job.deadline:
        gpus, rule, available = ahap(job, policy, now, memo)
    elif now.slot > job.deadline or (policy["kind"] >= Kind.AHANP and now.slot == job.deadline):
        gpus, rule = overtime(job, grid, to_go, now, available), Rule.OVERTIME
    elif policy["kind"] == Kind.ON_DEMAND:
        gpus, rule = steady_gpus(job), Rule.STEADY
    elif policy["kind"] == Kind.MAXIMAL_SPOT:
        gpus, rule = maximal_spot(job, now)
    elif policy["kind"] == Kind.UNIFORM_PROGRESS:
        gpus, rule = uniform_progress(job, now, policy["hysteresis"])
    elif policy["kind"] == Kind.GANG_UNIFORM_PROGRESS:
        gpus, rule = gang_uniform_progress(job, now, memo[0, 0] > 0)
        memo[0, 0] = 1.0 if rule == Rule.GANG_SAFETY_NET else 0.0
        if rule != Rule.GANG_SPOT:
            available = 0
    else:
        gpus, rule = ahanp(job, now, policy["threshold"])
    wanted = gpus
    gpus = guarded(job, grid, to_go, policy["guard"], now, available, gpus)
    spot = cheapest_spot(gpus, available, now.spot_price, now.on_demand_price)
    spot, on_demand = affordable(job, spot, gpus - spot, now.spot_price, now.on_demand_price, spent)
    return Choice(spot, on_demand, rule, wanted)
