"""The regret bound of each learner, for any utilities.

Regret over K jobs is max_i sum_k u_k(i) - sum_k w_k . u_k. Take M policies, a prior w_1, rates η_k,
and the mixability gap δ_k = (1/η_k) ln sum_i w_k(i) exp(η_k u_k(i)) - w_k . u_k of each job. Every
bound here follows from one inequality for non-increasing rates (de Rooij, van Erven, Grünwald,
Koolen, JMLR 15 (2014); here with any prior)

    regret against i  <=  ln(1 / w_1(i)) / η_K + sum_k δ_k

and from Hoeffding's lemma, δ_k <= η_k s_k^2 / 8 and δ_k <= s_k, where s_k is the spread (largest
minus smallest utility) of job k. ``surprise`` below is the largest ln(1 / w_1(i)); it is ln M for
the uniform prior. ``docs/explanation/selection.md`` has the derivations.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Jobs = int | NDArray[np.float64]
    Bound = NDArray[np.float64]


def hedge_bound(jobs: Jobs, *, rate: float, surprise: float, spread: float = 1.0) -> Bound:
    """Return ln M / η + K s^2 η / 8; at η = sqrt(8 ln M / K) and s = 1 this is sqrt(K ln M / 2)."""
    return surprise / rate + np.asarray(jobs, dtype=np.float64) * (rate * spread**2 / 8)


def anytime_hedge_bound(
    jobs: Jobs, *, log_arms: float, surprise: float, spread: float = 1.0
) -> Bound:
    """Return the bound with η_k = sqrt(8 ln M / k): 1.06 sqrt(K ln M) for s = 1.

    1.06 is 3 / sqrt(8). The bound is tighter than sqrt(2 K ln M) + sqrt(ln M / 8) of Cesa-Bianchi
    and Lugosi (2006), Theorem 2.3.
    """
    root = np.sqrt(np.asarray(jobs, dtype=np.float64) * (log_arms / 8))
    return root * (surprise / log_arms + 2 * spread**2)


def gap_bound(budget: Bound, *, spread: float, first_gap: float = 0.0) -> Bound:
    """Return the largest sum of gaps Δ_K if η_k = C_k / Δ_{k-1}; ``budget`` is sum_k C_k s_k^2.

    Δ_k^2 = Δ_{k-1}^2 + 2 δ_k Δ_{k-1} + δ_k^2 with δ_k Δ_{k-1} = C_k δ_k / η_k <= C_k s_k^2 / 8 and
    δ_k <= s, so that Δ_K^2 - Δ_0^2 <= budget / 4 + s (Δ_K - Δ_0).
    """
    return (spread + np.sqrt(budget + (spread - 2 * first_gap) ** 2)) / 2


def adahedge_bound(
    jobs: Jobs, *, log_arms: float, surprise: float, spread: float = 1.0, first_gap: float = 0.0
) -> Bound:
    """Return Δ_K (1 + surprise / ln M) - Δ_0; with a uniform prior it is s + s sqrt(1 + K ln M).

    The leading term s sqrt(K ln M) is that of de Rooij et al. (2014) with V_K <= s^2 K / 4.
    Hoeffding's lemma in place of Bernstein's makes the rest 2 s instead of s (4/3 ln M + 2).
    """
    budget = np.asarray(jobs, dtype=np.float64) * (log_arms * spread**2)
    gap = gap_bound(budget, spread=spread, first_gap=first_gap)
    return gap * (1 + surprise / log_arms) - first_gap


def fixed_share_bound(
    jobs: Jobs,
    *,
    log_arms: float,
    surprise: float,
    spread: float = 1.0,
    switches: int = 0,
    first_gap: float = 0.0,
    age: int = 0,
) -> Bound:
    """Return the bound with share 1/k and C_k = 2 ln(M k), for sequences with switches.

    It is Δ_K (1 + surprise / (2 ln M) + m / 2 + ln(ln(M K) / ln M) / 2) - Δ_0, where Δ_K is at most
    about sqrt(K ln(M K) / 2). ``age`` jobs of history count in k.
    """
    count = np.asarray(jobs, dtype=np.float64)
    log_all = log_arms + np.log(np.maximum(count + age, 1))
    gap = gap_bound(2 * count * log_all * spread**2, spread=spread, first_gap=first_gap)
    shared = np.log(log_all / log_arms) / 2
    return gap * (1 + surprise / (2 * log_arms) + switches / 2 + shared) - first_gap


def forgetting_share_bound(
    jobs: Jobs,
    *,
    memory: int,
    log_arms: float,
    surprise: float,
    spread: float = 1.0,
    switches: int = 0,
    first_gap: float = 0.0,
) -> Bound:
    """Return the bound with share 1/B and gaps forgotten at rate 1/B: about (K / B) sqrt(B C).

    It is linear in K, because changes never end: each memory's worth of jobs costs sqrt(B C).
    """
    count = np.asarray(jobs, dtype=np.float64)
    complexity = share_complexity(log_arms, memory)
    rounds = np.minimum(count, memory)
    gap = (spread + np.sqrt(spread**2 * (1 + rounds * complexity) + 4 * first_gap**2)) / 2
    total = gap * (1 + count / memory)
    switching = switches * (log_arms + np.log(memory)) - count * np.log1p(-1 / memory)
    bound: Bound = total + (surprise * (total + first_gap) + gap * switching) / complexity
    return bound


def share_complexity(log_arms: float, memory: int) -> float:
    """Return C: the cost, in nats, of B jobs in which the best policy changes once.

    It is ln M for the first policy, ln(M B) for the change, and 1 for having shared B times 1/B.
    """
    return float(1 + 2 * log_arms + np.log(memory))
