"""Policies: how many spot and on-demand GPUs to hold in a slot, and why.

The policies of this package are ``rubato``, ``ahap``, ``ahanp`` and ``baselines``; ``guard`` wraps
any of them. ``solve`` has exact optima and value tables, ``select`` learns which policy to use.

``SingleInstance`` is rubato as a step function for other schedulers, and ``MultiRegionInstance``
the same over several pools (docs/how-to). Both are imported at first use, because they need the
compiler.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from duetune.core.multi_region_physics import InstancePool, MoveCost, MultiRegionJob
    from duetune.policies.multi_region import MultiRegionInstance
    from duetune.policies.multi_region_step import Attempt, Otherwise, PoolPrice, PoolStep
    from duetune.policies.single_instance import Instance, SingleInstance

__all__ = [
    "Attempt",
    "Instance",
    "InstancePool",
    "MoveCost",
    "MultiRegionInstance",
    "MultiRegionJob",
    "Otherwise",
    "PoolPrice",
    "PoolStep",
    "SingleInstance",
]

_HOMES = {
    "Attempt": "duetune.policies.multi_region_step",
    "Instance": "duetune.policies.single_instance",
    "InstancePool": "duetune.core.multi_region_physics",
    "MoveCost": "duetune.core.multi_region_physics",
    "MultiRegionInstance": "duetune.policies.multi_region",
    "MultiRegionJob": "duetune.core.multi_region_physics",
    "Otherwise": "duetune.policies.multi_region_step",
    "PoolPrice": "duetune.policies.multi_region_step",
    "PoolStep": "duetune.policies.multi_region_step",
    "SingleInstance": "duetune.policies.single_instance",
}


def __getattr__(name: str) -> object:
    """Import a step function, or what it is told and says, at first use."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
