"""Policies: how many spot and on-demand GPUs to hold in this slot, and why.

``SingleInstance`` is rubato as a step function for other schedulers (docs/how-to); it is imported
when it is first used, since it brings the compiler with it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from duetune.policies.single_instance import Instance, SingleInstance

__all__ = ["Instance", "SingleInstance"]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from duetune.policies import single_instance  # noqa: PLC0415

    return getattr(single_instance, name)
