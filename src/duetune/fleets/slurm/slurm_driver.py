"""A ``Driver`` of a Slurm cluster: sbatch starts a node, scancel stops it, squeue lists them."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
from typing import TYPE_CHECKING

from duetune.core.fleet import NodeKind
from duetune.errors import FleetError
from duetune.fleets.driver import Capacity
from duetune.fleets.slurm.slurm_check import check_cluster
from duetune.fleets.slurm.slurm_commands import SlurmCommands
from duetune.fleets.slurm.slurm_jobs import one_per_name, read_jobs
from duetune.wall_clock import wall_now

if TYPE_CHECKING:
    from collections.abc import Sequence

    from duetune.fleets.driver import EngineNode, Finding, NodeOrder
    from duetune.fleets.slurm.slurm_settings import SlurmSettings

HIGHEST_PRIORITY = 1000
"""The highest priority that a job may have."""

# Nothing else of the controller's environment reaches a node: there may be secrets in it.
_EXPORTED = "HOME,LANG,LOGNAME,PATH,USER"
# The whole node or a part of it is free; "~" is a cloud node that Slurm starts when it is needed.
_USABLE = re.compile(r"(idle|mixed)[~#]?")
_GRES = re.compile(r"(?P<name>[^,:()]+(?::[^,:()]+)?):(?P<count>\d+)(?:\([^)]*\))?(?:,|$)")


class SlurmDriver:
    """Starts, stops and lists the nodes of one fleet: batch jobs whose names begin with ``prefix``.

    The jobs belong to the user that runs this process; jobs of other users are never listed.
    ``gpus_per_node`` counts the GPUs of a free machine where Slurm does not.
    """

    def __init__(self, settings: SlurmSettings, *, prefix: str, gpus_per_node: int = 1) -> None:
        self.settings, self.prefix = settings, prefix
        self._gpus_per_node = gpus_per_node
        self._commands = SlurmCommands(settings)

    def start(self, order: NodeOrder) -> None:
        """Submit a batch job, unless Slurm knows one of that name already.

        Two calls at the same time could both find nothing. ``singleton`` then lets only one of the
        jobs run, and ``list`` withdraws the other.
        """
        arguments = sbatch_arguments(order, self.settings)
        if not order.name.startswith(self.prefix):
            raise FleetError(f"{order.name} does not begin with {self.prefix}", retry=False)
        if not self._known(order.name):
            self._commands.run("sbatch", *arguments, text=batch_script(order))

    def stop(self, name: str) -> None:
        """Cancel every job of that name; Slurm sends SIGTERM, and SIGKILL after its KillWait."""
        # scancel says nothing if there is no such job, and fails if the controller is away.
        self._commands.run("scancel", "--me", f"--name={name}")

    def list(self) -> Sequence[EngineNode]:
        """Return the nodes of the fleet; ended ones for Slurm's MinJobAge, usually 300 s."""
        printed = self._commands.run("squeue", "--json", "--states=all", "--me")
        # Slurm 22.05 ignores --me here and lists the jobs of all users.
        jobs, surplus = one_per_name(
            [
                job
                for job in read_jobs(printed)
                if job.user_id == os.geteuid() and (job.name or "").startswith(self.prefix)
            ]
        )
        if surplus:
            with contextlib.suppress(FleetError):  # the next list tries again
                self._commands.run("scancel", *(str(job.job_id) for job in surplus))
        return [job.node() for job in jobs]

    def capacity(self) -> Capacity:
        """Return the idle GPUs of each partition, or its idle nodes if the cluster has no gres.

        On-demand jobs may also get GPUs of jobs that are preempted for them; these do not count.
        """
        return Capacity.of_machines(self._idle(NodeKind.SPOT), self._idle(NodeKind.ON_DEMAND))

    def by_priority(self) -> bool:
        """Return whether jobs of different priorities are submitted differently."""
        return bool(self.settings.nice or self.settings.qos_by_priority)

    def check(self) -> Sequence[Finding]:
        """Return what was found about the cluster and the settings."""
        return check_cluster(self.settings, self._commands, self.list)

    def _known(self, name: str) -> bool:
        asked = ("--noheader", "--states=all", "--me", f"--name={name}", "--format=%A")
        return bool(self._commands.run("squeue", *asked).strip())

    def _idle(self, kind: NodeKind) -> tuple[int, ...]:
        """Return the GPUs of each machine that nobody uses."""
        partition = self.settings.partition(kind)
        if not partition:
            return ()
        columns = "--Format=StateLong:40,Gres:200,GresUsed:400"
        printed = self._commands.run(
            "sinfo", "--noheader", "--Node", f"--partition={partition}", columns
        )
        rows = [line.split() for line in printed.splitlines()]
        if not rows:
            # sinfo is silent about a partition that does not exist; scontrol fails then.
            self._commands.run("scontrol", "show", "partition", partition)
        usable = [row for row in rows if _USABLE.fullmatch(row[0])]
        name = self.settings.gpus
        if not name:
            return tuple(self._gpus_per_node for state, *_ in usable if state.startswith("idle"))
        return tuple(
            max(0, count_gres(gres, name) - count_gres(used, name)) for _, gres, used in usable
        )


