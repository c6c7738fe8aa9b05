"""Rubato's tables against a plain expectimax, and what holds for it on every market."""

from __future__ import annotations

import functools

import msgspec
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from duetune.core.job import Job, Reconfiguration, ValueShape
from duetune.core.market import MarketChain, MarketTrace
from duetune.core.physics import job_physics
from duetune.policies.rubato import Rubato
from duetune.policies.solve.dynamic import offline_optimum
from duetune.policies.solve.stochastic import fill_mix_tables, fill_tables, mixes
from duetune.simulate.episode import simulate
from support.strategies import COMPOSITION, TOTAL, job_on_market, keys, markets

# --- The tables

UNIT = 1.0  # throughputs are multiples of 4 and fractions of 1/4: all work lies on the grid
quarters = st.sampled_from([1.0, 0.75, 0.5, 0.25])


@st.composite
def small_jobs(draw: st.DrawFn, key) -> Job:
    most = draw(st.integers(1, 3))
    rises = draw(st.lists(st.sampled_from([0, 4]), min_size=most - 1, max_size=most - 1))
    deadline = draw(st.integers(1, 4))
    return Job(
        work=float(draw(st.integers(1, 24))),
        deadline=deadline,
        value=draw(st.sampled_from([2.0, 5.0, 20.0])),
        throughput=(0.0, 4.0, *(4.0 + sum(rises[: place + 1]) for place in range(most - 1))),
        min_gpus=draw(st.integers(1, most)),
        hard_deadline_factor=draw(st.sampled_from([1.0, 1.5])),
        value_shape=draw(st.sampled_from([ValueShape.LINEAR, ValueShape.STEP])),
        reconfiguration=Reconfiguration(draw(quarters), draw(quarters), draw(quarters), key),
    )


def chances(draw: st.DrawFn, states: int) -> np.ndarray:
    weights = st.lists(st.integers(0, 3), min_size=states, max_size=states)
    rows = np.array([draw(weights.filter(any)) for _ in range(states)], dtype=np.float64)
    return rows / rows.sum(axis=1, keepdims=True)


@st.composite
def small_chains(draw: st.DrawFn, most: int) -> MarketChain:
    numbers, prices = draw(st.integers(1, 3)), draw(st.integers(1, 2))
    counts = [draw(st.integers(0, most + 1)) for _ in range(numbers)]
    spot_prices = [draw(st.sampled_from([0.0, 0.3, 0.7, 1.2])) for _ in range(prices)]
    return MarketChain(
        by_number=chances(draw, numbers),
        by_price=chances(draw, prices),
        available=np.repeat(np.array(counts), prices),
        spot_price=np.tile(np.array(spot_prices, dtype=np.float64), numbers),
    )


class Expectimax:
    """Written from the specification alone: a recursion over slot, state, held and work left."""

    def __init__(self, job: Job, chain: MarketChain) -> None:
        self.job, self.chain = job, chain
        self.value = functools.cache(self._value)

    def fraction(self, held, now, available) -> float:
        rule = self.job.reconfiguration
        if rule.key is TOTAL:
            before, after = sum(held), sum(now)
            if after == before:
                return 1.0
            return rule.grow if after > before else rule.shrink
        kept = (min(held[0], available), held[1])
        changes = [1.0]
        if kept[0] < held[0]:
            changes.append(rule.preempted)
        if now[0] > kept[0] or now[1] > kept[1]:
            changes.append(rule.grow)
        if now[0] < kept[0] or now[1] < kept[1]:
            changes.append(rule.shrink)
        return min(changes)

    def worth(self, slot: int) -> float:
        job = self.job
        late = slot - job.deadline
        if late <= 0 or job.value_shape is ValueShape.STEP:
            return job.value
        return job.value * (1 - late / ((job.hard_deadline_factor - 1) * job.deadline))

    def holdings(self, available):
        yield 0, 0
        for total in range(self.job.min_gpus, self.job.max_gpus + 1):
            for spot in range(min(total, available) + 1):
                yield spot, total - spot

    def _value(self, slot: int, state: int, held: tuple[int, int], left: int) -> float:
        if slot > self.job.hard_deadline:
            return 0.0
        available = int(self.chain.available[state])
        best = -np.inf
        for now in self.holdings(available):
            cost = now[0] * self.chain.spot_price[state] + now[1]
            mu = self.fraction(held, now, available)
            after = left - round(mu * self.job.throughput[sum(now)])
            if after <= 0:
                value = self.worth(slot)
            else:
                value = sum(
                    chance * self.value(slot + 1, following, now, after)
                    for following, chance in enumerate(self.chain.transition[state])
                    if chance > 0
                )
            best = max(best, value - cost)
        return best


def reachable(job: Job, slot: int) -> range:
    """Work that can be left at the start of ``slot``, in steps."""
    return range(max(1, int(job.work - (slot - 1) * job.throughput[-1])), int(job.work) + 1)


def assert_same(tables, plain, held_of) -> None:
    job, states = plain.job, range(plain.chain.available.size)
    for slot in range(1, job.hard_deadline + 1):
        for state in states:
            for place, held in held_of.items():
                for left in reachable(job, slot):
                    expected = plain.value(slot, state, held, left)
                    assert tables[slot, state, place, left] == pytest.approx(
                        expected, rel=1e-5, abs=1e-5
                    ), (slot, state, held, left)


