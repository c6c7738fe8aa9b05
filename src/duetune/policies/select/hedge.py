"""Hedge: exponential weights with a rate from theory; the paper's way to select a policy."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from duetune.errors import InvalidInput
from duetune.policies.select.exponential_weights import Play, Weighing, log_sum_exp, softmax
from duetune.policies.select.regret_bounds import anytime_hedge_bound, hedge_bound

if TYPE_CHECKING:
    from numpy.typing import NDArray

UNIT_TOLERANCE = 1e-9


class Hedge(Weighing):
    """Exponential weights on utilities in [0, 1].

    With ``jobs`` known beforehand the rate is sqrt(8 ln M / K); without, sqrt(8 ln M / k) before
    job k. ``rate`` overrides both with a constant.
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
            raise InvalidInput("jobs", jobs, "the number of jobs to come, 1 or more")
        if rate is not None and not (rate > 0 and math.isfinite(rate)):
            raise InvalidInput("rate", rate, "a positive number")
        if rate is None and jobs is not None:
            rate = math.sqrt(8 * self._log_arms / jobs)
        self._constant_rate = rate
        self._lead = np.zeros(arms)

    @property
    def rate(self) -> float:
        """η of the job to come."""
        return self._rate_of(self.jobs + 1)

    def learn(self, utilities: NDArray[np.float64]) -> None:
        """All policies' utilities on the job just done, each in [0, 1]."""
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
        """Begin with the weights that past jobs, one row each, would have led to."""
        self._warm(utilities, trust, Hedge(self.arms, rate=self._constant_rate))

    def regret_bound(
        self, jobs: int | NDArray[np.float64], spread: float = 1.0
    ) -> NDArray[np.float64]:
        """No sequence of so many jobs makes the regret larger."""
        if self._constant_rate is None:
            return anytime_hedge_bound(
                jobs, log_arms=self._log_arms, surprise=self._surprise, spread=spread
            )
        return hedge_bound(jobs, rate=self._constant_rate, surprise=self._surprise, spread=spread)

    def certificate(self) -> float:
        """A bound on the regret so far, from the gaps really seen."""
        return self._surprise / self._rate_of(self.jobs) + self._gap if self.jobs else 0.0

    def _rate_of(self, job: int) -> float:
        if self._constant_rate is not None:
            return self._constant_rate
        return math.sqrt(8 * self._log_arms / job)
