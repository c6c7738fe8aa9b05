"""The settings of a fleet on SkyPilot, and the task that SkyPilot gets for a node."""

from __future__ import annotations

import re
import shlex
import sys
from typing import TYPE_CHECKING, TypeVar

import msgspec

from duetune.conversion import refusal
from duetune.core.fleet import NodeKind
from duetune.errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Mapping

    from duetune.fleets.driver import NodeOrder

T = TypeVar("T")
_PLACE = re.compile(r"[A-Za-z0-9_.-]+(/[A-Za-z0-9_.*-]+){0,2}")
_LABEL = re.compile(r"[a-z]([a-z0-9_-]{0,62})")
_WITHOUT_SPOT = ("slurm", "ssh", "k8s", "kubernetes")
"""Infrastructure where nothing is bought as spot: another place means another kind."""


class SkypilotSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where nodes of each kind are, and what SkyPilot asks for.

    - ``infra``: where nodes are, as SkyPilot writes it: ``aws``, ``gcp/us-central1``,
      ``aws/us-east-1/us-east-1a``. Empty lets SkyPilot choose the cheapest that is enabled.
    - ``spot``, ``on_demand``: where nodes of one kind are, if that is elsewhere. On Slurm the
      partition is the kind: ``slurm/CLUSTER/PARTITION``. ``none`` if there are none.
    - ``gpu``: SkyPilot's name of the GPU, such as ``H100``; by default the accelerator of the
      fleet's file. Empty if nodes have none.
    - ``cpus``, ``memory``, ``instance_type``, ``image_id``, ``disk_size``: of SkyPilot's resources.
    - ``labels``: tags of the machines, such as ``team=ml,cost=42``.
    - ``any_of``: a JSON list of SkyPilot's resources, of which one is enough.
    - ``config``: SkyPilot's settings for the nodes in JSON, such as
      ``{"slurm": {"sbatch_options": {"time": "24:00:00"}}}``.
    - ``autodown_minutes``: SkyPilot itself gives back a node whose command has ended for this long,
      whatever became of the controller. 0 turns it off. SkyPilot cannot do it on Slurm.
    - ``sky_python``: the Python that has SkyPilot, usually in an environment of its own.
    - ``endpoint``: the URL of SkyPilot's API server; empty for the one on this machine.
    - ``refresh_s``: how often SkyPilot looks at the machines themselves.
    - ``answer_s``: a call that takes longer is an error, and is made again.
    """

    infra: str = ""
    spot: str = ""
    on_demand: str = ""
    gpu: str = ""
    cpus: str | float = ""
    memory: str | float = ""
    instance_type: str = ""
    image_id: str = ""
    disk_size: int | None = None
    labels: str = ""
    any_of: str = ""
    config: str = ""
    autodown_minutes: int = 30
    sky_python: str = sys.executable
    endpoint: str = ""
    refresh_s: float = 20.0
    answer_s: float = 30.0

    def __post_init__(self) -> None:
        for field in ("infra", "spot", "on_demand"):
            value = getattr(self, field)
            if value and not _PLACE.fullmatch(value):
                raise InvalidInput(field, value, "CLOUD, CLOUD/REGION or CLOUD/REGION/ZONE")
        if self.spot == self.on_demand == "none":
            raise InvalidInput("on_demand", "none", "a place: there are no spot nodes either")
        if (place := self.place(NodeKind.SPOT)) == self.place(NodeKind.ON_DEMAND) and (
            place.split("/")[0] in _WITHOUT_SPOT
        ):
            allowed = f"another place than that of on-demand nodes: {place} has no spot machines"
            raise InvalidInput("spot", place, allowed)
        for field, number in (("refresh_s", self.refresh_s), ("answer_s", self.answer_s)):
            if not 0 < number < float("inf"):
                raise InvalidInput(field, number, "seconds above 0")
        if self.autodown_minutes < 0:
            raise InvalidInput("autodown_minutes", self.autodown_minutes, "0 or more")
        if self.disk_size is not None and self.disk_size < 1:
            raise InvalidInput("disk_size", self.disk_size, "1 GB or more")
        self.tags("job")
        self.resources(NodeKind.ON_DEMAND, 1)
        self.overrides()

    @classmethod
    def of(cls, options: Mapping[str, object], accelerator: str | None = None) -> SkypilotSettings:
        """Return the settings in ``options``, as a fleet's file or the command line has them.

        ``accelerator`` is the GPU if the options name none.
        """
        known = {"gpu": accelerator or "", **options}
        try:
            return msgspec.convert(known, cls, strict=False)
        except msgspec.ValidationError as error:
            raise refusal(error, known, cls).at("") from None

    def place(self, kind: NodeKind) -> str:
        """Return where nodes of this kind are; ``none`` if there are none."""
        return (self.spot if kind is NodeKind.SPOT else self.on_demand) or self.infra

    def resources(self, kind: NodeKind, gpus: int) -> dict[str, object]:
        """Return SkyPilot's resources of a node."""
        place = self.place(kind)
        found: dict[str, object] = {
            "infra": place,
            "cpus": _text(self.cpus),
            "memory": _text(self.memory),
            "instance_type": self.instance_type,
            "image_id": self.image_id,
            "disk_size": self.disk_size,
            "accelerators": f"{self.gpu}:{gpus}" if self.gpu else "",
        }
        if place.split("/")[0] not in _WITHOUT_SPOT:
            found["use_spot"] = kind is NodeKind.SPOT
        found = {name: value for name, value in found.items() if value not in {"", None}}
        if self.any_of:
            found["any_of"] = _json("any_of", self.any_of, list[dict[str, object]])
        return found

    def tags(self, job: str) -> dict[str, str]:
        """Return the labels of a node's machine, the job's name too if clouds allow it."""
        found = {"duetune-job": job} if _LABEL.fullmatch(job) else {}
        for word in filter(None, self.labels.split(",")):
            name, equals, value = word.partition("=")
            if not equals or not name.strip():
                raise InvalidInput("labels", self.labels, "NAME=VALUE, separated by commas")
            found[name.strip()] = value.strip()
        return found

    def overrides(self) -> dict[str, object]:
        """Return SkyPilot's settings for the nodes."""
        return _json("config", self.config, dict[str, object]) if self.config else {}

    def autodown(self, kind: NodeKind) -> int | None:
        """Return the minutes after which SkyPilot gives a node back; None if it does not."""
        on_slurm = self.place(kind).split("/")[0] == "slurm"
        return None if on_slurm or not self.autodown_minutes else self.autodown_minutes


