"""A learner over a sequence of jobs: choices, utility, regret, and speed of learning."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import numpy as np
from numpy.typing import NDArray

from duetune.errors import InvalidInput
from duetune.policies.select.utility_ranges import UtilityRange, normalised

if TYPE_CHECKING:
    from collections.abc import Sequence

    from duetune.policies.select.hedge import Learner

WEIGHT_ROWS = 1000


class RegretSlope(msgspec.Struct, frozen=True):
    """The exponent b of a fit regret = a k^b; theory allows 0.5 at worst.

    ``fit`` is of the regret itself. ``envelope`` is of its running maximum, which never falls, so a
    lucky end cannot hide growth. Regret below ``floor`` counts as ``floor``.
    """

    fit: float
    envelope: float
    first: int
    floor: float


class SelectionRun(msgspec.Struct, frozen=True, eq=False):
    """The result of a run. Entry k is about job k (from 0) or, if cumulative, about jobs 0 to k.

    - ``expected`` is w . u, the mean utility of sampling; ``earned`` is the utility of the choice
      made.
    - ``regret`` is that of ``expected`` against the best single policy so far; ``earned_regret`` is
      that of ``earned``.
    - These are in the learner's unit. ``*_dollars`` are in the unit of the given utilities, which
      differs only if ranges were given.
    - ``bound`` limits ``regret`` beforehand and ``certificate`` afterwards, both in the learner's
      unit.
    """

    chosen: NDArray[np.int64]
    expected: NDArray[np.float64]
    earned: NDArray[np.float64]
    regret: NDArray[np.float64]
    earned_regret: NDArray[np.float64]
    expected_dollars: NDArray[np.float64]
    earned_dollars: NDArray[np.float64]
    regret_dollars: NDArray[np.float64]
    earned_regret_dollars: NDArray[np.float64]
    bound: NDArray[np.float64]
    certificate: NDArray[np.float64]
    best: int
    spread: float
    weight_jobs: NDArray[np.int64]
    weights: NDArray[np.float64]
    final_weights: NDArray[np.float64]

    @property
    def jobs(self) -> int:
        """Return the number of jobs."""
        return int(self.chosen.size)

    def slope(self, *, first: int = 100) -> RegretSlope:
        """Return the log-log slope of the regret from job ``first`` on."""
        return log_log_slope(self.regret, first=first, floor=0.01 * self.spread)


def run_selection(
    utilities: NDArray[np.float64],
    learner: Learner,
    random: np.random.Generator,
    *,
    ranges: UtilityRange | Sequence[UtilityRange] | None = None,
) -> SelectionRun:
    """Play jobs (rows) with a learner that chooses among policies (columns).

    With ``ranges`` (one for all jobs or one per job) the learner sees each job's utilities as
    fractions of its range, otherwise unchanged. The learner keeps what it has learnt.
    """
    dollars = np.ascontiguousarray(utilities, dtype=np.float64)
    if dollars.ndim != 2 or dollars.shape[0] < 1 or dollars.shape[1] != learner.arms:
        raise InvalidInput("utilities", dollars.shape, f"shape (jobs, {learner.arms})")
    seen = dollars if ranges is None else normalised(dollars, ranges)
    jobs = len(seen)
    spreads = seen.max(axis=1) - seen.min(axis=1)
    if not np.isfinite(spreads).all():
        raise InvalidInput("utilities", "not a number", "finite numbers")
    # Fractions of a range have a spread of at most 1; dollars, the largest of the sequence.
    spread = 1.0 if ranges is not None else float(spreads.max())
    bound = learner.regret_bound(np.arange(1, jobs + 1, dtype=np.float64), spread)

    kept = np.unique(np.linspace(0, jobs - 1, min(jobs, WEIGHT_ROWS)).round().astype(np.int64))
    keep = np.zeros(jobs, dtype=np.bool_)
    keep[kept] = True
    chosen = np.empty(jobs, dtype=np.int64)
    expected = np.empty(jobs)
    expected_dollars = np.empty(jobs)
    certificate = np.empty(jobs)
    weights = []
    for job in range(jobs):
        now = learner.weights
        if keep[job]:
            weights.append(now.copy())
        expected[job] = now @ seen[job]
        expected_dollars[job] = now @ dollars[job]
        chosen[job] = learner.choose(random)
        learner.learn(seen[job])
        certificate[job] = learner.certificate()
    every = np.arange(jobs)
    earned, earned_dollars = seen[every, chosen], dollars[every, chosen]
    return SelectionRun(
        chosen=chosen,
        expected=expected,
        earned=earned,
        regret=cumulative_regret(seen, expected),
        earned_regret=cumulative_regret(seen, earned),
        expected_dollars=expected_dollars,
        earned_dollars=earned_dollars,
        regret_dollars=cumulative_regret(dollars, expected_dollars),
        earned_regret_dollars=cumulative_regret(dollars, earned_dollars),
        bound=bound,
        certificate=certificate,
        best=int(dollars.sum(axis=0).argmax()),
        spread=spread,
        weight_jobs=kept,
        weights=np.array(weights),
        final_weights=learner.weights.copy(),
    )


def cumulative_regret(
    utilities: NDArray[np.float64], earned: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return the regret after each job, against the policy that is best on the jobs so far."""
    best = utilities.cumsum(axis=0).max(axis=1)
    regret: NDArray[np.float64] = best - earned.cumsum()
    return regret


