"""Policies: how many spot and on-demand GPUs to hold in a slot, and why.

The policies of this package are ``rubato``, ``ahap``, ``ahanp`` and ``baselines``; ``guard`` wraps
any of them. ``solve`` has exact optima and value tables, ``select`` learns which policy to use.

``SingleInstance`` is rubato as a step function for other schedulers (docs/how-to). It is imported
at first use, because it needs the compiler.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from duetune.policies.single_instance import Instance, SingleInstance

__all__ = ["Instance", "SingleInstance"]


def __getattr__(name: str) -> object:
    """Import ``SingleInstance`` and ``Instance`` at first use."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from duetune.policies import single_instance  # noqa: PLC0415

    return getattr(single_instance, name)
