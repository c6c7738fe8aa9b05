"""The common base of the built-in policies: a record for the kernel, and one decision from it.

The rules are in ``rules`` and ``ahap_kernel``, the texts in ``reasons``. The batch simulator does
not come through here; it passes the records to ``pool_kernel``.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from duetune.core.decision import Allocation, Decision
from duetune.core.physics import job_physics
from duetune.policies.ahap_kernel import plan, swap_reserve
from duetune.policies.policy_kernel import POLICY, Guard, PolicyKind, decide
from duetune.policies.reasons import reason
from duetune.policies.rules import Ahead, Now, now_of
from duetune.policies.solve.bellman import steps_left
from duetune.policies.window_plan import (
    fill_costs,
    fill_to_go,
    fill_window,
    horizon_of,
    planning_grid,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from duetune.core.decision import View
    from duetune.core.job import Job


class CompiledPolicy(msgspec.Struct, frozen=True):
    """A policy that the kernel knows. A subclass says which one, with which parameters."""

    @property
    def name(self) -> str:
        """Return the name that ``duetune.registry.policies`` turns back into the same policy."""
        raise NotImplementedError

    @property
    def lookahead(self) -> int:
        """Return how many slots of forecast the policy uses."""
        return 0

    def record(self) -> NDArray[np.void]:
        """Return this policy as an array of one ``POLICY`` record."""
        raise NotImplementedError

    def decide(self, view: View) -> Decision:
        """Return the decision for one slot, made by the same functions as in a tournament."""
        return decide_compiled(self.record(), view)


def short(number: float) -> str:
    """Return a number as short text for a policy's name; reading it gives the same number."""
    return repr(float(number)).removesuffix(".0")


def policy_record(kind: PolicyKind, *, guard: Guard, **fields: float) -> NDArray[np.void]:
    """Return an array of one ``POLICY`` record; fields that are not given are 1 or 0."""
    record = np.zeros(1, dtype=POLICY)
    record["window"] = record["commitment"] = 1
    for field, value in {"kind": kind, "guard": guard, **fields}.items():
        record[field] = value
    return record


def decide_compiled(record: NDArray[np.void], view: View) -> Decision:
    """Return the decision of one policy record for one slot."""
    job, grid = job_physics(view.job), planning_grid(view.job)
    market, forecast = view.market, view.forecast
    # Copies, because the kernel is compiled for writable, contiguous arrays only.
    ahead = Ahead(
        np.array(forecast.spot_price, dtype=np.float64),
        np.array(forecast.available, dtype=np.int64),
    )
    policy = record[0]
    length = int(policy["commitment"])
    memo = np.array(view.memo, dtype=np.float64) if view.memo else np.zeros(length * (length + 2))
    memo = memo.reshape(length, length + 2)
    now = now_of(view)
    horizon = 0
    if policy["kind"] == PolicyKind.AHAP and view.slot < job.deadline:
        horizon = horizon_of(job, int(policy["window"]), view.slot, ahead.spot_price.size)
        _plan(view, policy, now, horizon, ahead, memo)
    to_go = on_demand_to_go(view.job, market.on_demand_price)
    choice = decide(job, grid, to_go, policy, now, view.spent, memo)
    return Decision(
        allocation=Allocation(spot=int(choice.spot), on_demand=int(choice.on_demand)),
        reason=reason(view, choice, horizon, float(policy["threshold"])),
        memo=tuple(memo.ravel().tolist()),
    )


def _plan(
    view: View, policy: np.void, now: Now, horizon: int, ahead: Ahead, memo: NDArray[np.float64]
) -> None:
    """Write AHAP's plans for this slot into the memo."""
    job, grid = job_physics(view.job), planning_grid(view.job)
    on_demand_price = view.market.on_demand_price
    typical = float(policy["outlook"]) * view.outlook.available
    price = view.outlook.spot_price if typical > 0 else 0.0
    beyond = _to_go(view.job, typical, price, on_demand_price)
    window = np.empty((horizon + 2, job.max_gpus + 1, grid.steps + 1))
    progresses = [view.progress - swap_reserve(job), *(memo[:, 0] if policy["virtual"] else ())]
    left = [steps_left(job, grid, progress) for progress in progresses]
    costs, running = np.zeros(job.max_gpus + 1), np.empty(grid.steps + 1)
    fill_window(
        job,
        grid,
        beyond,
        view.slot,
        horizon,
        ahead,
        on_demand_price,
        min(left),
        max(left),
        1 if policy["virtual"] else 2,
        window,
        costs,
        running,
    )
    if horizon > 0:
        fill_costs(job, ahead, 1, on_demand_price, costs)
    plan(job, grid, beyond, window, policy, now, horizon, ahead, costs, memo)


def on_demand_to_go(job: Job, on_demand_price: float) -> NDArray[np.float64]:
    """Return the value tables of finishing with on-demand GPUs alone, from every slot on."""
    return _to_go(job, 0.0, 0.0, on_demand_price)


@functools.lru_cache(maxsize=32)
def _to_go(
    job: Job, available: float, spot_price: float, on_demand_price: float
) -> NDArray[np.float64]:
    """Return the value tables of a market that does not change; all slots of a job share them."""
    physics, grid = job_physics(job), planning_grid(job)
    tables = np.zeros((physics.hard_deadline + 2, physics.max_gpus + 1, grid.steps + 1))
    running = np.empty(grid.steps + 1)
    fill_to_go(physics, grid, available, spot_price, on_demand_price, tables, running, False)
    return tables
