"""Jobs and markets for Hypothesis. Numbers are short decimals, so that grids are exact and sums
differ either by rounding noise or by much more.
"""

from __future__ import annotations

import itertools

import msgspec
import numpy as np
from hypothesis import assume
from hypothesis import strategies as st

from duetune.core.job import Job, Reconfiguration, ReconfigurationKey, ValueShape
from duetune.core.market import MarketTrace
from duetune.policies.solve.dynamic import offline_optimum

TOTAL, COMPOSITION = ReconfigurationKey.TOTAL, ReconfigurationKey.COMPOSITION
keys = st.sampled_from([TOTAL, COMPOSITION])
fractions = st.sampled_from([1.0, 0.95, 0.9, 0.8, 0.5])
shapes = st.sampled_from(list(ValueShape))


def decimals(low: float, high: float, step: float) -> st.SearchStrategy[float]:
    """Multiples of ``step`` (a short decimal) as clean floats."""
    per_one = round(1 / step)
    return st.integers(round(low * per_one), round(high * per_one)).map(
        lambda count: count / per_one
    )


def mostly_large(most: int) -> st.SearchStrategy[int]:
    """1 to ``most``; small ones are seldom interesting."""
    return st.sampled_from([most, most, max(1, most - 1), *range(most, 0, -1)])


@st.composite
def reconfigurations(draw: st.DrawFn, key: ReconfigurationKey | None = None) -> Reconfiguration:
    """Any fractions, also such that shrinking costs more than growing or a preemption."""
    return Reconfiguration(
        grow=draw(fractions),
        shrink=draw(fractions),
        preempted=draw(fractions),
        key=draw(keys) if key is None else key,
    )


@st.composite
def curves(draw: st.DrawFn, max_gpus: int) -> tuple[float, ...]:
    """Throughput that never falls: linear, with an intercept, concave, flat or anything else."""
    steps = draw(st.lists(decimals(0, 2, 0.5), min_size=max_gpus, max_size=max_gpus))
    first = draw(decimals(0.5, 2, 0.5))
    return (0.0, *(first + rise for rise in itertools.accumulate([0.0, *steps[1:]])))


@st.composite
def jobs(
    draw: st.DrawFn,
    *,
    max_slots: int = 12,
    max_gpus: int = 5,
    key: ReconfigurationKey | None = None,
    budget: bool = False,
    tightness: tuple[float, float] = (0.05, 1.1),
    value_per_gpu_slot: tuple[float, float] = (0.2, 3.0),
) -> Job:
    """From trivial to impossible, from nearly worthless to precious; ``max_slots`` bounds D."""
    factor = draw(st.sampled_from([1.0, 1.25, 1.5, 2.0]))
    deadline = draw(mostly_large(max(1, int(max_slots / factor))))
    most = draw(mostly_large(max_gpus))
    throughput = draw(curves(most))
    share = draw(decimals(*tightness, 0.05))
    work = max(0.05, round(share * deadline * throughput[-1] / 0.05) * 0.05)
    gpu_slots = deadline * most
    return Job(
        work=round(work, 2),
        deadline=deadline,
        value=round(draw(decimals(*value_per_gpu_slot, 0.1)) * gpu_slots, 2),
        throughput=throughput,
        min_gpus=draw(st.integers(1, most)),
        hard_deadline_factor=factor,
        value_shape=draw(shapes),
        decay=draw(decimals(0, 1, 0.1)),
        reconfiguration=draw(reconfigurations(key)),
        budget=round(draw(decimals(0, 1, 0.05)) * gpu_slots, 2) if budget else None,
    )


@st.composite
def markets(
    draw: st.DrawFn,
    slots: int,
    *,
    most: int = 6,
    moving_on_demand: bool = False,
    prices: tuple[float, float] = (0.0, 1.3),
) -> MarketTrace:
    """Any price and count in any slot."""

    def series(values: st.SearchStrategy[float]) -> list[float]:
        return draw(st.lists(values, min_size=slots, max_size=slots))

    on_demand = series(decimals(0.8, 1.5, 0.1)) if moving_on_demand else [1.0] * slots
    return MarketTrace.single(
        np.array(series(decimals(*prices, 0.05))),
        np.array(series(st.integers(0, most)), dtype=np.int64),
        np.array(on_demand),
    )


@st.composite
def job_on_market(
    draw: st.DrawFn,
    *,
    moving_on_demand: bool = False,
    after: int = 0,
    prices: tuple[float, float] = (0.0, 1.3),
    **options: object,
) -> tuple[Job, MarketTrace]:
    """A job and a market just long enough for it, plus ``after`` slots."""
    job = draw(jobs(**options))
    slots = job.hard_deadline + after
    most = job.max_gpus + 1
    return job, draw(markets(slots, most=most, moving_on_demand=moving_on_demand, prices=prices))


@st.composite
def tight_budget(draw: st.DrawFn, **options: object) -> tuple[Job, MarketTrace]:
    """A job that is worth its cost, with less money than its best plan would spend."""
    job, trace = draw(job_on_market(value_per_gpu_slot=(1.0, 3.0), tightness=(0.2, 1.0), **options))
    spent = offline_optimum(job, trace.window(0, job.hard_deadline)).cost
    assume(spent > 0)
    budget = min(round(spent * draw(st.floats(0.3, 0.999)), 2), spent - 1e-3)
    return msgspec.structs.replace(job, budget=max(0.0, budget)), trace
