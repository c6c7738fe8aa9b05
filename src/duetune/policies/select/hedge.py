"""Hedge, the paper's way to select a policy, and what all exponential-weights learners share.

Learners that set their own rate are in ``adaptive``; the regret bounds are in ``regret_bounds``.
"""

from __future__ import annotations

import math
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol

import numpy as np

from duetune.errors import InvalidInput
from duetune.policies.select.regret_bounds import anytime_hedge_bound, hedge_bound

if TYPE_CHECKING:
    from numpy.typing import NDArray


class Play(StrEnum):
    """How a policy is chosen: drawn from the weights, as the bounds assume, or the heaviest."""

    SAMPLE = "sample"
    BEST = "best"


class Learner(Protocol):
    """A selector that shows its weights and states a bound on its regret."""

    @property
    def arms(self) -> int:
        """Return the number of policies."""

    @property
    def rate(self) -> float:
        """Return the learning rate of the next job."""

    @property
    def weights(self) -> NDArray[np.float64]:
        """Return a probability for each policy."""

    def choose(self, random: np.random.Generator) -> int:
        """Return the policy for the next job; called before the job starts."""

    def learn(self, utilities: NDArray[np.float64]) -> None:
        """Take the utilities of all policies on a job; called when the job is done."""

    def regret_bound(
        self, jobs: int | NDArray[np.float64], spread: float = 1.0
    ) -> NDArray[np.float64]:
        """Return a bound on the regret that holds for any ``jobs`` jobs of this spread."""

    def certificate(self) -> float:
        """Return a bound on the regret so far, from what was observed."""

    def warm_start(self, utilities: NDArray[np.float64], *, trust: float = 0.5) -> None:
        """Start from the weights that past jobs, one row each, would have led to."""


