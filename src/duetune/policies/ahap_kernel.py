"""Committed horizon control, compiled: plan in every slot, hold the mean of the last v plans.

A memo has one row per plan. If plans start from the real state, a row is [slot in which it was
made, unused, actions...]. If plans are virtual, a row is [progress, GPUs held, actions...], and
version k plans every v slots on a trajectory of its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from duetune.core.compiled import compiled
from duetune.core.physics import JobPhysics, is_done, resize_efficiency
from duetune.policies.rules import Ahead, Now, Rule, ahead_by, usable_spot
from duetune.policies.solve.bellman import steps_left
from duetune.policies.window_plan import UNPLANNED, fill_plan

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from duetune.policies.solve.progress_grid import ProgressGrid


@compiled
def is_ahead(job: JobPhysics, now: Now) -> bool:
    """Return whether the job is on or ahead of schedule at the start of the slot."""
    return ahead_by(job, now.slot - 1, now.progress) >= -job.tolerance


@compiled
def is_cheap(now: Now, threshold: float) -> bool:
    """Return whether spot costs at most the threshold's share of on-demand."""
    return now.spot_price <= threshold * now.on_demand_price


@compiled
def accepted_spot(job: JobPhysics, now: Now, threshold: float, refuse_dear_spot: bool) -> int:
    """Return the spot GPUs that may be used in this slot."""
    if refuse_dear_spot and is_ahead(job, now) and not is_cheap(now, threshold):
        return 0
    return now.available


@compiled
def swap_reserve(job: JobPhysics) -> float:
    """Return the work that plans leave room for: two changeovers, as in NSDI'24.

    Plans count GPUs and ignore their kind. By composition a swap costs work. Without the reserve, a
    job that is planned to the edge of its deadline could no longer move from on-demand to spot.
    """
    if not job.by_composition:
        return 0.0
    return 2 * (1 - min(job.grow, job.preempted)) * float(job.throughput[job.max_gpus])


@compiled
def plan(
    job: JobPhysics,
    grid: ProgressGrid,
    beyond: NDArray[np.float64],
    window: NDArray[np.float64],
    policy: np.void,
    now: Now,
    horizon: int,
    forecast: Ahead,
    next_costs: NDArray[np.float64],
    memo: NDArray[np.float64],
) -> None:
    """Write the plans that are due in this slot into the memo; called before ``decide``."""
    commitment, reserve = policy["commitment"], swap_reserve(job)
    available = accepted_spot(job, now, policy["threshold"], policy["refuse_dear_spot"])
    for index in range(commitment):
        row = memo[index]
        due = now.slot % commitment == index
        if policy["virtual"]:
            due = due or now.slot == 1
            progress, held = row[0], int(row[1])
        else:
            progress = now.progress - reserve
            held = now.held_spot + now.held_on_demand
            if due:
                row[0] = now.slot
        if due:
            fill_plan(
                job,
                grid,
                beyond,
                window,
                now,
                available,
                horizon,
                forecast,
                next_costs,
                policy["patience"],
                policy["virtual"],
                reserve,
                steps_left(job, grid, progress),
                held,
                row[2 : 2 + commitment],
            )


@compiled
def _mean_of_real_plans(now: Now, commitment: int, memo: NDArray[np.float64]) -> float:
    """Return the mean action for this slot over the plans made in the last v slots."""
    total, plans = 0.0, 0
    for index in range(commitment):
        start = int(memo[index, 0])
        if start > 0 and now.slot - commitment < start:
            action = memo[index, 2 + now.slot - start]
            if action != UNPLANNED:
                total += action
                plans += 1
    return total / plans


@compiled
def _mean_of_virtual_plans(
    job: JobPhysics, now: Now, commitment: int, memo: NDArray[np.float64]
) -> float:
    """Return the mean action over all versions, and move each one along its own trajectory."""
    total = 0.0
    for index in range(commitment):
        row = memo[index]
        since = (now.slot - index) % commitment
        held, action = int(row[1]), int(row[2 + min(since, now.slot - 1)])
        if is_done(job, row[0]):
            action = 0
        elif action == UNPLANNED:
            action = held
        row[0] += resize_efficiency(job, held, action) * job.throughput[action]
        row[1] = action
        total += action
    return total / commitment


@compiled
def ahap(
    job: JobPhysics, policy: np.void, now: Now, memo: NDArray[np.float64]
) -> tuple[int, int, int]:
    """Return GPUs in all, the rule, and the spot that may be used; called before the deadline."""
    if policy["virtual"]:
        mean = _mean_of_virtual_plans(job, now, policy["commitment"], memo)
    else:
        mean = _mean_of_real_plans(now, policy["commitment"], memo)
    available = accepted_spot(job, now, policy["threshold"], policy["refuse_dear_spot"])
    gpus, rule = int(np.floor(mean + 0.5)), Rule.PLAN
    most = usable_spot(job, now, available)
    if most > gpus and is_ahead(job, now) and is_cheap(now, policy["threshold"]):
        gpus, rule = most, Rule.BANK
    if gpus < job.min_gpus:
        gpus = job.min_gpus if 2 * gpus >= job.min_gpus and gpus > 0 else 0
    return gpus, rule, available
