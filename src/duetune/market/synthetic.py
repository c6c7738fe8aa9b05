"""Seeded synthetic markets, calibrated to measured ones (docs/reference/markets.md).

A kind of market is a function that states its conditions slot by slot: how fast spot capacity comes
and goes, how much there is, and what shifts the price. One pair of compiled loops turns conditions
into counts and prices, so kinds differ in their conditions only.
"""

from __future__ import annotations

from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, Protocol, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from duetune.core.compiled import compiled
from duetune.core.market import MarketTrace, Pool
from duetune.errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Mapping


MEDIAN_RATIO = 0.33
RATIO_SPREAD = 0.36
LOWEST_RATIO = 0.08


LARGEST = 10_000_000

Member = TypeVar("Member", bound=StrEnum)


class MarketKind(StrEnum):
    """The kinds of synthetic market; the functions of the same names describe them."""

    DIURNAL = "diurnal"
    REGIME_SWITCHING = "regime_switching"
    OUTAGE = "outage"
    PRICE_SPIKE = "price_spike"
    CAPACITY_STORM = "capacity_storm"


class PriceMotion(StrEnum):
    """How fast prices move: ``slow`` over months (AWS); ``volatile`` within a day (bids)."""

    SLOW = "slow"
    VOLATILE = "volatile"


class Conditions(msgspec.Struct, frozen=True, eq=False):
    """The conditions of every slot.

    - ``up_hours``, ``down_hours``: mean length of spells with and without spot, if conditions
      stayed.
    - ``level``: capacity while up, as a share of the maximum.
    - ``price_shift``: what is added to the logarithm of the price.
    """

    up_hours: NDArray[np.float64]
    down_hours: NDArray[np.float64]
    level: NDArray[np.float64]
    price_shift: NDArray[np.float64]
    may_exceed_on_demand: bool = False


class MarketRecipe(Protocol):
    """A function that returns the conditions of a kind of market.

    ``duetune markets`` prints the first line of its docstring.
    """

    def __call__(self, random: np.random.Generator, slots: int, slot_hours: float) -> Conditions:
        """Return conditions for so many slots of so many hours, drawn from the generator."""


def synthetic_market(
    kind: MarketKind | str,
    *,
    seed: int | None = None,
    random: np.random.Generator | None = None,
    slots: int = 480,
    slot_hours: float = 0.5,
    max_available: int = 16,
    on_demand_usd_gpu_h: float = 3.0,
    price_level: float = 1.0,
    availability_level: float = 1.0,
    price_motion: PriceMotion | str = PriceMotion.VOLATILE,
    name: str | None = None,
) -> MarketTrace:
    """Return a market of one kind; the same seed gives the same bytes.

    ``price_level`` multiplies the spot price and ``availability_level`` the counts (never above
    ``max_available``). Both apply after everything is drawn, so that markets of one seed differ in
    nothing else.
    """
    kind = _member(MarketKind, "kind", kind)
    motion = _member(PriceMotion, "price_motion", price_motion)
    if (seed is None) == (random is None):
        raise InvalidInput("seed", seed, "either seed or random, and not both")
    for field, value in (("slots", slots), ("max_available", max_available)):
        if not 1 <= value <= LARGEST:
            raise InvalidInput(field, value, f"1 to {LARGEST:,}")
    positive = {
        "slot_hours": slot_hours,
        "on_demand_usd_gpu_h": on_demand_usd_gpu_h,
        "price_level": price_level,
    }
    for field, number in positive.items():
        if not (np.isfinite(number) and number > 0):
            raise InvalidInput(field, number, "a positive number")
    if not (np.isfinite(availability_level) and availability_level >= 0):
        raise InvalidInput("availability_level", availability_level, "zero or more")

    generator = np.random.default_rng(seed) if random is None else random
    conditions = SYNTHETIC_MARKETS[kind](generator, slots, slot_hours)
    counts = _counts(generator, conditions, slot_hours, max_available)
    ratio = _ratios(generator, conditions, slot_hours, motion)
    scaled = np.floor(counts * availability_level + 0.5).astype(np.int64)
    title = name or f"synthetic-{kind}" + ("" if seed is None else f"-{seed}")
    return MarketTrace.single(
        # Grouped so that the price per hour is one float, and files keep every bit.
        (ratio * (on_demand_usd_gpu_h * price_level)) * slot_hours,
        np.minimum(scaled, max_available),
        on_demand_usd_gpu_h * slot_hours,
        slot_hours=slot_hours,
        pool=Pool("default"),
        name=title,
    )


