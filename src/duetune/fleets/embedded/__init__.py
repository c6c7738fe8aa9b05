"""An emulated cloud on one machine.

A provider process on loopback replays a recorded market, grants and takes nodes (process groups),
and bills them.

    fleet = start_provider(folder, FleetSettings(speed=60), trace)
    fleet.apply([Launch(...)])
    fleet.observe("job")
    stop_provider(folder)

The public names are imported on first use, because node agents need none of them.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from duetune.fleets.embedded.client import (
        EmbeddedFleet,
        provider_status,
        start_provider,
        stop_provider,
    )
    from duetune.fleets.embedded.clock import ScaledClock
    from duetune.fleets.embedded.cloud_settings import FleetFaults, FleetSettings
    from duetune.fleets.embedded.provider_messages import FleetStatus

__all__ = [
    "EmbeddedFleet",
    "FleetFaults",
    "FleetSettings",
    "FleetStatus",
    "ScaledClock",
    "provider_status",
    "start_provider",
    "stop_provider",
]

_HOMES = {
    "FleetFaults": "cloud_settings",
    "FleetSettings": "cloud_settings",
    "FleetStatus": "provider_messages",
    "ScaledClock": "clock",
}


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES.get(name, 'client')}"), name)
