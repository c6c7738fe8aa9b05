"""A whole job played by every policy of a pool, compiled, without Python in the loop.

Results are bit-equal to stepping each policy with ``CompiledPolicy.decide``; a property test checks
it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from duetune.core.compiled import compiled
from duetune.core.physics import JobPhysics, step
from duetune.policies.ahap_kernel import accepted_spot, plan, swap_reserve
from duetune.policies.policy_kernel import PolicyKind, decide
from duetune.policies.rules import Ahead, Now
from duetune.policies.solve.bellman import steps_left
from duetune.policies.window_plan import fill_costs, fill_to_go, fill_window, horizon_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from duetune.core.market import MarketWindow
    from duetune.policies.solve.progress_grid import ProgressGrid


_FAMILY = 8  # number of neighbours whose plans are compared


class Roster(NamedTuple):
    """A pool and what its members share.

    ``outlooks`` (on-demand alone first) and ``windows`` list each distinct value once, in order.
    ``outlook_of`` and ``window_of`` give the place of each policy's own value.
    """

    policies: NDArray[np.void]
    outlooks: NDArray[np.float64]
    outlook_of: NDArray[np.int64]
    windows: NDArray[np.int64]
    window_of: NDArray[np.int64]


class Workspace(NamedTuple):
    """Tables that are filled again for every job, one set per thread, large enough for any job.

    They are reused because memory that was touched before is several times faster than fresh
    memory.
    """

    to_go: NDArray[np.float64]
    windows: NDArray[np.float64]
    running: NDArray[np.float64]


def make_roster(policies: NDArray[np.void]) -> Roster:
    """Return the roster of an array of policy records; called once per tournament."""
    outlooks = np.unique(np.append(policies["outlook"], 0.0))
    windows = np.unique(policies["window"])
    return Roster(
        policies,
        outlooks,
        np.searchsorted(outlooks, policies["outlook"]),
        windows,
        np.searchsorted(windows, policies["window"]),
    )


def make_workspace(roster: Roster, *, hard_deadline: int, max_gpus: int, steps: int) -> Workspace:
    """Return tables for jobs up to these sizes, played by this pool; called once per thread."""
    outlooks, windows = roster.outlooks.size, roster.windows.size
    rows, columns = max_gpus + 1, steps + 1
    longest = min(int(roster.windows.max()), hard_deadline)
    return Workspace(
        to_go=np.zeros((outlooks, hard_deadline + 2, rows, columns)),
        windows=np.zeros((outlooks, windows, longest + 2, rows, columns)),
        running=np.zeros(columns),
    )


class PoolResult(NamedTuple):
    """The results of one job, one entry per policy; ``finished`` is 0 if the job never finished."""

    utility: NDArray[np.float64]
    cost: NDArray[np.float64]
    finished: NDArray[np.int64]
    progress: NDArray[np.float64]
    spot_slots: NDArray[np.int64]
    on_demand_slots: NDArray[np.int64]
    slots: NDArray[np.int64]


@compiled
def _planned_alike(
    job: JobPhysics,
    policies: NDArray[np.void],
    now: Now,
    index: int,
    plan_keys: NDArray[np.float64],
    memos: NDArray[np.float64],
) -> int:
    """Copy this slot's plan from a neighbour that differs in its threshold only.

    Policies of a pool come in families with the same window and commitment, and most members are in
    the same state most of the time. Returns the neighbour's index, or -1 if the plan must be
    computed.
    """
    policy = policies[index]
    if policy["virtual"]:
        return -1
    available = accepted_spot(job, now, policy["threshold"], policy["refuse_dear_spot"])
    key = plan_keys[index]
    key[0], key[1] = now.slot, now.progress
    held = now.held_spot + now.held_on_demand
    key[2] = held * (job.max_gpus + 1.0) + min(available, job.max_gpus)
    row = now.slot % policy["commitment"]
    for twin in range(index - 1, max(-1, index - 1 - _FAMILY), -1):
        other = policies[twin]
        if (
            other["kind"] == PolicyKind.AHAP
            and other["window"] == policy["window"]
            and other["commitment"] == policy["commitment"]
            and other["outlook"] == policy["outlook"]
            and other["patience"] == policy["patience"]
            and not other["virtual"]
            and plan_keys[twin, 0] == key[0]
            and plan_keys[twin, 1] == key[1]
            and plan_keys[twin, 2] == key[2]
        ):
            memos[index, row, :] = memos[twin, row, :]
            return twin
    return -1


@compiled
def play_pool(
    job: JobPhysics,
    grid: ProgressGrid,
    market: MarketWindow,
    forecast_price: NDArray[np.float64],
    forecast_available: NDArray[np.int64],
    typical_available: float,
    typical_price: float,
    roster: Roster,
    workspace: Workspace,
) -> PoolResult:
    """Play the whole job with every policy, in lockstep, so that they share window tables."""
    policies, outlooks = roster.policies, roster.outlooks
    count = policies.size
    to_go, windows, running = workspace.to_go, workspace.windows, workspace.running
    costs, next_costs = np.zeros(job.max_gpus + 1), np.zeros(job.max_gpus + 1)
    nearest = 1 if policies["virtual"].any() else 2
    filled = np.empty((outlooks.size, roster.windows.size), dtype=np.bool_)
    longest = policies["commitment"].max()
    memos = np.zeros((count, longest, longest + 2))
    plan_keys = np.zeros((count, 3))
    spent, progress = np.zeros(count), np.zeros(count)
    held_spot, held_on_demand = np.zeros(count, np.int64), np.zeros(count, np.int64)
    result = PoolResult(
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
                    True,
                )
            priced = on_demand_price
        filled[:] = False
        ahead = Ahead(forecast_price[slot - 1], forecast_available[slot - 1])
        if ahead.spot_price.size > 0:
            fill_costs(job, ahead, 1, on_demand_price, next_costs)
        on_demand_to_go = to_go[0]
        fewest, most = grid.steps, 1
        reserve = swap_reserve(job)
        for index in range(count):
            if policies[index]["kind"] == PolicyKind.AHAP and result.finished[index] == 0:
                left = steps_left(job, grid, progress[index] - reserve)
                fewest, most = min(fewest, left), max(most, left)
                if policies[index]["virtual"]:
                    for row in range(policies[index]["commitment"]):
                        left = steps_left(job, grid, memos[index, row, 0])
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
            if policy["kind"] == PolicyKind.AHAP and slot < job.deadline:
                which, place = roster.outlook_of[index], roster.window_of[index]
                horizon = horizon_of(job, policy["window"], slot, ahead.spot_price.size)
                # Near the deadline the tables of a shorter window reach as far.
                while place > 0 and roster.windows[place - 1] >= horizon:
                    place -= 1
                twin = _planned_alike(job, policies, now, index, plan_keys, memos)
                if twin < 0:
                    if not filled[which, place]:
                        fill_window(
                            job,
                            grid,
                            to_go[which],
                            slot,
                            horizon,
                            ahead,
                            on_demand_price,
                            fewest,
                            most,
                            nearest,
                            windows[which, place],
                            costs,
                            running,
                        )
                        filled[which, place] = True
                    plan(
                        job,
                        grid,
                        to_go[which],
                        windows[which, place],
                        policy,
                        now,
                        horizon,
                        ahead,
                        next_costs,
                        memos[index],
                    )
            choice = decide(job, grid, on_demand_to_go, policy, now, spent[index], memos[index])
            spot, on_demand = choice.spot, choice.on_demand
            did = step(
                job,
                progress[index],
                held_spot[index],
                held_on_demand[index],
                spot,
                on_demand,
                spot_price,
                available,
                on_demand_price,
            )
            spent[index] += did.charge
            progress[index] = did.progress
            held_spot[index], held_on_demand[index] = spot, on_demand
            result.spot_slots[index] += spot
            result.on_demand_slots[index] += on_demand
            result.slots[index] += 1
            if did.done:
                result.finished[index] = slot
                result.utility[index] = job.values[slot] - spent[index]
            else:
                result.utility[index] = -spent[index]
        if active == 0:
            break
    return result