def _member(kind: type[Member], field: str, value: str) -> Member:
    """Return the member of an enumeration that a user has named."""
    try:
        return kind(value)
    except ValueError:
        raise InvalidInput(field, value, f"one of {', '.join(kind)}") from None


def diurnal(random: np.random.Generator, slots: int, slot_hours: float) -> Conditions:
    """Capacity leaves in one half of the day and returns in the other."""
    wave = _wave(random, slots, slot_hours)
    return Conditions(
        up_hours=5.5 * np.exp(-0.7 * wave),
        down_hours=2.6 * np.exp(0.7 * wave),
        level=0.8 - 0.2 * wave,
        price_shift=np.zeros(slots),
    )


def regime_switching(random: np.random.Generator, slots: int, slot_hours: float) -> Conditions:
    """Days with much spot alternate with days with little spot at higher prices."""
    tight = _spells(random, slots, slot_hours, mean_gap_hours=60.0, mean_hours=36.0)
    return Conditions(
        up_hours=np.where(tight, 2.0, 9.0),
        down_hours=np.where(tight, 3.5, 1.5),
        level=np.where(tight, 0.45, 0.95),
        price_shift=np.where(tight, 0.2, -0.1),
    )


def outage(random: np.random.Generator, slots: int, slot_hours: float) -> Conditions:
    """An easy market with an outage of several hours every few days."""
    gone = _spells(random, slots, slot_hours, mean_gap_hours=80.0, mean_hours=9.0)
    return Conditions(
        up_hours=np.where(gone, 0.0, 9.0),
        down_hours=np.where(gone, np.inf, 1.2),
        level=np.full(slots, 0.95),
        price_shift=np.zeros(slots),
    )


def price_spike(random: np.random.Generator, slots: int, slot_hours: float) -> Conditions:
    """Spot jumps above the on-demand price about once a day, for some hours."""
    jumps = random.random(slots) < slot_hours / 24.0
    heights = np.where(jumps, random.normal(1.6, 0.3, slots), 0.0)
    return Conditions(
        up_hours=np.full(slots, 7.5),
        down_hours=np.full(slots, 2.2),
        level=np.full(slots, 0.85),
        price_shift=_decaying(np.exp(-slot_hours / 2.0), heights, 0.0),
        may_exceed_on_demand=True,
    )


def capacity_storm(random: np.random.Generator, slots: int, slot_hours: float) -> Conditions:
    """Bursts of preemptions: for hours capacity is small and unstable."""
    storm = _spells(random, slots, slot_hours, mean_gap_hours=14.0, mean_hours=12.0)
    return Conditions(
        up_hours=np.where(storm, 0.9, 6.0),
        down_hours=np.where(storm, 3.0, 1.2),
        level=np.where(storm, 0.3, 0.9),
        price_shift=np.zeros(slots),
    )


SYNTHETIC_MARKETS: Mapping[MarketKind, MarketRecipe] = MappingProxyType(
    {
        MarketKind.DIURNAL: diurnal,
        MarketKind.REGIME_SWITCHING: regime_switching,
        MarketKind.OUTAGE: outage,
        MarketKind.PRICE_SPIKE: price_spike,
        MarketKind.CAPACITY_STORM: capacity_storm,
    }
)


def _wave(random: np.random.Generator, slots: int, slot_hours: float) -> NDArray[np.float64]:
    """Return a daily wave whose peak of scarcity is at a random hour."""
    hours = np.arange(slots) * slot_hours
    wave: NDArray[np.float64] = np.cos(2 * np.pi * (hours - random.uniform(0, 24)) / 24)
    return wave


