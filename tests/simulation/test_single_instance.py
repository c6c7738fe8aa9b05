"""T9: the physics of the single-instance benchmark (section 10) as a special case of ours.

One instance; work per tick is its length less the pending overhead; starting, or changing over to
the other kind, sets the pending overhead (it replaces what was pending, it does not add); a
preempted spot instance ends at the tick's boundary; every tick held is billed whole.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from duetune.core.job import Job, Reconfiguration, ReconfigurationKey
from duetune.forecast.source import ForecastSource
from duetune.simulate.episode import simulate
from duetune.testing import FixedPlan, market_of

TICK, SPOT_PRICE, ON_DEMAND_PRICE = 600.0, 0.9731 / 6, 3.06 / 6
NONE, SPOT, ON_DEMAND = (0, 0), (1, 0), (0, 1)
LAST = ForecastSource.parse("last")


def benchmark(wishes, available, overhead_s):
    """The benchmark's own bookkeeping: seconds of work and dollars, tick by tick."""
    kind, pending, work, dollars = NONE, 0.0, [], 0.0
    for wish, there in zip(wishes, available, strict=True):
        if kind == SPOT and not there:
            kind = NONE  # preempted at the boundary
        now = NONE if wish == SPOT and not there else wish
        if now not in {kind, NONE}:
            pending = overhead_s
        kind = now
        done = 0.0
        if kind != NONE:
            done = max(0.0, TICK - pending)
            pending = max(0.0, pending - TICK)
            dollars += SPOT_PRICE if kind == SPOT else ON_DEMAND_PRICE
        work.append(done)
    return work, dollars


def ours(wishes, available, overhead_s):
    left = 1 - overhead_s / TICK
    job = Job(
        work=1e6,
        deadline=len(wishes),
        value=1.0,
        throughput=(0.0, TICK),
        hard_deadline_factor=1.0,
        reconfiguration=Reconfiguration(left, left, left, ReconfigurationKey.COMPOSITION),
    )
    trace = market_of([SPOT_PRICE] * len(wishes), available, ON_DEMAND_PRICE)
    outcome = simulate(job, trace, FixedPlan(tuple(wishes)), LAST)
    return [entry.work for entry in outcome.entries], outcome.cost


@pytest.mark.parametrize(
    ("wishes", "available", "lost_in"),
    [
        ([SPOT] * 4, [1, 1, 1, 1], {0}),
        ([ON_DEMAND] * 4, [1, 0, 1, 0], {0}),
        ([SPOT, SPOT, ON_DEMAND, ON_DEMAND], [1, 1, 0, 0], {0, 2}),
        ([ON_DEMAND, ON_DEMAND, SPOT, SPOT], [0, 0, 1, 1], {0, 2}),
        ([SPOT, NONE, SPOT, SPOT], [1, 1, 1, 1], {0, 2}),
        ([SPOT, SPOT, SPOT, SPOT], [1, 0, 1, 1], {0, 2}),
        ([SPOT, ON_DEMAND, SPOT, ON_DEMAND], [1, 1, 1, 1], {0, 1, 2, 3}),
    ],
    ids=["stays", "ignores spot", "preempted", "goes over", "pauses", "lost and back", "restless"],
)
@pytest.mark.parametrize("overhead_s", [72.0, 180.0, 360.0])
def test_hand_made_traces(wishes, available, lost_in, overhead_s):
    work, _ = ours(wishes, available, overhead_s)
    held = [
        not (wish == NONE or (wish == SPOT and not there))
        for wish, there in zip(wishes, available, strict=True)
    ]
    expected = [
        (TICK - (overhead_s if tick in lost_in else 0.0)) if held[tick] else 0.0
        for tick in range(4)
    ]
    assert work == pytest.approx(expected)
    assert work == pytest.approx(benchmark(wishes, available, overhead_s)[0])


@given(
    st.lists(
        st.tuples(st.sampled_from([NONE, SPOT, ON_DEMAND]), st.integers(0, 1)),
        min_size=1,
        max_size=20,
    ),
    st.sampled_from([0.0, 72.0, 180.0, 360.0, 599.0]),
)
@settings(max_examples=100)
def test_any_trace_and_plan(ticks, overhead_s):
    wishes, available = [tick[0] for tick in ticks], [tick[1] for tick in ticks]
    work, dollars = benchmark(wishes, available, overhead_s)
    our_work, our_dollars = ours(wishes, available, overhead_s)
    assert our_work == pytest.approx(work)
    assert our_dollars == pytest.approx(dollars)


def test_the_price_of_48_hours_on_demand_is_that_of_the_benchmark():
    _, dollars = ours([ON_DEMAND] * 288, [0] * 288, 0.0)
    assert dollars == pytest.approx(146.88)
    assert np.isclose(ours([SPOT] * 288, [1] * 288, 0.0)[1], 46.71, atol=0.01)
