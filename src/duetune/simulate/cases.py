"""Cases for a tournament: each is a job that begins in a slot of a market."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import msgspec

from duetune.core.job import MAX_GPUS, MAX_SLOTS, Job, Reconfiguration, linear_throughput
from duetune.errors import InvalidInput

if TYPE_CHECKING:
    import numpy as np

    from duetune.core.market import MarketTrace


MAX_CASES = 1_000_000


class Case(msgspec.Struct, frozen=True):
    """A job that begins in slot ``start`` of the market with index ``market``."""

    job: Job
    market: int
    start: int


class JobMix(msgspec.Struct, frozen=True):
    """A distribution of jobs. Each range is closed; values are drawn from it uniformly.

    - ``deadline`` is in slots.
    - ``tightness`` is the work as a share of what ``max_gpus`` GPUs could do by the deadline.
    - ``value_factor`` is the job's value as a multiple of what its work costs on ``max_gpus``
      on-demand GPUs.
    - ``intercept`` is that of the linear throughput curve.
    """

    deadline: tuple[int, int] = (12, 32)
    tightness: tuple[float, float] = (0.3, 0.7)
    max_gpus: tuple[int, int] = (8, 16)
    min_gpus: tuple[int, int] = (1, 2)
    value_factor: tuple[float, float] = (1.2, 2.0)
    hard_deadline_factor: float = 1.5
    intercept: tuple[float, float] = (0.0, 0.0)
    reconfiguration: Reconfiguration = Reconfiguration()

    def __post_init__(self) -> None:
        for field in ("deadline", "tightness", "max_gpus", "min_gpus", "value_factor", "intercept"):
            low, high = getattr(self, field)
            if not (math.isfinite(low) and math.isfinite(high) and 0 <= low <= high):
                allowed = "two numbers, both at least 0, the lower one first"
                raise InvalidInput(f"job mix {field}", (low, high), allowed)
        for field in ("deadline", "tightness", "max_gpus", "min_gpus"):
            if getattr(self, field)[0] <= 0:
                raise InvalidInput(f"job mix {field}", getattr(self, field), "above zero")
        if self.max_gpus[1] > MAX_GPUS:
            raise InvalidInput("job mix max_gpus", self.max_gpus, f"at most {MAX_GPUS}")
        if not 1 <= self.hard_deadline_factor * self.deadline[1] < MAX_SLOTS + 1:
            allowed = f"a hard deadline of at most {MAX_SLOTS} slots"
            raise InvalidInput("job mix deadline", self.deadline, allowed)

    def longest(self) -> int:
        """Return the largest number of slots that a job of this mix can take."""
        return math.floor(self.hard_deadline_factor * self.deadline[1] + 1e-9)

    def draw(self, random: np.random.Generator, on_demand_price: float, name: str) -> Job:
        """Return a random job; ``on_demand_price`` is in dollars per GPU and slot."""
        deadline = int(random.integers(self.deadline[0], self.deadline[1] + 1))
        max_gpus = int(random.integers(self.max_gpus[0], self.max_gpus[1] + 1))
        min_gpus = int(random.integers(self.min_gpus[0], self.min_gpus[1] + 1))
        intercept = float(random.uniform(*self.intercept))
        throughput = linear_throughput(max_gpus, intercept=intercept)
        work = round(float(random.uniform(*self.tightness)) * deadline * throughput[-1], 1)
        cost_on_demand = work / throughput[-1] * max_gpus * on_demand_price
        return Job(
            work=work,
            deadline=deadline,
            value=round(float(random.uniform(*self.value_factor)) * cost_on_demand, 2),
            throughput=throughput,
            min_gpus=min(min_gpus, max_gpus),
            hard_deadline_factor=self.hard_deadline_factor,
            reconfiguration=self.reconfiguration,
            name=name,
        )


def draw_cases(
    mix: JobMix,
    markets: tuple[MarketTrace, ...],
    count: int,
    random: np.random.Generator,
    *,
    part: tuple[float, float] = (0.0, 1.0),
) -> tuple[Case, ...]:
    """Return ``count`` random jobs, each on a random market and at a random slot.

    ``part`` keeps every job within that part of its market: (0.0, 0.5) is the first half.
    """
    if not 1 <= count <= MAX_CASES:
        raise InvalidInput("jobs", count, f"1 to {MAX_CASES:,}")
    if not markets:
        raise InvalidInput("markets", "none", "at least one market")
    if not 0 <= part[0] < part[1] <= 1:
        raise InvalidInput("part", part, "two shares of a market, 0 <= first < last <= 1")
    spans = [(round(part[0] * trace.slots), round(part[1] * trace.slots)) for trace in markets]
    for market, (first, last) in zip(markets, spans, strict=True):
        if last - first < mix.longest():
            raise InvalidInput(
                "trace", market.name, f"at least {mix.longest()} slots; it has {last - first}"
            )
    cases = []
    for number in range(count):
        which = int(random.integers(len(markets)))
        market = markets[which]
        first, last = spans[which]
        start = int(random.integers(first, last - mix.longest() + 1))
        price = float(market.on_demand_price[0, start])
        cases.append(Case(mix.draw(random, price, f"job-{number}"), which, start))
    return tuple(cases)