class Weighing:
    """The state that all learners share: prior, present weights, choice, and the sum of gaps."""

    def __init__(self, arms: int, play: Play = Play.SAMPLE) -> None:
        if arms < 1:
            raise InvalidInput("arms", arms, "at least one policy")
        self.arms = arms
        self.play = Play(play)
        self.jobs = 0
        # With one policy there is nothing to learn; ln 2 keeps its rates and bounds finite.
        self._log_arms = math.log(max(2, arms))
        self._gap = 0.0
        self._spread = 0.0
        self._set_prior(np.full(arms, 1 / arms))

    @property
    def weights(self) -> NDArray[np.float64]:
        """Return a probability for each policy (read-only)."""
        return self._weights

    def choose(self, random: np.random.Generator) -> int:
        """Return the policy for the next job; called before the job starts."""
        if self.play is Play.BEST:
            return int(self._weights.argmax())
        total = self._weights.cumsum()
        place = total.searchsorted(random.random() * total[-1], side="right")
        return min(int(place), self.arms - 1)

    def _set_prior(self, prior: NDArray[np.float64]) -> None:
        self._log_prior = np.log(prior)
        self._surprise = float(-self._log_prior.min())
        self._set_weights(prior)

    def _set_weights(self, weights: NDArray[np.float64]) -> None:
        weights.setflags(write=False)
        self._weights = weights

    def _checked(self, utilities: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the utilities as an array, refuse wrong ones, and note their spread."""
        utilities = np.asarray(utilities, dtype=np.float64)
        if utilities.shape != (self.arms,):
            allowed = f"one utility for each of {self.arms} policies"
            raise InvalidInput("utilities", utilities.shape, allowed)
        spread = float(utilities.max() - utilities.min())
        if not math.isfinite(spread):
            wrong = utilities[~np.isfinite(utilities)]
            raise InvalidInput("utilities", wrong.tolist(), "finite numbers")
        self._spread = max(self._spread, spread)
        return utilities

    def _warm(self, utilities: NDArray[np.float64], trust: float, scratch: Learner) -> int:
        """Learn the history with ``scratch`` and make its weights, as far as trusted, the prior."""
        if self.jobs:
            raise InvalidInput("warm_start", self.jobs, "no jobs learnt before")
        if not 0 <= trust < 1:
            raise InvalidInput("trust", trust, "a fraction from 0 to below 1")
        history = np.asarray(utilities, dtype=np.float64)
        if history.ndim != 2 or history.shape[1] != self.arms:
            raise InvalidInput("history", history.shape, f"shape (jobs, {self.arms})")
        for row in history:
            scratch.learn(row)
        # Every policy keeps a share, so misleading history costs at most ln(1 / (1 - trust)) nats.
        self._set_prior(trust * scratch.weights + (1 - trust) / self.arms)
        return len(history)


def log_sum_exp(numbers: NDArray[np.float64]) -> float:
    """Return ln(sum(exp(numbers))) without overflow."""
    top = float(numbers.max())
    return top + math.log(float(np.exp(numbers - top).sum()))


def softmax(numbers: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return exp(numbers), scaled to sum to 1, without overflow."""
    weights: NDArray[np.float64] = np.exp(numbers - numbers.max())
    weights /= weights.sum()
    return weights


UNIT_TOLERANCE = 1e-9


class Hedge(Weighing):
    """Exponential weights on utilities in [0, 1].

    If ``jobs`` is known beforehand, the rate is sqrt(8 ln M / K); otherwise it is sqrt(8 ln M / k)
    before job k. ``rate`` replaces both with a constant.
    """

    def __init__(
        self,
        arms: int,
        *,
        jobs: int | None = None,
        rate: float | None = None,
        play: Play = Play.SAMPLE,
    ) -> None:
        super().__init__(arms, play)
        if jobs is not None and jobs < 1:
            raise InvalidInput("jobs", jobs, "a number of jobs, 1 or more")
        if rate is not None and not (rate > 0 and math.isfinite(rate)):
            raise InvalidInput("rate", rate, "a positive number")
        if rate is None and jobs is not None:
            rate = math.sqrt(8 * self._log_arms / jobs)
        self._constant_rate = rate
        self._lead = np.zeros(arms)

    @property
    def rate(self) -> float:
        """Return η of the next job."""
        return self._rate_of(self.jobs + 1)

    def learn(self, utilities: NDArray[np.float64]) -> None:
        """Take the utilities of all policies on the last job, each in [0, 1]."""
        utilities = self._checked(utilities)
        low, high = float(utilities.min()), float(utilities.max())
        if not (low >= -UNIT_TOLERANCE and high <= 1 + UNIT_TOLERANCE):
            wrong = low if low < -UNIT_TOLERANCE else high
            raise InvalidInput("utilities", wrong, "numbers in [0, 1]; see UtilityRange")
        rate = self.rate
        before = self._log_prior + rate * self._lead
        mixed = (log_sum_exp(before + rate * utilities) - log_sum_exp(before)) / rate
        self._gap += max(0.0, mixed - float(self._weights @ utilities))
        self._lead += utilities
        self._lead -= self._lead.max()
        self.jobs += 1
        self._set_weights(softmax(self._log_prior + self.rate * self._lead))

    def warm_start(self, utilities: NDArray[np.float64], *, trust: float = 0.5) -> None:
        """Start from the weights that past jobs, one row each, would have led to."""
        self._warm(utilities, trust, Hedge(self.arms, rate=self._constant_rate))

    def regret_bound(
        self, jobs: int | NDArray[np.float64], spread: float = 1.0
    ) -> NDArray[np.float64]:
        """Return a bound on the regret that holds for every sequence of ``jobs`` jobs."""
        if self._constant_rate is None:
            return anytime_hedge_bound(
                jobs, log_arms=self._log_arms, surprise=self._surprise, spread=spread
            )
        return hedge_bound(jobs, rate=self._constant_rate, surprise=self._surprise, spread=spread)

    def certificate(self) -> float:
        """Return a bound on the regret so far, from the observed gaps."""
        return self._surprise / self._rate_of(self.jobs) + self._gap if self.jobs else 0.0

    def _rate_of(self, job: int) -> float:
        if self._constant_rate is not None:
            return self._constant_rate
        return math.sqrt(8 * self._log_arms / job)
