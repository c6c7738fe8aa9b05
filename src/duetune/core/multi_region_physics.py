"""What one instance does in one tick when it may run in several pools.

A variant of ``core.single_instance_physics``: with one pool both are the same. A pool is a zone, a
region or a GPU type. A job holds one instance, spot or on-demand, in one pool, or none. On top of
the rules for one pool:

- Every pool has its own restart overhead, and its own pace: work per second there, relative to a
  reference instance.
- A start in another pool than that of the checkpoint also waits for the transfer, and pays it. The
  checkpoint lies where the last instance was started. The transfer goes on if that one is lost.
- A request for spot is granted if and only if the pool has some. On-demand is always granted.
- Every tick in which an instance is held is billed in full. The tick in which the work ends is
  billed in full too, or with ``prorate_last_tick`` only up to the end of the work.
"""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import numpy as np

from duetune.core.compiled import compiled
from duetune.core.single_instance_physics import ON_DEMAND, WAIT, tick_step
from duetune.errors import InvalidInput

if TYPE_CHECKING:
    from numpy.typing import NDArray

NOWHERE = -1
"""The place of a checkpoint that does not exist yet: the first start needs no transfer."""
SAME_TIME = 1e-6
"""Two times, as shares of a tick or seconds, that differ by no more are the same."""


class InstancePool(msgspec.Struct, frozen=True):
    """A pool in which one instance may run.

    ``restart_overhead_s`` is the time from a start to the first work. ``pace`` is the work per
    second there, as a multiple of the instance in which the job's work is counted.
    """

    name: str
    restart_overhead_s: float = 180.0
    pace: float = 1.0


class MoveCost(msgspec.Struct, frozen=True):
    """What the transfer of a checkpoint from one pool to another takes and costs."""

    seconds: float = 0.0
    dollars: float = 0.0

    @classmethod
    def of_size(cls, gigabytes: float, gigabits_per_s: float, usd_per_gigabyte: float) -> MoveCost:
        """Return the cost of a transfer of so many gigabytes."""
        return cls(8 * gigabytes / gigabits_per_s, gigabytes * usd_per_gigabyte)


class PoolTerms(NamedTuple):
    """The pools of a job as arrays for compiled code.

    ``restart`` and ``pace`` have one number per pool. ``move_time`` and ``move_price`` have a row
    per place of the checkpoint and a column per pool; their last row, index ``NOWHERE``, is zero.
    """

    restart: NDArray[np.float64]
    pace: NDArray[np.float64]
    move_time: NDArray[np.float64]
    move_price: NDArray[np.float64]


class PoolTick(NamedTuple):
    """The result of one tick; ``work`` is in seconds of the reference, ``egress`` in dollars.

    The other fields are as in ``TickStep``.
    """

    work: float
    lost: float
    pending: float
    started: bool
    egress: float


@compiled
def pool_tick(
    terms: PoolTerms, tick: float, held: int, place: int, pending: float, choice: int, pool: int
) -> PoolTick:
    """Return the result of a tick in which ``choice`` runs in ``pool``.

    ``held`` is the kind that ran before and is still there, ``place`` its pool, or that of the
    checkpoint if nothing is held, and ``pending`` its remaining overhead.
    """
    if choice == WAIT:
        return PoolTick(0.0, tick, pending, False, 0.0)
    here = held if place == pool else WAIT
    overhead = terms.restart[pool] + terms.move_time[place, pool]
    did = tick_step(tick, overhead, here, pending, choice)
    egress = terms.move_price[place, pool] if did.started else 0.0
    return PoolTick(did.work * terms.pace[pool], did.lost, did.pending, did.started, egress)


@compiled
def billed_share(
    tick: float, lost: float, work_left: float, work: float, pace: float, prorate: bool
) -> float:
    """Return the share of a tick that is billed if ``work_left`` was left at its start.

    ``lost`` and ``work`` are the time lost and the work that the tick can do.
    """
    if prorate and work_left < work:
        return (lost + work_left / pace) / tick
    return 1.0


