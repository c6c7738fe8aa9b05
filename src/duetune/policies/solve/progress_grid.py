"""The progress grid: work left, counted in steps of one unit, so that plans become tables."""

from __future__ import annotations

import functools
import math
from fractions import Fraction
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import numpy as np

from duetune.core.job import Reconfiguration
from duetune.core.physics import job_physics
from duetune.errors import InvalidInput

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from duetune.core.job import Job

STAY, GROW, SHRINK = 0, 1, 2
_NOISE = 1e-12  # relative error of a division
_LARGEST_DENOMINATOR = 10**6
# Decimal amounts are counted in whole units of 1e-8, which is fast; others as fractions.
_DECIMALS = 1e8
_DECIMAL_NOISE = 1e-3
_LARGEST_EXACT = 2.0**42
_UNDISTURBED = Reconfiguration(grow=1.0, shrink=1.0, preempted=1.0)


class ProgressGrid(NamedTuple):
    """A grid of work for one job.

    n GPUs do ``strides[change, n]`` steps in a slot with this kind of change.

    With strides rounded down and work left rounded up, a plan never overstates progress. Rounded
    the other way (``optimistic``) it never understates progress, which bounds the optimum from
    above.
    """

    unit: float
    steps: int
    strides: NDArray[np.int64]
    exact: bool


def exact_unit(job: Job) -> float:
    """The largest unit that divides every amount of work one slot can do."""
    rule = job.reconfiguration
    fractions = (1.0, rule.grow, rule.shrink, rule.preempted)
    curve = job.throughput[job.min_gpus :]
    scaled = np.outer(fractions, curve) * _DECIMALS
    rounded = np.rint(scaled)
    if rounded.max() < _LARGEST_EXACT and np.abs(scaled - rounded).max() < _DECIMAL_NOISE:
        return float(np.gcd.reduce(rounded.astype(np.int64).ravel())) / _DECIMALS
    amounts = [_fraction(work) * _fraction(mu) for work in curve for mu in fractions]
    common = math.lcm(*(amount.denominator for amount in amounts))
    return math.gcd(*(int(amount * common) for amount in amounts)) / common


def even_unit(job: Job, max_steps: int) -> float:
    """Return a unit with at most ``max_steps`` steps that divides undisturbed work if possible.

    Work left then stays on the grid as long as nothing changes.
    """
    finest = job.work / max_steps
    common = exact_unit(msgspec.structs.replace(job, reconfiguration=_UNDISTURBED))
    if common <= 0 or job.work < common:
        return finest
    if common < finest:
        return common * math.ceil(finest / common)
    return common / math.floor(common / finest)


@functools.lru_cache(maxsize=4096)
def progress_grid(
    job: Job, max_steps: int, *, optimistic: bool = False, even: bool = False
) -> ProgressGrid:
    """Return the exact grid if its steps are at most ``max_steps``, else that many equal ones.

    ``even`` takes fewer and longer steps instead, if undisturbed work is then on the grid. A plan
    on it loses work to rounding only where the number of GPUs changes.
    """
    if max_steps < 1:
        raise InvalidInput("max_steps", max_steps, "1 or more")
    unit = exact_unit(job)
    exact = unit > 0 and job.work / unit <= max_steps
    if not exact:
        unit = even_unit(job, max_steps) if even else job.work / max_steps
    physics = job_physics(job)
    shares = np.outer([1.0, physics.grow, physics.shrink], physics.throughput) / unit
    if exact:
        strides = np.rint(shares)
        steps = math.ceil((job.work - physics.tolerance) / unit)
    elif optimistic:
        strides = np.ceil(shares * (1 - _NOISE))
        steps = math.floor(job.work / unit * (1 + _NOISE))
    else:
        strides = np.floor(shares * (1 + _NOISE))
        steps = math.ceil(job.work / unit * (1 - _NOISE))
    table = strides.astype(np.int64)
    table.setflags(write=False)
    return ProgressGrid(unit=unit, steps=max(1, steps), strides=table, exact=exact)


def _fraction(number: float) -> Fraction:
    return Fraction(repr(float(number))).limit_denominator(_LARGEST_DENOMINATOR)
