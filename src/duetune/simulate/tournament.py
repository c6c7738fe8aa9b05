"""The tournament: every policy on every case, compiled, on all cores.

A policy does not influence the market. So playing all policies of a pool on a recorded market gives
the counterfactual utilities that online selection learns from.
"""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import msgspec
import numpy as np
from numpy.typing import NDArray

from duetune.core.physics import job_physics
from duetune.engine.consultation import lookahead
from duetune.errors import InvalidInput
from duetune.market.forecast.simple import outlook_at
from duetune.policies.compiled_policy import CompiledPolicy
from duetune.policies.pool_kernel import Workspace, make_roster, make_workspace, play_pool
from duetune.policies.solve.dynamic import offline_optimum
from duetune.policies.window_plan import PLANNING_STEPS, planning_grid
from duetune.simulate.episode import simulate

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from duetune.core.market import MarketTrace
    from duetune.core.ports import Policy
    from duetune.market.forecast.forecast_source import ForecastSource
    from duetune.market.forecast.forecast_table import ForecastTable
    from duetune.simulate.cases import Case

_CASES_PER_TASK = 16
_COLUMNS = ("utility", "cost", "finished", "slots", "spot_slots", "on_demand_slots")


class Tournament(msgspec.Struct, frozen=True, eq=False):
    """Results with one row per case and one column per policy.

    - ``finished`` is the slot in which the job finished, 0 if it never did.
    - ``optimum`` is what the best plan found earns.
    - ``upper_bound`` is a bound that no policy can exceed. It differs from ``optimum`` where the
      progress grid is not exact.
    """

    policies: tuple[str, ...]
    utility: NDArray[np.float64]
    cost: NDArray[np.float64]
    finished: NDArray[np.int64]
    slots: NDArray[np.int64]
    spot_slots: NDArray[np.int64]
    on_demand_slots: NDArray[np.int64]
    deadline: NDArray[np.int64]
    optimum: NDArray[np.float64] | None = None
    upper_bound: NDArray[np.float64] | None = None

    @property
    def on_time(self) -> NDArray[np.bool_]:
        """Return for each case and policy whether the job finished by its deadline."""
        return (self.finished > 0) & (self.finished <= self.deadline[:, np.newaxis])

    @property
    def policy_slots(self) -> int:
        """Return the number of decisions that were taken."""
        return int(self.slots.sum())


def run_tournament(
    policies: Sequence[Policy],
    cases: Sequence[Case],
    markets: Sequence[MarketTrace],
    source: ForecastSource,
    *,
    optimum: bool = False,
    workers: int | None = None,
    advance: Callable[[int], None] | None = None,
    planning_steps: int = PLANNING_STEPS,
) -> Tournament:
    """Play every policy on every case and return the results.

    ``advance`` is called with the number of newly finished cases. ``workers`` is the number of
    threads, by default one per core. ``planning_steps`` is the largest number of grid steps that
    compiled policies plan on; with another number than the default, AHAP may decide otherwise than
    ``Policy.decide``.
    """
    if not policies:
        raise InvalidInput("policies", "none", "at least one policy")
    if not cases:
        raise InvalidInput("cases", "none", "at least one case")
    contest = _Contest(
        tuple(policies),
        tuple(cases),
        tuple(markets),
        source,
        optimum=optimum,
        planning_steps=planning_steps,
    )
    chunks = [
        range(first, min(first + _CASES_PER_TASK, len(cases)))
        for first in range(0, len(cases), _CASES_PER_TASK)
    ]
    contest.play(0)  # compiles the kernels once, before several threads would try to
    with ThreadPoolExecutor(workers or os.cpu_count() or 1) as executor:
        for done in executor.map(contest.play_all, chunks):
            if advance is not None:
                advance(done)
    return contest.result


class _Contest:
    """A tournament in progress; threads fill disjoint rows of ``result``."""

    def __init__(
        self,
        policies: tuple[Policy, ...],
        cases: tuple[Case, ...],
        markets: tuple[MarketTrace, ...],
        source: ForecastSource,
        *,
        optimum: bool,
        planning_steps: int,
    ) -> None:
        self.policies, self.cases, self.markets = policies, cases, markets
        self.source, self.planning_steps = source, planning_steps
        horizon = max([1, *(lookahead(policy) for policy in policies)])
        self.tables: list[ForecastTable] = [source.table(market, horizon) for market in markets]
        compiled = [
            (place, policy)
            for place, policy in enumerate(policies)
            if isinstance(policy, CompiledPolicy)
        ]
        self.columns = np.array([place for place, _ in compiled], dtype=np.int64)
        self.stepped = [place for place in range(len(policies)) if place not in self.columns]
        if compiled:
            self.roster = make_roster(np.concatenate([policy.record() for _, policy in compiled]))
        self.local = threading.local()
        shape = (len(cases), len(policies))
        self.result = Tournament(
            policies=tuple(policy.name for policy in policies),
            utility=np.zeros(shape),
            cost=np.zeros(shape),
            finished=np.zeros(shape, np.int64),
            slots=np.zeros(shape, np.int64),
            spot_slots=np.zeros(shape, np.int64),
            on_demand_slots=np.zeros(shape, np.int64),
            deadline=np.array([case.job.deadline for case in cases]),
            optimum=np.zeros(len(cases)) if optimum else None,
            upper_bound=np.zeros(len(cases)) if optimum else None,
        )

    def play_all(self, rows: range) -> int:
        """Play these cases and return how many they were."""
        for row in rows:
            self.play(row)
        return len(rows)

    def play(self, row: int) -> None:
        """Play one case: the compiled policies together, the others step by step."""
        case = self.cases[row]
        trace = self.markets[case.market]
        window = trace.window(case.start, case.job.hard_deadline)
        if self.columns.size:
            price, available = self.tables[case.market].rows(case.start, case.job.hard_deadline)
            outlook = outlook_at(trace, case.start)
            played = play_pool(
                job_physics(case.job),
                planning_grid(case.job, self.planning_steps),
                window,
                np.array(price),
                np.array(available),
                outlook.available,
                outlook.spot_price,
                self.roster,
                self._workspace(),
            )
            for field in _COLUMNS:
                getattr(self.result, field)[row, self.columns] = getattr(played, field)
        for place in self.stepped:
            self._play_stepped(row, place)
        if self.result.optimum is not None and self.result.upper_bound is not None:
            best = offline_optimum(case.job, window)
            self.result.optimum[row] = best.utility
            self.result.upper_bound[row] = best.upper_bound

    def _workspace(self) -> Workspace:
        """Return the workspace of the calling thread."""
        if not hasattr(self.local, "workspace"):
            jobs = [case.job for case in self.cases]
            self.local.workspace = make_workspace(
                self.roster,
                hard_deadline=max(job.hard_deadline for job in jobs),
                max_gpus=max(job.max_gpus for job in jobs),
                steps=max(planning_grid(job, self.planning_steps).steps for job in jobs),
            )
        workspace: Workspace = self.local.workspace
        return workspace

    def _play_stepped(self, row: int, place: int) -> None:
        case = self.cases[row]
        outcome = simulate(
            case.job,
            self.markets[case.market],
            self.policies[place],
            self.source,
            start=case.start,
        )
        result = self.result
        result.utility[row, place] = outcome.utility
        result.cost[row, place] = outcome.cost
        result.finished[row, place] = outcome.finished or 0
        result.slots[row, place] = len(outcome.entries)
        result.spot_slots[row, place] = sum(entry.allocation.spot for entry in outcome.entries)
        result.on_demand_slots[row, place] = sum(
            entry.allocation.on_demand for entry in outcome.entries
        )
