"""The settings of a fleet on Ray."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import msgspec

from duetune.conversion import refusal
from duetune.core.fleet import NodeKind
from duetune.errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Mapping

_ADDRESS = re.compile(r"[^/:\s]+:\d{1,5}|\[[0-9a-fA-F:]+\]:\d{1,5}")


class RaySettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a fleet uses a Ray cluster. Resources are per GPU of a node.

    - ``address``: host and port of the cluster's head (its GCS), such as ``10.0.0.5:6379``. The
      controller's machine must be a node of the cluster; it needs no CPU and no GPU for that.
    - ``namespace``: Ray's namespace of the nodes.
    - ``label``, ``spot``, ``on_demand``: the label that tells the kinds of machines apart, and its
      values. A kind whose value is empty runs on any machine.
    - ``gpu``: Ray's name of the resource that counts as a GPU. With ``CPU`` a node of one GPU takes
      one CPU and no GPU, for clusters without GPUs.
    - ``cpus``: CPUs for each GPU, beside the GPU itself.
    - ``resources``: other resources for each GPU, such as ``nvlink=1,fast=0.5``.
    - ``runtime_env``: Ray's runtime environment of the nodes in JSON; empty if the machines have
      duetune installed.
    - ``storage``: that of the fleet's file; the check looks whether machines can use it.
    - ``grace_s``: seconds from SIGTERM to SIGKILL when a node is stopped. ``duetune node`` needs
      20 s to leave.
    - ``answer_s``: a call that takes longer is an error, and is made again later.
    """

    address: str
    namespace: str = "duetune"
    label: str = "ray.io/market-type"
    spot: str = "spot"
    on_demand: str = "on-demand"
    gpu: str = "GPU"
    cpus: float = 1.0
    resources: str = ""
    runtime_env: str = ""
    storage: str = ""
    grace_s: float = 30.0
    answer_s: float = 5.0

    def __post_init__(self) -> None:
        if not _ADDRESS.fullmatch(self.address):
            raise InvalidInput("address", self.address, "host:port of the head, without ray://")
        for field in ("namespace", "label", "gpu"):
            if not getattr(self, field):
                raise InvalidInput(field, "", "a name")
        for field, value in (("cpus", self.cpus), ("grace_s", self.grace_s)):
            if not 0 <= value < float("inf"):
                raise InvalidInput(field, value, "a number that is not negative")
        if not 0 < self.answer_s < float("inf"):
            raise InvalidInput("answer_s", self.answer_s, "seconds above 0")
        self.needs(1)
        self.runtime_environment()

    @classmethod
    def of(cls, options: Mapping[str, object]) -> RaySettings:
        """Return the settings in ``options``, as a fleet's file or the command line has them."""
        try:
            return msgspec.convert(options, cls, strict=False)
        except msgspec.ValidationError as error:
            raise refusal(error, options, cls).at("") from None

    def selector(self, kind: NodeKind) -> dict[str, str]:
        """Return the labels that a machine must have for a node of this kind."""
        value = self.spot if kind is NodeKind.SPOT else self.on_demand
        return {self.label: value} if value else {}

    def needs(self, gpus: int) -> dict[str, float]:
        """Return the resources of a node, by Ray's names."""
        found = {"CPU": self.cpus}
        for word in filter(None, self.resources.split(",")):
            name, _, amount = word.partition("=")
            try:
                found[name.strip()] = float(amount)
            except ValueError:
                allowed = "NAME=AMOUNT, separated by commas"
                raise InvalidInput("resources", self.resources, allowed) from None
        found[self.gpu] = 1.0
        return {name: amount * gpus for name, amount in found.items() if amount > 0}

    def runtime_environment(self) -> dict[str, object] | None:
        """Return Ray's runtime environment of the nodes; None if it is off."""
        if not self.runtime_env:
            return None
        try:
            return msgspec.json.decode(self.runtime_env, type=dict[str, object])
        except msgspec.MsgspecError as error:
            allowed = f"a JSON object ({error})"
            raise InvalidInput("runtime_env", self.runtime_env, allowed) from None
