"""The least cost of one instance over several pools on a known market, by backward induction.

A state is what is held and where, its pending overhead, and the work left in units. Every unit of
work that a tick can do is a whole number of units where that is possible. Elsewhere work is rounded
up for a bound that no plan can beat, and rounded down for a plan that exists.
"""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import numpy as np

from duetune.core.compiled import compiled
from duetune.core.multi_region_physics import NOWHERE, pool_tick
from duetune.core.single_instance_physics import ON_DEMAND, SPOT, WAIT

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from duetune.core.multi_region_physics import MultiRegionJob

_MOST_UNITS = 24_000
_MILLI = 1000


class MultiRegionOptimum(msgspec.Struct, frozen=True):
    """The least cost in dollars. It lies between ``cost``, a bound, and ``reached``, a plan's cost.

    Both are equal where the grid is exact, and infinite if no plan is on time.
    """

    cost: float
    reached: float

    @property
    def exact(self) -> bool:
        """Return whether the bound is the cost of a plan."""
        return self.cost == self.reached


class _Transitions(NamedTuple):
    """What every choice does in every state.

    Choices are on-demand in each pool after spot in each pool. ``wait[s]`` is the state after a
    tick of waiting, and the state in which a lost instance leaves the job. The first ``places``
    states hold nothing: only they start an instance. The others continue with ``choice[s]``.
    ``begin`` is the state of a job that has not started.
    """

    places: int
    begin: int
    wait: NDArray[np.int64]
    choice: NDArray[np.int64]
    after: NDArray[np.int64]
    work: NDArray[np.float64]
    lost: NDArray[np.float64]
    egress: NDArray[np.float64]


def multi_region_optimum(
    job: MultiRegionJob,
    available: NDArray[np.bool_],
    spot_price: NDArray[np.float64],
    on_demand_price: NDArray[np.float64],
) -> MultiRegionOptimum:
    """Return the least cost of any plan that knows the market; arrays are [pool, tick].

    Prices are dollars per tick. The cost is exact to a millisecond of overheads and ticks if the
    work of every tick is a whole number of a common unit that gives at most 24,000 units.
    """
    ticks = min(job.ticks, available.shape[1])
    steps = _transitions(job)
    work = np.rint(steps.work * _MILLI).astype(np.int64)
    unit = max(1, int(np.gcd.reduce(work[work > 0], initial=0)))
    total = round(job.work_s * _MILLI)
    exact = total / unit <= _MOST_UNITS and np.abs(work - steps.work * _MILLI).max() < 1e-6
    if not exact:
        unit = max(1, math.ceil(total / _MOST_UNITS))
    costs = []
    for rounding in (np.ceil, np.floor)[: 1 if exact else 2]:
        units = math.ceil(total / unit)
        done = work // unit if exact else rounding(steps.work * _MILLI / unit).astype(np.int64)
        costs.append(
            _least_cost(
                np.ascontiguousarray(available[:, :ticks]),
                np.vstack((spot_price[:, :ticks], on_demand_price[:, :ticks])),
                steps,
                done,
                units,
                (units * unit - total) / unit,
                steps.lost / job.tick_s,
                job.prorate_last_tick,
            )
        )
    return MultiRegionOptimum(cost=float(costs[0]), reached=float(costs[-1]))


@functools.lru_cache(maxsize=16)
def _transitions(job: MultiRegionJob) -> _Transitions:
    """Return what every choice does in every state that the job can be in."""
    terms, count = job.terms, len(job.pools)
    rows = np.hstack((terms.move_time, terms.move_price))
    # Places from which every transfer takes and costs the same are one place.
    first = [int(np.argmax((rows == row).all(axis=1))) for row in rows]
    places = sorted(set(first))
    states = [(WAIT, place, 0) for place in places]
    known = {state: number for number, state in enumerate(states)}
    found: list[list[tuple[int, float, float, float]]] = []
    for number, (held, place, pending) in enumerate(states):
        row = []
        for choice in range(2 * count):
            kind, pool = (SPOT, choice) if choice < count else (ON_DEMAND, choice - count)
            did = pool_tick(terms, job.tick_s, held, place, pending / _MILLI, kind, pool)
            then = (kind, pool, round(did.pending * _MILLI))
            if held == WAIT or (held, place) == (kind, pool):
                if then not in known:
                    known[then] = len(states)
                    states.append(then)
                row.append((known[then], did.work, did.lost, did.egress))
            else:
                row.append((number, 0.0, 0.0, 0.0))
        found.append(row)
    table = np.array(found)
    return _Transitions(
        places=len(places),
        begin=known[WAIT, first[NOWHERE], 0],
        wait=np.array([known[WAIT, first[place], 0] for _, place, _ in states]),
        choice=np.array([place + (count if held == ON_DEMAND else 0) for held, place, _ in states]),
        after=table[:, :, 0].astype(np.int64),
        work=table[:, :, 1],
        lost=table[:, :, 2],
        egress=table[:, :, 3],
    )


@compiled
def _least_cost(
    available: NDArray[np.bool_],
    price: NDArray[np.float64],
    steps: _Transitions,
    done: NDArray[np.int64],
    units: int,
    excess: float,
    lost: NDArray[np.float64],
    prorate: bool,
) -> float:
    """Return the least cost from the start, where nothing is held and there is no checkpoint.

    ``price`` is per choice and tick, ``done`` the units of work and ``lost`` the share of the tick
    lost, per state and choice. ``excess``: the part of a unit that was added to the work.
    """
    count = available.shape[0]
    states = steps.wait.size
    following = np.full((states, units + 1), np.inf)
    following[:, 0] = 0.0
    costs = np.empty((states, units + 1))
    for tick in range(available.shape[1] - 1, -1, -1):
        for state in range(states):
            row = costs[state]
            free = state < steps.places
            # A held instance can be left for anything that its bare place can start.
            row[:] = following[state] if free else costs[steps.wait[state]]
            for choice in range(2 * count):
                if choice < count and not available[choice, tick]:
                    continue
                if not free and choice != steps.choice[state]:
                    continue
                after = following[steps.after[state, choice]]
                work = done[state, choice]
                charge = price[choice, tick] + steps.egress[state, choice]
                saved = 0.0
                if prorate and work > 0:
                    saved = price[choice, tick] * (1.0 - lost[state, choice]) / work
                for left in range(1, units + 1):
                    value = charge + after[max(0, left - work)]
                    if left <= work:
                        value -= saved * (work - left + excess)
                    row[left] = min(row[left], value)
        following, costs = costs, following
    return float(following[steps.begin, units])
