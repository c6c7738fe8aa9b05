"""Bounds on a job's utility that are known before it runs, and utilities scaled by them to [0, 1].

Hedge needs them (U12); AdaHedge and FixedShare do not. Loose bounds are correct but slow: Hedge
divides differences by the range, so a range twice too wide halves the learning rate.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from duetune.errors import InvalidInput
from duetune.policies.select.hedge import UNIT_TOLERANCE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from duetune.core.job import Job


class UtilityRange(msgspec.Struct, frozen=True):
    """The bounds: no policy earns less than ``low`` or more than ``high`` dollars on the job."""

    low: float
    high: float

    def __post_init__(self) -> None:
        if not (math.isfinite(self.low) and math.isfinite(self.high) and self.low < self.high):
            raise InvalidInput("utility range", (self.low, self.high), "finite, low below high")

    @property
    def width(self) -> float:
        """Return the distance between the bounds, in dollars."""
        return self.high - self.low


def utility_range(
    *,
    value: float,
    work: float,
    max_gpus: int,
    last_slot: int,
    min_price: float,
    max_price: float,
    most_work_per_gpu: float,
    least_work_per_gpu: float | None = None,
    sure_value: float = 0.0,
    budget: float = math.inf,
) -> UtilityRange:
    """Return the range of utilities, from plain numbers; prices are per GPU and slot.

    ``high`` (u_max) is the value less the lowest cost: all work at ``min_price`` on the number of
    GPUs that does most per GPU (max H(n) / n). It is at least 0, which giving up at once earns.

    ``low`` (u_min) is ``sure_value``, which every policy of the pool is certain to receive, less
    the highest cost: ``max_gpus`` until ``last_slot`` at ``max_price``. That is the on-demand
    price, because no policy pays more for spot. ``least_work_per_gpu`` (min mu H(n) / n) tightens
    the cost: before its last slot a job has done less than its work, so it has held fewer than work
    / least_work_per_gpu GPU-slots; the last slot adds at most ``max_gpus``. This holds for any
    policy, as long as work is never lost.
    """
    gpu_slots = float(max_gpus * last_slot)
    if least_work_per_gpu is not None:
        gpu_slots = min(gpu_slots, work / least_work_per_gpu + max_gpus)
    # A job counts as done slightly below its work: see physics.RELATIVE_TOLERANCE.
    cheapest = (1 - 1e-9) * min(min_price, max_price) * (work - 1e-9) / most_work_per_gpu
    return UtilityRange(
        low=sure_value - min(max_price * gpu_slots, budget),
        high=max(0.0, value - max(0.0, cheapest)),
    )


def job_utility_range(
    job: Job,
    *,
    min_price: float,
    on_demand_price: float,
    tight: bool = True,
    always_on_time: bool = False,
) -> UtilityRange:
    """Return the range for a job; ``tight`` bounds the cost by the work, else it is U12.

    ``always_on_time`` is for pools in which every policy is guarded and on-demand GPUs can meet the
    deadline. Then all policies receive the full value and stop by the deadline. The value drops out
    of the width, which is that of the cost alone.
    """
    rule = job.reconfiguration
    per_gpu = [job.throughput[gpus] / gpus for gpus in range(job.min_gpus, job.max_gpus + 1)]
    worst = min(rule.grow, rule.shrink, rule.preempted) * min(per_gpu)
    return utility_range(
        value=job.value,
        work=job.work,
        max_gpus=job.max_gpus,
        last_slot=job.deadline if always_on_time else job.hard_deadline,
        min_price=min_price,
        max_price=on_demand_price,
        most_work_per_gpu=max(per_gpu),
        least_work_per_gpu=worst if tight else None,
        sure_value=job.value if always_on_time else 0.0,
        budget=math.inf if job.budget is None else job.budget,
    )


def normalised(
    utilities: NDArray[np.float64], ranges: UtilityRange | Sequence[UtilityRange]
) -> NDArray[np.float64]:
    """Return utilities as fractions of their range: one range, or one for each row."""
    dollars = np.asarray(utilities, dtype=np.float64)
    if isinstance(ranges, UtilityRange):
        low, width = np.float64(ranges.low), np.float64(ranges.width)
        scaled = (dollars - low) / width
    else:
        if len(ranges) != len(dollars):
            raise InvalidInput("ranges", len(ranges), f"one for each of {len(dollars)} jobs")
        lows = np.array([bounds.low for bounds in ranges])
        widths = np.array([bounds.width for bounds in ranges])
        scaled = (dollars - lows[:, np.newaxis]) / widths[:, np.newaxis]
    inside = (scaled >= -UNIT_TOLERANCE) & (scaled <= 1 + UNIT_TOLERANCE)
    if not inside.all():
        wrong = float(dollars[~inside].flat[0])
        raise InvalidInput("utility", wrong, "within the bounds known before the job")
    return np.clip(scaled, 0.0, 1.0)
