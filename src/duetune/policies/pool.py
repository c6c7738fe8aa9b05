"""The pools that online selection chooses from."""

from __future__ import annotations

from typing import TYPE_CHECKING

from duetune.policies.ahanp import Ahanp
from duetune.policies.ahap import DEFAULT_OUTLOOK, DEFAULT_PATIENCE, Ahap
from duetune.policies.baselines import MaximalSpot, OnDemandOnly, UniformProgress
from duetune.policies.rubato import Rubato

if TYPE_CHECKING:
    from duetune.core.ports import Policy
    from duetune.policies.compiled_policy import CompiledPolicy

WINDOWS = (1, 2, 3, 4, 5)
THRESHOLDS = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)


def paper_pool(
    *, outlook: float = 0.0, patience: float = 0.0, thrifty: bool = False
) -> tuple[CompiledPolicy, ...]:
    """105 AHAP (window 1-5, commitment 1..window, 7 thresholds) and 7 AHANP: 112 policies."""
    planners = [
        Ahap(
            window=window,
            commitment=commitment,
            threshold=threshold,
            outlook=outlook,
            patience=patience,
            thrifty=thrifty,
        )
        for window in WINDOWS
        for commitment in range(1, window + 1)
        for threshold in THRESHOLDS
    ]
    return (*planners, *(Ahanp(threshold=threshold) for threshold in THRESHOLDS))


def baselines() -> tuple[CompiledPolicy, ...]:
    return (OnDemandOnly(), MaximalSpot(), UniformProgress())


def default_pool() -> tuple[Policy, ...]:
    """All compiled ones, and rubato: 222."""
    return (*compiled_pool(), Rubato())


def compiled_pool() -> tuple[CompiledPolicy, ...]:
    """The paper's 112, its 105 planners as we run them, 3 baselines, thrifty maximal spot: 221."""
    ours = paper_pool(outlook=DEFAULT_OUTLOOK, patience=DEFAULT_PATIENCE, thrifty=True)
    planners = (policy for policy in ours if isinstance(policy, Ahap))
    return (*paper_pool(), *planners, *baselines(), MaximalSpot(thrifty=True))
