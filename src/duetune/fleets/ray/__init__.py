"""Nodes as actors of a Ray cluster: one named, detached actor is one node.

Ledger, bills and limits are not here but in ``engine_fleet``. ``docs/how-to/ray.md`` says what the
cluster must offer. ``ray_driver`` runs in the controller and never imports Ray; ``ray_session``,
``cluster_tables`` and ``cluster_check`` run in a process beside it, ``node_actor`` and
``node_guard`` on the nodes.
"""

from __future__ import annotations

from duetune.fleets.ray.ray_driver import RayDriver
from duetune.fleets.ray.ray_settings import RaySettings

__all__ = ["RayDriver", "RaySettings"]
