"""One compiled door to every built-in policy, for one slot and for whole tournaments alike.

A policy is one record of ``POLICY``; ``decide`` turns it and the present slot into GPUs to hold.
``Policy.decide`` calls it for a single slot and ``play_pool`` for thousands, so the two agree.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from duetune.core.compiled import compiled
from duetune.core.physics import (
    JobPhysics,
    affordable,
    charge,
    cheapest_charge,
    cheapest_spot,
    efficiency,
    is_done,
)
from duetune.optimise.bellman import steps_left, value_of_action
from duetune.optimise.grid import ProgressGrid
from duetune.policies.horizon import ahap, fill_to_go, fill_window, horizon_of, overtime
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

    from duetune.core.market import MarketWindow


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
    beyond: NDArray[np.float64],
    window: NDArray[np.float64],
    policy: np.void,
    now: Now,
    horizon: int,
    forecast_price: NDArray[np.float64],
    forecast_available: NDArray[np.int64],
    spent: float,
    memo: NDArray[np.float64],
) -> Choice:
    """What this policy holds now; ``memo`` is updated in place.

    ``to_go`` counts on on-demand alone; ``beyond`` is what the window's tables end in.
    """
    available = now.available
    if policy.kind == Kind.ON_DEMAND:
        available = 0
    if policy.kind == Kind.AHAP and now.slot < job.deadline:
        gpus, rule, available = ahap(
            job,
            grid,
            beyond,
            window,
            now,
            horizon,
            forecast_price,
            forecast_available,
            policy.threshold,
            policy.refuse_dear_spot,
            policy.virtual,
            memo,
        )
    elif now.slot > job.deadline or (policy.kind >= Kind.AHANP and now.slot == job.deadline):
        gpus, rule = overtime(job, grid, to_go, now, available), Rule.OVERTIME
    elif policy.kind == Kind.ON_DEMAND:
        gpus, rule = steady_gpus(job), Rule.STEADY
    elif policy.kind == Kind.MAXIMAL_SPOT:
        gpus, rule = maximal_spot(job, now)
    elif policy.kind == Kind.UNIFORM_PROGRESS:
        gpus, rule = uniform_progress(job, now, policy.hysteresis)
    elif policy.kind == Kind.GANG_UNIFORM_PROGRESS:
        gpus, rule = gang_uniform_progress(job, now, memo[0, 0] > 0)
        memo[0, 0] = 1.0 if rule == Rule.GANG_SAFETY_NET else 0.0
        if rule != Rule.GANG_SPOT:
            available = 0
    else:
        gpus, rule = ahanp(job, now, policy.threshold)
    wanted = gpus
    gpus = guarded(job, grid, to_go, policy.guard, now, available, gpus)
    spot = cheapest_spot(gpus, available, now.spot_price, now.on_demand_price)
    spot, on_demand = affordable(
        job, spot, gpus - spot, now.spot_price, now.on_demand_price, spent
    )
    return Choice(spot, on_demand, rule, wanted)


class Result(NamedTuple):
    """One entry per policy; ``finished`` is 0 where the job never did."""

    utility: NDArray[np.float64]
    cost: NDArray[np.float64]
    finished: NDArray[np.int64]
    progress: NDArray[np.float64]
    spot_slots: NDArray[np.int64]
    on_demand_slots: NDArray[np.int64]
    slots: NDArray[np.int64]


@compiled
def _distinct_outlooks(
    policies: NDArray[np.void],
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """The different outlooks, on-demand alone first, and which of them each policy has."""
    outlooks = np.zeros(policies.size + 1)
    which = np.zeros(policies.size, np.int64)
    count = 1
    for index in range(policies.size):
        place = 0
        while place < count and outlooks[place] != policies[index].outlook:
            place += 1
        if place == count:
            outlooks[count] = policies[index].outlook
            count += 1
        which[index] = place
    return outlooks[:count].copy(), which


@compiled
def play_pool(
    job: JobPhysics,
    grid: ProgressGrid,
    market: MarketWindow,
    forecast_price: NDArray[np.float64],
    forecast_available: NDArray[np.int64],
    typical_available: float,
    typical_price: float,
    policies: NDArray[np.void],
) -> Result:
    """Every policy through the whole job, in lockstep so that they share the window tables."""
    count = policies.size
    widest, longest = 0, 1
    for index in range(count):
        if policies[index].kind == Kind.AHAP:
            widest = max(widest, policies[index].window)
            longest = max(longest, policies[index].commitment)
    widest = min(widest, forecast_price.shape[1])
    rows = job.max_gpus + 1
    columns = grid.steps + 1
    outlooks, outlook_of = _distinct_outlooks(policies)
    to_go = np.zeros((outlooks.size, job.hard_deadline + 2, rows, columns))
    windows = np.empty((outlooks.size, widest + 1, widest + 2, rows, columns))
    running, costs = np.empty(columns), np.zeros(rows)
    filled = np.empty((outlooks.size, widest + 1), dtype=np.bool_)
    memos = np.zeros((count, longest * (longest + 2)))
    spent, progress = np.zeros(count), np.zeros(count)
    held_spot, held_on_demand = np.zeros(count, np.int64), np.zeros(count, np.int64)
    result = Result(
        np.zeros(count),
        spent,
        np.zeros(count, np.int64),
        progress,
        np.zeros(count, np.int64),
        np.zeros(count, np.int64),
        np.zeros(count, np.int64),
    )
    priced = -1.0
    for slot in range(1, job.hard_deadline + 1):
        spot_price = market.spot_price[slot - 1]
        available = market.available[slot - 1]
        on_demand_price = market.on_demand_price[slot - 1]
        if on_demand_price != priced:
            for which in range(outlooks.size):
                fill_to_go(
                    job,
                    grid,
                    outlooks[which] * typical_available,
                    typical_price,
                    on_demand_price,
                    to_go[which],
                    running,
                )
            priced = on_demand_price
        filled[:] = False
        fewest, most = grid.steps, 1
        for index in range(count):
            if policies[index].kind == Kind.AHAP and result.finished[index] == 0:
                left = steps_left(job, grid, progress[index])
                fewest, most = min(fewest, left), max(most, left)
                if policies[index].virtual:
                    for row in range(policies[index].commitment):
                        place = row * (policies[index].commitment + 2)
                        left = steps_left(job, grid, memos[index, place])
                        fewest, most = min(fewest, left), max(most, left)
        active = 0
        for index in range(count):
            if result.finished[index] > 0:
                continue
            active += 1
            policy = policies[index]
            now = Now(
                slot,
                progress[index],
                held_spot[index],
                held_on_demand[index],
                spot_price,
                available,
                on_demand_price,
            )
            horizon, which = 0, outlook_of[index]
            if policy.kind == Kind.AHAP:
                horizon = horizon_of(job, policy.window, slot, forecast_price.shape[1])
                if horizon > 0 and not filled[which, horizon]:
                    fill_window(
                        job,
                        grid,
                        to_go[which],
                        slot,
                        horizon,
                        forecast_price[slot - 1],
                        forecast_available[slot - 1],
                        on_demand_price,
                        fewest,
                        most,
                        windows[which, horizon],
                        costs,
                        running,
                    )
                    filled[which, horizon] = True
            length = policy.commitment
            choice = decide(
                job,
                grid,
                to_go[0],
                to_go[which],
                windows[which, horizon],
                policy,
                now,
                horizon,
                forecast_price[slot - 1],
                forecast_available[slot - 1],
                spent[index],
                memos[index, : length * (length + 2)].reshape(length, length + 2),
            )
            spot, on_demand = choice.spot, choice.on_demand
            fraction = efficiency(
                job, held_spot[index], held_on_demand[index], spot, on_demand, available
            )
            spent[index] += charge(spot, on_demand, spot_price, on_demand_price)
            progress[index] += fraction * job.throughput[spot + on_demand]
            held_spot[index], held_on_demand[index] = spot, on_demand
            result.spot_slots[index] += spot
            result.on_demand_slots[index] += on_demand
            result.slots[index] += 1
            if is_done(job, progress[index]):
                result.finished[index] = slot
                result.utility[index] = job.values[slot] - spent[index]
            else:
                result.utility[index] = -spent[index]
        if active == 0:
            break
    return result
