"""Nodes on SkyPilot: every node is a cluster with one machine, whose only job is the command.

All calls of SkyPilot are made in a process of their own (``skypilot_bridge``), which may be of
another Python: SkyPilot has some hundred dependencies of its own. Its API server works in the
background, so no call waits for a machine. Launches that wait, failed and ended are read from the
server's requests.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import msgspec

from duetune.core.fleet import NodeKind
from duetune.errors import FleetError
from duetune.fleets.driver import Capacity, EngineState, Finding, NodeOrder
from duetune.fleets.skypilot.skypilot_clusters import SkyFacts, nodes_of
from duetune.fleets.skypilot.skypilot_session import SkypilotSession
from duetune.fleets.skypilot.skypilot_settings import task_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from duetune.fleets.driver import EngineNode
    from duetune.fleets.skypilot.skypilot_settings import SkypilotSettings

CHECK_S = 120.0
"""Seconds for a check, which lets SkyPilot plan a node of each kind."""
_NOTHING = dict[str, object]


class _Machine(msgspec.Struct):
    """A machine of a Slurm cluster."""

    slurm_cluster_name: str
    partition: str | None = ""
    node_state: str = ""
    free_gpus: int = 0


class _Machines(msgspec.Struct):
    machines: list[_Machine]


class _Checked(msgspec.Struct):
    """What a check found: ``wrong`` says for each kind why SkyPilot cannot plan a node."""

    version: str
    server: str
    enabled: list[str]
    wrong: dict[str, str]


class SkypilotDriver:
    """Starts, stops and lists the nodes of one fleet: clusters whose names begin with ``prefix``.

    SkyPilot forgets clusters that are gone, so the driver remembers those that it has seen. What it
    forgets itself, when its process ends, is found again in the requests of SkyPilot's server.
    """

    def __init__(self, settings: SkypilotSettings, *, prefix: str) -> None:
        self.settings, self.prefix = settings, prefix
        self._session = SkypilotSession(settings, prefix)
        self._since: dict[str, float] = {}
        self._ended: dict[str, EngineNode] = {}

    def start(self, order: NodeOrder) -> None:
        """Launch the cluster of a node; SkyPilot makes it in the background."""
        if not order.name.startswith(self.prefix):
            raise FleetError(f"{order.name} does not begin with {self.prefix}", retry=False)
        if self.settings.place(order.kind) == "none":
            raise FleetError(f"there are no {order.kind} nodes in this fleet", retry=False)
        if order.name not in self._ended:
            task, minutes = task_of(order, self.settings), self.settings.autodown(order.kind)
            self._session.ask("start", _NOTHING, name=order.name, task=task, autodown=minutes)

    def stop(self, name: str) -> None:
        """Give a cluster back, or withdraw its launch. SkyPilot ends machines in the background."""
        self._session.ask("stop", _NOTHING, name=name)

    def list(self) -> Sequence[EngineNode]:
        """Return the nodes of the fleet, ended ones as long as this driver or SkyPilot's server
        remembers them; and give back the clusters of nodes whose command has ended.
        """
        facts = self._session.ask("look", SkyFacts, refresh_s=self.settings.refresh_s)
        found = nodes_of(facts, self._since)
        for name, node in found.items():
            if node.state is EngineState.RUNNING and node.started_at is not None:
                self._since.setdefault(name, node.started_at)
            elif node.state is EngineState.ENDED:
                self._ended.setdefault(name, node)
        for cluster in facts.clusters:
            if cluster.name in self._ended:
                with contextlib.suppress(FleetError):  # the next list tries again
                    self.stop(cluster.name)
        return list({**found, **self._ended}.values())

    def capacity(self) -> Capacity:
        """Return the free GPUs of Slurm partitions; None in clouds, which do not tell."""
        places = {kind: self.settings.place(kind).split("/") for kind in NodeKind}
        partitions = {kind: place[1:] for kind, place in places.items() if place[0] == "slurm"}
        clusters = sorted({place[0] for place in partitions.values() if place})
        if not clusters or not self.settings.gpu:
            return Capacity()
        machines = self._session.ask("free", _Machines, clusters=clusters).machines

        def free(kind: NodeKind) -> int | None:
            if places[kind] == ["none"]:
                return 0
            if not partitions.get(kind):
                return None
            cluster, *names = partitions[kind]
            return sum(
                machine.free_gpus
                for machine in machines
                if machine.slurm_cluster_name == cluster
                and (not names or names[0] in _partitions(machine))
            )

        return Capacity(free(NodeKind.SPOT), free(NodeKind.ON_DEMAND))

    def check(self) -> Sequence[Finding]:
        """Return whether SkyPilot answers, what it may use, and whether it could plan a node of
        each kind.
        """
        kinds = [kind for kind in NodeKind if self.settings.place(kind) != "none"]
        tasks = {kind.value: self._example(kind) for kind in kinds}
        try:
            found = self._session.ask("check", _Checked, CHECK_S, tasks=tasks)
        except FleetError as error:
            return (Finding("SkyPilot answers", str(error)),)
        enabled = ", ".join(found.enabled)
        findings = [
            Finding(f"SkyPilot {found.version} and its API server {found.server} answer"),
            Finding(
                f"enabled infrastructure: {enabled or 'none'}",
                "" if enabled else "run 'sky check', which says what is missing",
            ),
        ]
        for kind in kinds:
            place = self.settings.place(kind) or "any cloud"
            what = f"SkyPilot can plan {kind} nodes in {place}"
            findings.append(Finding(what, found.wrong.get(kind.value, "")))
        return findings

    def close(self) -> None:
        """End the process that speaks to SkyPilot. The nodes stay."""
        self._session.close()

    def _example(self, kind: NodeKind) -> dict[str, object]:
        order = NodeOrder(name=f"{self.prefix}check", job="check", kind=kind, command=("true",))
        return task_of(order, self.settings)


def _partitions(machine: _Machine) -> list[str]:
    """Return the partitions of a machine; Slurm marks the default one with a star."""
    return [name.strip().rstrip("*") for name in (machine.partition or "").split(",")]