@given(st.data(), small_jobs(TOTAL))
@settings(max_examples=25)
def test_tables_over_the_number_of_gpus_are_those_of_a_plain_expectimax(data, job):
    chain = data.draw(small_chains(job.max_gpus))
    tables = fill_tables(job_physics(job), chain, 1.0, UNIT, 1)
    held = {gpus: (0, gpus) for gpus in (0, *range(job.min_gpus, job.max_gpus + 1))}
    assert_same(tables, Expectimax(job, chain), held)


@given(st.data(), small_jobs(COMPOSITION))
@settings(max_examples=25)
def test_tables_over_pairs_are_those_of_a_plain_expectimax(data, job):
    chain = data.draw(small_chains(job.max_gpus))
    pairs = mixes(job.min_gpus, job.max_gpus)
    tables = fill_mix_tables(job_physics(job), chain, pairs, 1.0, UNIT, 1)
    held = {place: (int(spot), int(wanted)) for place, (spot, wanted) in enumerate(pairs)}
    assert_same(tables, Expectimax(job, chain), held)


@given(st.data(), keys.flatmap(small_jobs))
@settings(max_examples=15)
def test_tables_that_begin_later_are_the_end_of_those_that_begin_at_once(data, job):
    chain = data.draw(small_chains(job.max_gpus))
    begin = data.draw(st.integers(1, job.hard_deadline))
    physics, pairs = job_physics(job), mixes(job.min_gpus, job.max_gpus)
    for whole, part in (
        [fill_tables(physics, chain, 1.0, UNIT, first) for first in (1, begin)],
        [fill_mix_tables(physics, chain, pairs, 1.0, UNIT, first) for first in (1, begin)],
    ):
        assert (whole[begin:] == part[begin:]).all()


# --- The policy


class Forgetful(msgspec.Struct, frozen=True):
    """Nobody kept a record of the market."""

    policy: Rubato

    @property
    def name(self) -> str:
        return "forgetful"

    def decide(self, view):
        return self.policy.decide(msgspec.structs.replace(view, seen=None))


QUICK = Rubato(steps=96)
policies = st.sampled_from([QUICK, Forgetful(QUICK)])
ordinary = job_on_market(max_slots=9, max_gpus=4, moving_on_demand=True)
poor = job_on_market(max_slots=9, max_gpus=4, budget=True)


def precious(job: Job) -> Job:
    """A late slot costs more than a rush for all of the time."""
    return msgspec.structs.replace(
        job, value=100.0 * job.max_gpus * job.deadline**2, value_shape=ValueShape.LINEAR
    )


def feasible(job: Job) -> bool:
    return bool(job_physics(job).reach[job.deadline, 0] >= job.work)


@given(
    keys.flatmap(
        lambda key: job_on_market(
            max_slots=9, max_gpus=4, key=key, moving_on_demand=True, tightness=(0.3, 1)
        )
    ),
    policies,
)
def test_it_is_never_late_where_on_demand_is_in_time_and_worth_it(case, policy):
    job, trace = precious(case[0]), case[1]
    assume(feasible(job))
    assert simulate(job, trace, policy).on_time


@given(st.one_of(ordinary, poor), policies)
@settings(max_examples=30)
def test_it_never_beats_the_optimum_and_keeps_to_market_job_and_budget(case, policy):
    job, trace = case
    best = offline_optimum(job, trace.window(0, job.hard_deadline))
    outcome = simulate(job, trace, policy)
    assert outcome.utility <= best.upper_bound + 1e-6
    assert job.budget is None or outcome.cost <= job.budget + 1e-6
    for entry in outcome.entries:
        held = entry.allocation
        assert 0 <= held.spot <= entry.available
        assert held.total == 0 or job.min_gpus <= held.total <= job.max_gpus


@given(ordinary, policies, st.data())
@settings(max_examples=25)
def test_the_future_changes_no_decision_of_the_past(case, policy, data):
    job, trace = case
    known = data.draw(st.integers(1, job.hard_deadline))
    other = data.draw(markets(job.hard_deadline, most=job.max_gpus + 1, moving_on_demand=True))
    mixed = MarketTrace.single(
        *(
            np.concatenate([getattr(trace, field)[0, :known], getattr(other, field)[0, known:]])
            for field in ("spot_price", "available", "on_demand_price")
        )
    )
    here, there = simulate(job, trace, policy), simulate(job, mixed, policy)
    assert here.entries[:known] == there.entries[:known]


@given(job_on_market(max_slots=9, max_gpus=4, prices=(1.0, 2.0)))
@settings(max_examples=25)
def test_it_holds_no_spot_where_spot_is_never_cheaper_than_on_demand(case):
    job, trace = case
    outcome = simulate(job, trace, QUICK)
    assert all(entry.allocation.spot == 0 for entry in outcome.entries)


@given(job_on_market(max_slots=9, max_gpus=4, prices=(0.05, 1.3)))
@settings(max_examples=25)
def test_it_spends_nothing_on_a_job_that_is_worth_nothing(case):
    job, trace = case
    worthless = msgspec.structs.replace(job, value=0.0)
    assert simulate(worthless, trace, QUICK).cost == 0


@given(st.one_of(ordinary, poor), policies)
@settings(max_examples=15)
def test_a_replay_gives_the_same_bytes(case, policy):
    job, trace = case
    once, again = (msgspec.json.encode(simulate(job, trace, policy)) for _ in range(2))
    assert once == again