def log_log_slope(
    regret: NDArray[np.float64], *, first: int = 100, floor: float = 0.01, points: int = 200
) -> RegretSlope:
    """Return the slope of ln(max(regret, floor)) on ln k, for log-spaced k from ``first`` on.

    With fewer than 2 ``first`` jobs it is over the second half. The floor (by default 1% of one
    job's range) counts as no regret. Below it, or if the regret is negative because the learner
    beats every single policy, the curve is flat and its slope is 0.
    """
    jobs = regret.size
    if jobs < 4:
        raise InvalidInput("regret", jobs, "at least 4 jobs")
    if not floor > 0:
        raise InvalidInput("floor", floor, "a positive number")
    first = first if jobs >= 2 * first else max(1, jobs // 2)
    spaced = np.geomspace(first, jobs, points).round().astype(np.int64)
    job = np.unique(np.clip(spaced, 1, jobs))
    log_job = np.log(job) - np.log(job).mean()

    def fitted(curve: NDArray[np.float64]) -> float:
        log_regret = np.log(np.maximum(curve[job - 1], floor))
        # Without the first value, so that a flat curve has slope 0 instead of a rounding error.
        return float(log_job @ (log_regret - log_regret[0]) / (log_job @ log_job))

    return RegretSlope(
        fit=fitted(regret),
        envelope=fitted(np.maximum.accumulate(regret)),
        first=first,
        floor=floor,
    )


def recovery_jobs(
    earned: NDArray[np.float64],
    utilities: NDArray[np.float64],
    change: int,
    *,
    until: int | None = None,
    window: int = 20,
    tolerance: float = 0.02,
) -> int | None:
    """Return the jobs after ``change`` until the last ``window`` are as good as the new best.

    The new best is the single policy with the highest utility from job ``change`` to ``until`` (the
    next change, or the end). As good means within ``tolerance`` of its mean, relative, over the
    same jobs. All jobs of the window come after the change, so the result is at least ``window``;
    None if the learner never recovers.
    """
    end = len(utilities) if until is None else until
    if not 0 <= change < end <= len(utilities) or earned.shape != (len(utilities),):
        raise InvalidInput("change", (change, until), f"0 <= change < until <= {len(utilities)}")
    if window < 1:
        raise InvalidInput("window", window, "a number of jobs, 1 or more")
    after = utilities[change:end]
    if len(after) < window:
        return None
    best = after[:, after.sum(axis=0).argmax()]
    ours = _running_mean(earned[change:end], window)
    theirs = _running_mean(best, window)
    recovered = ours >= theirs - tolerance * np.abs(theirs) - 1e-12
    return int(recovered.argmax()) + window if recovered.any() else None


def _running_mean(numbers: NDArray[np.float64], window: int) -> NDArray[np.float64]:
    total = np.concatenate(([0.0], numbers.cumsum()))
    mean: NDArray[np.float64] = (total[window:] - total[:-window]) / window
    return mean
