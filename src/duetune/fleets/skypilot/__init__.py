"""Nodes as clusters of SkyPilot: one cluster with one machine is one node.

Ledger, bills and limits are not here but in ``engine_fleet``. ``docs/how-to/skypilot.md`` says how
it is set up. ``skypilot_driver`` runs in the controller and never imports SkyPilot;
``skypilot_bridge`` runs beside it, in the Python that has SkyPilot. ``skypilot_strategy`` is a
plug-in of SkyPilot's managed jobs and needs no fleet.
"""

from __future__ import annotations

from duetune.fleets.skypilot.skypilot_driver import SkypilotDriver
from duetune.fleets.skypilot.skypilot_settings import SkypilotSettings

__all__ = ["SkypilotDriver", "SkypilotSettings"]
