"""The conformance suite of policies, built in or your own."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import numpy as np

from duetune.core.decision import Decision
from duetune.core.job import Job, Reconfiguration, ReconfigurationKey, linear_throughput
from duetune.core.market import MarketTrace
from duetune.core.ports import Policy
from duetune.market.forecast.forecast_source import ForecastSource
from duetune.policies.solve.dynamic import offline_optimum
from duetune.simulate.cases import Case
from duetune.simulate.episode import simulate
from duetune.simulate.tournament import run_tournament
from duetune.testing.small_markets import constant_market, random_market, view_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from duetune.core.ledger import Outcome

_CAUSAL = ForecastSource.parse("last")


class PolicyContract:
    """Subclass it and implement ``make``; override ``jobs`` or ``markets`` to test on your own."""

    def make(self) -> Policy:
        """Return the policy under test; called anew in every test."""
        raise NotImplementedError

    def jobs(self) -> Iterator[Job]:
        """Yield ordinary and extreme jobs."""
        swaps_count = Reconfiguration(key=ReconfigurationKey.COMPOSITION)
        yield Job(work=30, deadline=10, value=60, throughput=linear_throughput(6))
        yield Job(
            work=20.3,
            deadline=8,
            value=40,
            throughput=(0.0, 0.9, 1.9, 2.6, 3.1, 3.4),
            min_gpus=2,
            reconfiguration=swaps_count,
        )
        yield Job(work=4, deadline=9, value=6, throughput=linear_throughput(1))
        yield Job(work=2, deadline=1, value=9, throughput=linear_throughput(3), min_gpus=3)
        yield Job(work=99, deadline=4, value=50, throughput=linear_throughput(4))
        yield Job(work=12, deadline=6, value=0, throughput=linear_throughput(4))
        yield Job(work=12, deadline=6, value=40, throughput=linear_throughput(4), budget=5.0)
        yield Job(work=12, deadline=6, value=40, throughput=linear_throughput(4), budget=0.0)

    def markets(self) -> Iterator[MarketTrace]:
        """Yield ordinary and extreme markets."""
        yield constant_market(24)
        yield constant_market(24, available=0)
        yield constant_market(24, spot_price=0.0)
        yield constant_market(24, spot_price=1.3)
        yield random_market(1, 24)
        yield random_market(2, 24, most=3)

    def outcomes(self) -> Iterator[tuple[Job, MarketTrace, Outcome]]:
        """Yield the outcome of every job on every market."""
        for trace in self.markets():
            for job in self.jobs():
                yield job, trace, simulate(job, trace, self.make(), _CAUSAL)

    def test_it_is_a_policy_with_a_name(self) -> None:
        """The object implements the ``Policy`` port; its name is stable and one line."""
        policy = self.make()
        assert isinstance(policy, Policy)
        assert policy.name
        assert policy.name == self.make().name
        assert "\n" not in policy.name

    def test_the_same_view_gives_the_same_decision(self) -> None:
        """A policy is a value: it keeps no state between calls."""
        policy = self.make()
        for job in self.jobs():
            view = view_of(job, ahead=[(0.5, 3)] * 5)
            first = policy.decide(view)
            assert isinstance(first, Decision)
            assert policy.decide(view) == first, "a policy keeps no state of its own"
            assert self.make().decide(view) == first

    def test_it_never_holds_what_it_may_not(self) -> None:
        """Allocations respect availability and the job's range of GPUs."""
        for job, _, outcome in self.outcomes():
            for entry in outcome.entries:
                held = entry.allocation
                assert 0 <= held.spot <= entry.available
                assert held.on_demand >= 0
                assert held.total == 0 or job.min_gpus <= held.total <= job.max_gpus

    def test_the_account_adds_up(self) -> None:
        """Cost is the sum of charges, progress the sum of work, and the budget is kept."""
        for job, _, outcome in self.outcomes():
            charges = sum(entry.charge for entry in outcome.entries)
            work = sum(entry.work for entry in outcome.entries)
            assert abs(outcome.cost - charges) <= 1e-9 * max(1.0, charges)
            assert abs(outcome.progress - work) <= 1e-9 * max(1.0, work)
            assert abs(outcome.utility - (outcome.value - outcome.cost)) <= 1e-9
            assert job.budget is None or outcome.cost <= job.budget + 1e-6

    def test_every_decision_is_explained_in_words(self) -> None:
        """Every decision has a reason in words, on one line."""
        for _, _, outcome in self.outcomes():
            for entry in outcome.entries:
                assert any(letter.isalpha() for letter in entry.reason), entry
                assert "\n" not in entry.reason

    def test_what_it_remembers_survives_a_journal(self) -> None:
        """The memo is a tuple of floats that JSON returns unchanged."""
        for job in self.jobs():
            memo = self.make().decide(view_of(job, ahead=[(0.5, 3)] * 5)).memo
            assert isinstance(memo, tuple)
            text = msgspec.json.encode(memo)
            assert msgspec.json.decode(text, type=tuple[float, ...]) == memo

    def test_no_plan_beats_the_optimum(self) -> None:
        """No outcome exceeds the bound of the offline optimum."""
        for job, trace, outcome in self.outcomes():
            best = offline_optimum(job, trace.window(0, job.hard_deadline))
            assert outcome.utility <= best.upper_bound + 1e-6, (job, trace.name)

    def test_a_replay_gives_the_same(self) -> None:
        """The same job on the same market gives the same outcome."""
        before = [outcome for _, _, outcome in self.outcomes()]
        after = [outcome for _, _, outcome in self.outcomes()]
        assert msgspec.json.encode(before) == msgspec.json.encode(after)

    def test_the_future_does_not_change_the_past(self) -> None:
        """Decisions do not depend on slots that are still to come."""
        job = next(self.jobs())
        for trace in self.markets():
            for known in (1, 4, 7):
                changed = _with_another_future(trace, known)
                there = simulate(job, trace, self.make(), _CAUSAL).entries
                here = simulate(job, changed, self.make(), _CAUSAL).entries
                assert there[:known] == here[:known]

    def test_the_tournament_plays_it_as_the_simulator_does(self) -> None:
        """The tournament and the simulator agree on utility, cost and end."""
        traces = list(self.markets())
        jobs = list(self.jobs())
        cases = [Case(job, market, 0) for market in range(len(traces)) for job in jobs]
        played = run_tournament([self.make()], cases, traces, _CAUSAL, workers=1)
        for row, case in enumerate(cases):
            outcome = simulate(case.job, traces[case.market], self.make(), _CAUSAL)
            assert abs(played.utility[row, 0] - outcome.utility) <= 1e-9
            assert abs(played.cost[row, 0] - outcome.cost) <= 1e-9
            assert played.finished[row, 0] == (outcome.finished or 0)


def _with_another_future(trace: MarketTrace, known: int) -> MarketTrace:
    """Return the trace with spot gone and expensive after the first ``known`` slots."""
    price, available = np.array(trace.spot_price[0]), np.array(trace.available[0])
    price[known:], available[known:] = 2.0, 0
    return MarketTrace.single(price, available, np.array(trace.on_demand_price[0]))
