"""The pools of policies that online selection chooses from."""

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
    """Return the paper's 112 policies: 105 AHAP and 7 AHANP.

    AHAP has windows 1 to 5, commitments 1 to the window, and 7 thresholds. The options are AHAP's
    own.
    """
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
    """Return the paper's three baselines."""
    return (OnDemandOnly(), MaximalSpot(), UniformProgress())


def default_pool() -> tuple[Policy, ...]:
    """Return all compiled policies and rubato: 222 policies."""
    return (*compiled_pool(), Rubato())


def compiled_pool() -> tuple[CompiledPolicy, ...]:
    """Return the policies that the batch kernel can run: 221.

    These are the paper's 112, its 105 planners with our defaults, 3 baselines, and thrifty maximal
    spot.
    """
    ours = paper_pool(outlook=DEFAULT_OUTLOOK, patience=DEFAULT_PATIENCE, thrifty=True)
    planners = (policy for policy in ours if isinstance(policy, Ahap))
    return (*paper_pool(), *planners, *baselines(), MaximalSpot(thrifty=True))
