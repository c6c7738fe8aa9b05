"""AdaHedge and FixedShare: exponential weights that set their own rate, for utilities in any unit.

The rate is a complexity divided by the sum of mixability gaps so far. It is infinite (follow the
leader) as long as following cost nothing, and becomes smaller the harder the jobs are.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from duetune.errors import InvalidInput
from duetune.policies.select.hedge import Play, Weighing, log_sum_exp, softmax
from duetune.policies.select.regret_bounds import (
    adahedge_bound,
    fixed_share_bound,
    forgetting_share_bound,
    share_complexity,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

NEGLIGIBLE_GAP = 1e-12
"""Gaps below this share of the largest spread are rounding errors: the rate stays infinite."""


class Adaptive(Weighing):
    """The common base: rates η_k = C_k / Δ_{k-1} from the sum of gaps Δ so far."""

    def __init__(self, arms: int, play: Play = Play.SAMPLE) -> None:
        super().__init__(arms, play)
        self._first_gap = 0.0

    def _rate_for(self, complexity: float, gap: float) -> float:
        """Return C / Δ, or infinity (follow the leader) as long as there was no gap."""
        if gap <= NEGLIGIBLE_GAP * self._spread:
            return math.inf
        return complexity / gap


class AdaHedge(Adaptive):
    """Exponential weights with the rate ln M / Δ, where Δ is the sum of mixability gaps so far.

    The weights do not change if all utilities are shifted or scaled alike, so utilities may be
    dollars. De Rooij, van Erven, Grünwald, Koolen, "Follow the Leader If You Can, Hedge If You
    Must", JMLR 15 (2014).
    """

    def __init__(self, arms: int, *, play: Play = Play.SAMPLE) -> None:
        super().__init__(arms, play)
        self._lead = np.zeros(arms)
        self._last_rate = math.inf

    @property
    def rate(self) -> float:
        """Return η of the next job."""
        return self._rate_for(self._log_arms, self._gap)

    def learn(self, utilities: NDArray[np.float64]) -> None:
        """Take the utilities of all policies on the last job, in any one unit."""
        utilities = self._checked(utilities)
        utilities = utilities - utilities.max()  # only differences matter; this keeps their digits
        rate = self.rate
        earned = float(self._weights @ utilities)
        if math.isinf(rate):
            mixed = float((self._lead + utilities).max())
        else:
            before = self._log_prior + rate * self._lead
            mixed = (log_sum_exp(before + rate * utilities) - log_sum_exp(before)) / rate
        self._gap += max(0.0, mixed - earned)
        self._lead += utilities
        self._lead -= self._lead.max()
        self._last_rate = rate
        self.jobs += 1
        rate = self.rate
        if math.isinf(rate):
            leaders = self._lead >= -NEGLIGIBLE_GAP * self._spread
            prior = np.where(leaders, np.exp(self._log_prior), 0.0)
            self._set_weights(prior / prior.sum())
        else:
            self._set_weights(softmax(self._log_prior + rate * self._lead))

    def warm_start(self, utilities: NDArray[np.float64], *, trust: float = 0.5) -> None:
        """Start from the weights and the rate that past jobs would have led to."""
        scratch = AdaHedge(self.arms)
        self._warm(utilities, trust, scratch)
        self._gap = self._first_gap = scratch._gap
        self._spread = scratch._spread

    def regret_bound(
        self, jobs: int | NDArray[np.float64], spread: float = 1.0
    ) -> NDArray[np.float64]:
        """Return a bound on the regret for any ``jobs`` jobs of at most this spread."""
        return adahedge_bound(
            jobs,
            log_arms=self._log_arms,
            surprise=self._surprise,
            spread=max(spread, self._spread),
            first_gap=self._first_gap,
        )

    def certificate(self) -> float:
        """Return a bound on the regret so far, from the observed gaps; at most twice their sum."""
        return self._surprise / self._last_rate + self._gap - self._first_gap


class FixedShare(Adaptive):
    """AdaHedge in which every policy gets a little weight back after each job.

    Without ``memory`` the share is 1/k and C_k = 2 ln(M k). No horizon must be known, and the
    regret is of the order (m + 3) sqrt(K ln(M K)) against every sequence of policies with m
    changes. With ``memory`` the share is 1/memory and gaps are forgotten as fast, so that the rate
    recovers after hard jobs. This suits markets that keep changing after that many jobs.

    Sharing: Herbster and Warmuth, "Tracking the Best Expert", Machine Learning 32 (1998). The
    adaptive rate and its bounds are derived in ``docs/explanation/selection.md``.
    """

    def __init__(self, arms: int, *, memory: int | None = None, play: Play = Play.SAMPLE) -> None:
        super().__init__(arms, play)
        if memory is not None and memory < 2:
            raise InvalidInput("memory", memory, "a number of jobs, 2 or more, or none")
        self.memory = memory
        self._age = 0
        self._recent_gap = 0.0
        # For the certificate: the last 1/η, its increases, the cost of sharing and of one switch.
        self._last_inverse = 0.0
        self._rises = 0.0
        self._sharing = 0.0
        self._switching = 0.0

    @property
    def rate(self) -> float:
        """Return η of the next job."""
        if self.memory is not None:
            return self._rate_for(share_complexity(self._log_arms, self.memory), self._recent_gap)
        return self._rate_for(2 * (self._log_arms + math.log(self._age + 1)), self._recent_gap)

    @property
    def share(self) -> float:
        """Return α: the part of the weights that is spread evenly before the next job."""
        return 1 / (self.memory or self._age + 1)

    def learn(self, utilities: NDArray[np.float64]) -> None:
        """Take the utilities of all policies on the last job, in any one unit."""
        utilities = self._checked(utilities)
        utilities = utilities - utilities.max()  # only differences matter; this keeps their digits
        rate = self.rate
        self._account(rate)
        earned = float(self._weights @ utilities)
        if math.isinf(rate):
            mixed = float(utilities.max())
            log_weights = np.log(self._weights)
        else:
            log_weights = np.log(self._weights) + rate * utilities
            total = log_sum_exp(log_weights)
            mixed = total / rate
            log_weights -= total
        gap = max(0.0, mixed - earned)
        kept = 1.0 if self.memory is None else 1 - 1 / self.memory
        self._recent_gap = kept * self._recent_gap + gap
        self._gap += gap
        self.jobs += 1
        self._age += 1
        self._share_out(log_weights, utilities, rate)

    def warm_start(self, utilities: NDArray[np.float64], *, trust: float = 0.5) -> None:
        """Start from the weights and the rate that past jobs would have led to."""
        scratch = FixedShare(self.arms, memory=self.memory)
        self._age = self._warm(utilities, trust, scratch)
        self._recent_gap = self._first_gap = scratch._recent_gap
        self._spread = scratch._spread

    def regret_bound(
        self, jobs: int | NDArray[np.float64], spread: float = 1.0, *, switches: int = 0
    ) -> NDArray[np.float64]:
        """Return a bound on the regret against the best sequence of policies with so many switches.

        With 0 switches it is against the best single policy.
        """
        spread = max(spread, self._spread)
        if self.memory is None:
            return fixed_share_bound(
                jobs,
                log_arms=self._log_arms,
                surprise=self._surprise,
                spread=spread,
                switches=switches,
                first_gap=self._first_gap,
                age=self._age - self.jobs,
            )
        return forgetting_share_bound(
            jobs,
            memory=self.memory,
            log_arms=self._log_arms,
            surprise=self._surprise,
            spread=spread,
            switches=switches,
            first_gap=self._first_gap,
        )

    def certificate(self, *, switches: int = 0) -> float:
        """Return a bound on the regret so far, from the observed gaps and rates."""
        return self._gap + self._surprise * self._rises + self._sharing + switches * self._switching

    def _share_out(
        self, log_weights: NDArray[np.float64], utilities: NDArray[np.float64], rate: float
    ) -> None:
        """Set the weights of the next job: temper them to the new rate, then share."""
        following = self.rate
        if math.isinf(following):
            # No gap yet: all policies did equally well, so there is nothing to share.
            return
        if math.isinf(rate):
            log_weights = self._log_prior + following * utilities
        elif following < rate:
            # A smaller rate trusts the past less: temper the weights towards the prior.
            kept = following / rate
            log_weights = kept * log_weights + (1 - kept) * self._log_prior
        share = self.share
        self._set_weights((1 - share) * softmax(log_weights) + share / self.arms)

    def _account(self, rate: float) -> None:
        """Update the terms of the certificate with the rate of this job."""
        inverse = 1 / rate
        self._rises += max(0.0, inverse - self._last_inverse)
        self._last_inverse = inverse
        if self.jobs:
            share = self.share
            self._sharing += -math.log1p(-share) * inverse
            self._switching = max(self._switching, (self._log_arms - math.log(share)) * inverse)