def sbatch_arguments(order: NodeOrder, settings: SlurmSettings) -> list[str]:
    """Return the arguments of sbatch for this order."""
    partition = settings.partition(order.kind)
    if not partition:
        raise FleetError(f"no partition is set for {order.kind} nodes", retry=False)
    found = [
        "--parsable",
        f"--job-name={order.name}",
        "--dependency=singleton",
        "--no-requeue",
        f"--comment=duetune job={order.job} kind={order.kind}",
        f"--partition={partition}",
        "--nodes=1",
        "--ntasks=1",
        f"--output={order.log.replace('%', '%%')}",
        "--open-mode=append",
        "--chdir=/",
        f"--export={_EXPORTED}",
    ]
    if settings.gpus:
        found.append(f"--gres={settings.gpus}:{order.gpus}")
    if settings.minutes is not None:
        found.append(f"--time={settings.minutes}")
        if order.withdraw_at is not None:
            # Slurm withdraws a job that could not run its full time before the deadline.
            wait_s = max(1, round(order.withdraw_at - wall_now()))
            found.append(f"--deadline=now+{wait_s + 60 * settings.minutes}seconds")
    if settings.nice:
        found.append(f"--nice={settings.nice * max(0, HIGHEST_PRIORITY - order.priority)}")
    if settings.account:
        found.append(f"--account={settings.account}")
    if qos := settings.qos_for(order.priority):
        found.append(f"--qos={qos}")
    return [*found, *settings.extra_arguments]


def batch_script(order: NodeOrder) -> str:
    """Return the script of the job. What srun starts gets SIGTERM as soon as a preemption begins;
    a script of its own would get it at the end of the grace time.
    """
    variables = [
        f"export {name}={shlex.quote(value)}" for name, value in sorted(order.environment.items())
    ]
    # From Slurm 22.05 on, srun does not take the number of CPUs from sbatch.
    cpus = '${SLURM_CPUS_PER_TASK:+"--cpus-per-task=$SLURM_CPUS_PER_TASK"}'
    step = f"exec srun {cpus} --export=ALL --kill-on-bad-exit=1 {shlex.join(order.command)}"
    return "\n".join(["#!/bin/sh", *variables, step, ""])


def count_gres(text: str, gres: str) -> int:
    """Return how many of ``gres`` a text such as ``gpu:h100:8(S:0-1),shard:4`` counts.

    ``gres`` with no type counts all types.
    """
    return sum(
        int(found["count"])
        for found in _GRES.finditer(text)
        if found["name"] == gres or found["name"].startswith(f"{gres}:")
    )