@compiled
def on_demand_time(
    terms: PoolTerms, held: int, place: int, pending: float, work_left: float, pool: int
) -> float:
    """Return the time in which on-demand in ``pool`` does the work left, from what is held where.

    Held spot may be gone in the next tick, so it counts as nothing held.
    """
    overhead = terms.restart[pool] + terms.move_time[place, pool]
    if held == ON_DEMAND and place == pool:
        overhead = pending
    return float(overhead + work_left / terms.pace[pool])


@compiled
def least_on_demand_time(
    terms: PoolTerms, held: int, place: int, pending: float, work_left: float
) -> float:
    """Return the least time in which on-demand alone does the work left; the safety of a plan."""
    least = np.inf
    for pool in range(terms.pace.size):
        least = min(least, on_demand_time(terms, held, place, pending, work_left, pool))
    return least


class MultiRegionJob(msgspec.Struct, frozen=True):
    """A job for one instance that may run in several pools.

    ``work_s`` is the work in seconds of an instance of pace 1. ``moves[i][j]`` is the cost of a
    transfer from pool i to pool j; without it transfers take no time and no money. The last tick is
    billed in full unless ``prorate_last_tick`` is set.
    """

    work_s: float
    deadline_s: float
    pools: tuple[InstancePool, ...]
    moves: tuple[tuple[MoveCost, ...], ...] = ()
    tick_s: float = 600.0
    prorate_last_tick: bool = False

    def __post_init__(self) -> None:
        for field in ("work_s", "deadline_s", "tick_s"):
            _need(field, getattr(self, field), above_zero=True)
            # Compiled functions would be compiled once more for whole numbers.
            msgspec.structs.force_setattr(self, field, float(getattr(self, field)))
        if self.ticks < 1:
            allowed = f"at least one tick of {self.tick_s:g} s"
            raise InvalidInput("deadline_s", self.deadline_s, allowed)
        names = [pool.name for pool in self.pools]
        if not names or len(set(names)) != len(names):
            raise InvalidInput("pools", names, "one or more pools with different names")
        for pool in self.pools:
            _need(f"restart_overhead_s of pool {pool.name}", pool.restart_overhead_s)
            _need(f"pace of pool {pool.name}", pool.pace, above_zero=True)
        if self.moves and any(len(row) != len(names) for row in (self.moves, *self.moves)):
            shape = [len(row) for row in self.moves]
            raise InvalidInput("moves", shape, f"{len(names)} rows of {len(names)} costs")
        for i, row in enumerate(self.moves):
            for j, cost in enumerate(row):
                _need(f"moves[{i}][{j}].seconds", cost.seconds)
                _need(f"moves[{i}][{j}].dollars", cost.dollars)
                if i == j and cost != MoveCost():
                    raise InvalidInput(f"moves[{i}][{j}]", cost, "zero: the pool is the same")

    @property
    def ticks(self) -> int:
        """Return the number of whole ticks before the deadline."""
        return math.floor(self.deadline_s / self.tick_s + SAME_TIME)

    def index(self, pool: str) -> int:
        """Return the number of a pool; called where pools are named."""
        for place, each in enumerate(self.pools):
            if each.name == pool:
                return place
        names = ", ".join(each.name for each in self.pools)
        raise InvalidInput("pool", pool, f"one of {names}")

    @property
    def terms(self) -> PoolTerms:
        """Return the pools as arrays; jobs with equal pools share them."""
        return _terms(self.pools, self.moves)


@functools.lru_cache(maxsize=64)
def _terms(pools: tuple[InstancePool, ...], moves: tuple[tuple[MoveCost, ...], ...]) -> PoolTerms:
    count = len(pools)
    move_time, move_price = np.zeros((count + 1, count)), np.zeros((count + 1, count))
    for place, row in enumerate(moves):
        move_time[place] = [cost.seconds for cost in row]
        move_price[place] = [cost.dollars for cost in row]
    return PoolTerms(
        restart=np.array([pool.restart_overhead_s for pool in pools], dtype=np.float64),
        pace=np.array([pool.pace for pool in pools], dtype=np.float64),
        move_time=move_time,
        move_price=move_price,
    )


def _need(field: str, number: float, *, above_zero: bool = False) -> None:
    """Refuse a number that is not finite, or below what is allowed."""
    if not math.isfinite(number) or number < 0 or (above_zero and number == 0):
        raise InvalidInput(field, number, "a positive number" if above_zero else "zero or more")
