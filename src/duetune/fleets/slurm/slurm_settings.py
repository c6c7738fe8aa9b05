"""The settings of a fleet on Slurm."""

from __future__ import annotations

import math
import re
import shlex
from typing import TYPE_CHECKING

import msgspec

from duetune.conversion import refusal
from duetune.core.fleet import NodeKind
from duetune.errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Mapping

_OURS = (
    "--chdir",
    "--comment",
    "--deadline",
    "--dependency",
    "--export",
    "--job-name",
    "--no-requeue",
    "--open-mode",
    "--output",
    "--partition",
    "--requeue",
    "--signal",
    "--wrap",
)


class SlurmSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where nodes of each kind are, and how they are asked for.

    - ``spot``: the partition whose jobs may be preempted; empty if the cluster has none.
    - ``on_demand``: the partition whose jobs are not; empty if the cluster has none.
    - ``account``, ``qos``: passed to sbatch if they are given.
    - ``qos_by_priority``: the QOS of jobs from a priority on, such as ``100=high,500=urgent``. Jobs
      of lower priority get ``qos``.
    - ``gpus``: the generic resource of a GPU, such as ``gpu`` or ``gpu:h100``. Empty if the
      cluster has none: nodes are then not counted in GPUs.
    - ``hours``: the time limit of a node. With it Slurm itself withdraws requests that are not
      granted in time, and can fill gaps. None means the limit of the partition.
    - ``nice``: how many points of Slurm's priority one point of a job's priority is worth. Users
      can only lower priorities, so a job of priority p gets ``--nice`` of nice x (1000 - p). 0
      leaves all jobs alike.
    - ``extra``: more arguments of sbatch, such as ``--mem=64G --cpus-per-task=8``.
    - ``conf``: the path of ``slurm.conf``, if Slurm does not find it by itself.
    - ``timeout_s``: how long a command of Slurm may take. Slurm itself gives up after about 9 s.
    """

    spot: str = ""
    on_demand: str = ""
    account: str = ""
    qos: str = ""
    qos_by_priority: str = ""
    gpus: str = "gpu"
    hours: float | None = None
    nice: int = 0
    extra: str = ""
    conf: str = ""
    timeout_s: float = 20.0

    def __post_init__(self) -> None:
        if not self.spot and not self.on_demand:
            raise InvalidInput("spot", None, "a partition for spot or on_demand nodes, or both")
        if self.spot == self.on_demand:
            raise InvalidInput("on_demand", self.on_demand, "another partition than that of spot")
        if self.hours is not None and self.hours <= 0:
            raise InvalidInput("hours", self.hours, "more than 0")
        if self.nice < 0:
            raise InvalidInput("nice", self.nice, "0 or more")
        if self.timeout_s <= 0:
            raise InvalidInput("timeout_s", self.timeout_s, "more than 0 seconds")
        self.qos_for(0)
        for word in self.extra_arguments:
            if word.partition("=")[0] in _OURS:
                raise InvalidInput("extra", word, f"no {word.partition('=')[0]}: duetune sets it")

    @classmethod
    def of(cls, options: Mapping[str, object]) -> SlurmSettings:
        """Return the settings in ``options``, as a fleet's file or the command line has them."""
        try:
            return msgspec.convert(options, cls, strict=False)
        except msgspec.ValidationError as error:
            raise refusal(error, options, cls).at("") from None

    @property
    def extra_arguments(self) -> tuple[str, ...]:
        """Return the words of ``extra``, split as a shell does."""
        try:
            return tuple(shlex.split(self.extra))
        except ValueError as error:
            raise InvalidInput("extra", self.extra, f"arguments of sbatch ({error})") from None

    @property
    def minutes(self) -> int | None:
        """Return the time limit of a node in whole minutes, as Slurm counts; at least 1."""
        return None if self.hours is None else max(1, round(self.hours * 60))

    def qos_for(self, priority: int) -> str:
        """Return the QOS of nodes of a job with this priority; empty if none is set."""
        found = [(-math.inf, self.qos)]
        for word in filter(None, self.qos_by_priority.split(",")):
            least, _, name = (part.strip() for part in word.partition("="))
            if not re.fullmatch(r"-?\d+", least) or not name:
                allowed = "PRIORITY=QOS, separated by commas"
                raise InvalidInput("qos_by_priority", self.qos_by_priority, allowed)
            found.append((int(least), name))
        return max(each for each in found if each[0] <= priority)[1]

    def partition(self, kind: NodeKind) -> str:
        """Return the partition for nodes of this kind; empty if there is none."""
        return self.spot if kind is NodeKind.SPOT else self.on_demand
