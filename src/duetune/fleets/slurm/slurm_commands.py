"""Runs the commands of Slurm and turns their failures into ``FleetError``."""

from __future__ import annotations

import os
import subprocess
from typing import TYPE_CHECKING

from duetune.errors import FleetError

if TYPE_CHECKING:
    from duetune.fleets.slurm.slurm_settings import SlurmSettings

# Variables such as SQUEUE_USERS or SBATCH_PARTITION change what a command does.
_OPTIONS = ("SALLOC_", "SBATCH_", "SCANCEL_", "SINFO_", "SLURM_", "SQUEUE_", "SRUN_")
_KEPT = {"SLURM_CONF", "SLURM_JWT"}

_REFUSALS = (
    "denied",
    "incorrect",
    "invalid",
    "is not available",
    "not found",
    "not permitted",
    "unrecognized option",
    "violates",
)
"""Words of refusals in Slurm's error messages; the same call would be refused again."""

_PASSING = ("authentication", "credential", "controller")
"""Words of failures that pass, although a word of refusal may be in the message too."""


class SlurmCommands:
    """The commands of one cluster."""

    def __init__(self, settings: SlurmSettings) -> None:
        self._timeout_s = settings.timeout_s
        self._environment = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(_OPTIONS) or name in _KEPT
        }
        self._environment["LC_ALL"] = "C"
        if settings.conf:
            self._environment["SLURM_CONF"] = settings.conf

    def run(self, program: str, *arguments: str, text: str = "") -> str:
        """Return what the command prints, given ``text`` as its input.

        It raises ``FleetError`` if the command fails, is missing, or takes too long.
        """
        try:
            done = subprocess.run(  # noqa: S603 - no shell; the words are ours or the user's own
                [program, *arguments],
                input=text,
                env=self._environment,
                capture_output=True,
                encoding="utf-8",
                errors="replace",
                timeout=self._timeout_s,
                check=False,
            )
        except FileNotFoundError:
            raise FleetError(f"{program} is not on this machine", retry=False) from None
        except subprocess.TimeoutExpired:
            raise FleetError(
                f"{program} took more than {self._timeout_s:g} s", retry=True
            ) from None
        if done.returncode:
            # scontrol says on its output that it does not know a partition.
            said = done.stderr.strip() or done.stdout.strip() or f"exit status {done.returncode}"
            refused = any(word in said.lower() for word in _REFUSALS) and not any(
                word in said.lower() for word in _PASSING
            )
            raise FleetError(f"{program}: {said.splitlines()[-1]}", retry=not refused)
        return done.stdout