def task_of(order: NodeOrder, settings: SkypilotSettings) -> dict[str, object]:
    """Return the task of a node, in the words of SkyPilot's task files."""
    resources = settings.resources(order.kind, order.gpus)
    resources["labels"] = settings.tags(order.job)
    if order.max_price is not None and resources.get("use_spot"):
        resources["max_hourly_cost"] = order.max_price * order.gpus
    found: dict[str, object] = {
        "name": order.name,
        "resources": resources,
        "run": run_script(order),
    }
    if overrides := settings.overrides():
        found["config"] = overrides
    return found


def run_script(order: NodeOrder) -> str:
    """Return the script that runs the command of a node.

    The output goes to the order's log if its folder is on the node, and to SkyPilot's otherwise.
    """
    log = shlex.quote(order.log)
    lines = [f"export {name}={shlex.quote(value)}" for name, value in order.environment.items()]
    lines += [
        f'if [ -d "$(dirname {log})" ]; then exec >>{log} 2>&1; fi',
        f"exec {shlex.join(order.command)}",
    ]
    return "\n".join(lines) + "\n"


def _text(amount: str | float) -> str:
    """Return an amount as SkyPilot writes it, such as ``4`` or ``4+``."""
    return amount if isinstance(amount, str) else f"{amount:g}"


def _json(field: str, text: str, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(text, type=kind)
    except msgspec.MsgspecError as error:
        raise InvalidInput(field, text, f"JSON ({error})") from None
