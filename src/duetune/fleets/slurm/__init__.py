"""Nodes as jobs of a Slurm cluster, by its command line: one batch job is one node.

Ledger, bills and limits are not here but in ``engine_fleet``. ``docs/how-to/slurm.md`` says what
the cluster must offer.
"""

from __future__ import annotations

from duetune.fleets.slurm.slurm_driver import SlurmDriver
from duetune.fleets.slurm.slurm_settings import SlurmSettings

__all__ = ["SlurmDriver", "SlurmSettings"]