def _spells(
    random: np.random.Generator,
    slots: int,
    slot_hours: float,
    *,
    mean_gap_hours: float,
    mean_hours: float,
) -> NDArray[np.bool_]:
    """Return which slots lie in random spells, from a random point of the cycle on."""
    hours = slots * slot_hours
    cycle = mean_gap_hours + mean_hours
    # Eight standard deviations more cycles than expected, so that they always suffice.
    cycles = int(hours / cycle + 8 * np.sqrt(hours / cycle) + 16)
    lengths = random.exponential(1.0, (cycles, 2)) * np.array([mean_gap_hours, mean_hours])
    edges = np.cumsum(lengths.ravel()) - random.uniform(0, cycle)
    passed = np.searchsorted(edges, np.arange(slots) * slot_hours, side="right")
    within: NDArray[np.bool_] = passed % 2 == 1
    return within


def _counts(
    random: np.random.Generator, conditions: Conditions, slot_hours: float, capacity: int
) -> NDArray[np.int64]:
    """Return the available GPUs of every slot."""
    slots = conditions.level.size
    with np.errstate(divide="ignore"):
        leave_up = np.minimum(1.0, slot_hours / conditions.up_hours)
    leave_down = np.minimum(1.0, slot_hours / conditions.down_hours)
    return _count_path(
        leave_up,
        leave_down,
        conditions.level,
        float(np.exp(-slot_hours / 1.5)),
        0.35,
        max(1, int(np.ceil(capacity * slot_hours))),
        capacity,
        random.random(slots + 1),
        random.standard_normal(slots + 1),
    )


def _ratios(
    random: np.random.Generator, conditions: Conditions, slot_hours: float, motion: PriceMotion
) -> NDArray[np.float64]:
    """Return spot over on-demand price in every slot."""
    slots = conditions.price_shift.size
    memory_hours = 12.0 if motion is PriceMotion.VOLATILE else 12000.0
    keep = float(np.exp(-slot_hours / memory_hours))
    shocks = random.standard_normal(slots) * RATIO_SPREAD * np.sqrt(1 - keep * keep)
    wander = _decaying(keep, shocks, random.normal(0.0, RATIO_SPREAD))
    changes = random.random(slots)
    if motion is PriceMotion.SLOW:
        # About two of three published prices differ from those six hours before.
        moved = np.where(changes < 1 - 0.34 ** (slot_hours / 6.0), np.arange(slots), 0)
        wander = wander[np.maximum.accumulate(moved)]
    ratio = MEDIAN_RATIO * np.exp(wander + conditions.price_shift)
    highest = np.inf if conditions.may_exceed_on_demand else 1.0
    clipped: NDArray[np.float64] = np.clip(ratio, LOWEST_RATIO, highest)
    return clipped


@compiled
def _count_path(
    leave_up: NDArray[np.float64],
    leave_down: NDArray[np.float64],
    level: NDArray[np.float64],
    keep: float,
    spread: float,
    most_births: int,
    capacity: int,
    uniforms: NDArray[np.float64],
    normals: NDArray[np.float64],
) -> NDArray[np.int64]:
    """Return counts of a market that is up or down.

    While it is up, the count follows a wandering level: it falls as fast as the level, and rises by
    at most ``most_births`` GPUs per slot.
    """
    slots = level.size
    counts = np.empty(slots, dtype=np.int64)
    total = leave_up[0] + leave_down[0]
    up = total > 0 and uniforms[slots] < leave_down[0] / total
    shock = spread * np.sqrt(1 - keep * keep)
    wander = spread * normals[slots]
    count = capacity if up else 0
    for slot in range(slots):
        chance = uniforms[slot]
        up = chance >= leave_up[slot] if up else chance < leave_down[slot]
        wander = keep * wander + shock * normals[slot]
        if up:
            target = round((level[slot] + wander) * capacity)
            target = max(1, min(capacity, target))
            count = min(target, count + most_births)
        else:
            count = 0
        counts[slot] = count
    return counts


@compiled
def _decaying(keep: float, shocks: NDArray[np.float64], first: float) -> NDArray[np.float64]:
    """Return a path in which each value keeps a share of the last one and adds a shock."""
    path = np.empty(shocks.size)
    value = first
    for slot in range(shocks.size):
        value = keep * value + shocks[slot]
        path[slot] = value
    return path
